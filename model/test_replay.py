import json
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from model.machine import Machine
from model.machines.lifecycle import Lifecycle
from model.machines.storage_transition import StorageTransition
from model.replay import NotAllowed, lines_of, replay, replayed
from model.transitions import JOBS, STATES, STORAGE


def line(job_id: int, run_lease: int, before: str, after: str, by: str) -> str:
    return json.dumps({"t": "now", "job_id": job_id, "run_lease": run_lease, "from": before, "to": after, "by": by})


SNOOZE_THEN_COMPLETE = [
    line(1, 0, "", "available", "insert"),
    line(1, 1, "available", "running", "claim"),
    line(1, 1, "running", "scheduled", "snooze"),
    line(1, 1, "scheduled", "available", "promote"),
    line(1, 2, "available", "running", "claim"),
    line(1, 2, "running", "completed", "complete"),
]
RESCUE = [
    *SNOOZE_THEN_COMPLETE[:2],
    line(1, 1, "running", "retryable", "rescue"),
    line(1, 1, "retryable", "available", "promote"),
    line(1, 2, "available", "running", "claim"),
]
CALLBACK = [
    *SNOOZE_THEN_COMPLETE[:2],
    line(1, 1, "running", "waiting_external", "park"),
    line(1, 1, "waiting_external", "completed", "resolve"),
]
DEAD_LETTER = [
    *SNOOZE_THEN_COMPLETE[:2],
    line(1, 1, "running", "failed", "fail"),
    line(1, 1, "failed", "available", "admin_retry"),
    line(1, 2, "available", "running", "claim"),
]


@pytest.mark.parametrize("log", [SNOOZE_THEN_COMPLETE, RESCUE, CALLBACK, DEAD_LETTER])
def test_a_run_of_the_machine_is_accepted(log: list[str]) -> None:
    assert replay(log).steps == len(log)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ([SNOOZE_THEN_COMPLETE[0], line(1, 0, "available", "available", "promote")], "line 2: promote does not lead"),
        ([*SNOOZE_THEN_COMPLETE[:2], line(1, 1, "scheduled", "available", "promote")], "line 3: job 1 is running"),
        ([*SNOOZE_THEN_COMPLETE[:4], line(1, 1, "available", "running", "claim")], "line 5: run_lease of job 1 was 1"),
        ([*DEAD_LETTER[:3], line(1, 0, "failed", "available", "admin_retry")], "line 4: run_lease of job 1 was 1"),
        ([*SNOOZE_THEN_COMPLETE, line(1, 2, "running", "completed", "complete")], "line 7: job 1 is completed"),
        ([line(1, 2, "available", "running", "claim")], "line 1: job 1 has no beginning"),
        ([line(1, 1, "running", "completed", "complete")], "line 1: job 1 has no beginning"),
        ([line(1, 0, "", "available", "magic")], "line 1: nobody is called 'magic'"),
        (["INFO {not json"], "line 1 is not JSON"),
        (['{"job_id": 1}'], "line 1: by, from, to missing"),
        (['{"from": "canonical", "to": "active", "by": "finish"}'], "line 1: finish does not lead"),
    ],
)
def test_the_first_step_that_is_not_allowed_is_named(log: list[str], reason: str) -> None:
    with pytest.raises(NotAllowed, match="^" + reason.replace("(", r"\(")):
        replay(log)


def test_a_storage_transition_is_replayed_too() -> None:
    steps = [
        ("canonical", "prepared", "prepare"),
        ("prepared", "mixed_transition", "enter"),
        ("mixed_transition", "active", "finish"),
    ]
    assert replay(json.dumps({"from": a, "to": b, "by": by}) for a, b, by in steps).storage == "active"
    with pytest.raises(NotAllowed, match="storage is prepared"):
        replay(json.dumps({"from": a, "to": b, "by": by}) for a, b, by in (steps[0], steps[2]))


def test_a_log_of_one_process_among_several_may_lack_steps() -> None:
    log = [SNOOZE_THEN_COMPLETE[1], SNOOZE_THEN_COMPLETE[5]]
    assert replay(log, partial=True).steps == 2
    with pytest.raises(NotAllowed, match="run_lease"):
        replay([SNOOZE_THEN_COMPLETE[5], SNOOZE_THEN_COMPLETE[1]], partial=True)


def turn(generation: int, before: int, after: int) -> str:
    return json.dumps({"by": "turn", "ring": "ready", "generation": generation, "from": before, "to": after})


TRUNCATION = '{"by": "truncate", "ring": "ready", "slot": 1}'


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ([turn(5, 0, 1), turn(5, 0, 2)], "line 2: the ready ring is at turn 5"),
        ([turn(5, 0, 1), turn(7, 2, 3)], "line 2: the ready ring is at turn 5"),
        ([turn(5, 0, 1), turn(6, 2, 3)], "line 2: the ready ring is at slot 1"),
        ([turn(5, 0, 1), TRUNCATION], "line 2: slot 1 is the one that the ready ring writes to"),
        (['{"by": "elected", "term": 3}', '{"by": "elected", "term": 3}'], "line 2: term 3 does not follow term 3"),
    ],
)
def test_rings_and_leaders_are_replayed_too(log: list[str], reason: str) -> None:
    with pytest.raises(NotAllowed, match=reason):
        replay(log)
    assert replay([turn(5, 0, 1), turn(6, 1, 2), TRUNCATION, '{"by": "elected", "term": 3}']).steps == 4


def test_a_claim_may_seem_to_be_a_little_earlier_than_what_it_takes() -> None:
    def at(second: int, text: str) -> str:
        return json.dumps({**json.loads(text), "t": f"2026-01-01T00:00:{second:02}+00:00"})

    claim, promote = SNOOZE_THEN_COMPLETE[4], SNOOZE_THEN_COMPLETE[3]
    log = [at(number, text) for number, text in enumerate(SNOOZE_THEN_COMPLETE[:3])]
    assert replay([*log, at(4, claim), at(9, promote)]).steps == 5
    with pytest.raises(NotAllowed, match="line 4: job 1 is scheduled, not available"):
        replay([*log, at(4, claim), at(59, promote)])


def test_files_of_one_run_are_put_in_order(tmp_path: Path) -> None:
    lines = [json.loads(text) for text in SNOOZE_THEN_COMPLETE]
    for number, line in enumerate(lines):
        line["t"] = f"2026-01-01T00:00:0{number}+00:00"
    files = [tmp_path / "one", tmp_path / "other"]
    for n, file in enumerate(files):
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines[1 - n :: 2]))
    assert replayed(lines_of([str(file) for file in files])).steps == 6
    with pytest.raises(NotAllowed, match="line 2: job 1 is running, not scheduled"):
        replayed(lines_of([str(files[0])]))


def test_a_file_is_accepted_or_rejected_by_exit_status(tmp_path: Path) -> None:
    def run(*lines: str) -> subprocess.CompletedProcess[str]:
        log = tmp_path / "log"
        log.write_text("a line without a step\n" + "".join(f"DEBUG awa_actors.trace {text}\n" for text in lines))
        command = [sys.executable, "-m", "model.replay", str(log)]
        return subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)

    assert run(*RESCUE).stdout == "accepted: 5 steps of 1 jobs\n"
    rejected = run(RESCUE[0], RESCUE[2])
    assert rejected.returncode == 1
    assert rejected.stderr.startswith("rejected: line 3: job 1 is available, not running")


def moves(machine: Machine[Any], states: Any) -> set[tuple[str, str]]:
    """Every change of a state that a machine makes."""
    found, seen, queue = set(), set(machine.initial()), deque(machine.initial())
    while queue:
        state = queue.popleft()
        for name, _, after in machine.steps(state):
            if name != "fail_over":
                found |= {pair for pair in zip(states(state), states(after), strict=True) if pair[0] != pair[1]}
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return found


def test_every_move_of_the_lifecycle_machine_is_in_the_table() -> None:
    table = {(a, b) for rule in JOBS.values() for a in rule.before for b in rule.after}
    assert moves(Lifecycle(), lambda s: [job.state for job in s.jobs]) <= table


def test_the_moves_of_the_storage_machine_are_those_of_the_table() -> None:
    table = {(a, b) for by, rule in STORAGE.items() if by != "install" for a in rule.before for b in rule.after}
    names = {"mixed": "mixed_transition"}
    assert moves(StorageTransition(), lambda s: [names.get(s.state, s.state)]) == table


def test_no_rule_names_a_state_that_does_not_exist() -> None:
    assert {state for rule in JOBS.values() for state in (*rule.before, *rule.after)} <= {"", *STATES}
