import itertools
from typing import Any

import pytest

from awa_actors.core.lifecycle import LIFECYCLE, Move, reachable
from awa_actors.core.outcome import Cause, Ending, decide
from awa_actors.errors import TerminalError
from awa_actors.jobs import CallbackToken, Cancel, JobState, RetryAfter, Snooze, WaitForCallback
from model.transitions import JOBS, NOWHERE, Rule

CAUSES: list[Cause | None] = [None, *Cause]
VALUES: list[Any] = [None, RetryAfter(1), Snooze(1), Cancel(), WaitForCallback(CallbackToken("a", 1, 1))]
ERRORS: list[BaseException | None] = [None, ValueError("no"), TerminalError("never")]


def named(state: JobState | None) -> str:
    return NOWHERE if state is None else state.value


def test_every_state_is_reached_and_only_ends_are_left_by_retention_alone() -> None:
    assert {after for move in LIFECYCLE for after in move.after} == {None, *JobState}
    assert reachable(JobState.COMPLETED) == {None}


@pytest.mark.parametrize(("name", "rule"), JOBS.items())
def test_what_logs_of_real_runs_are_replayed_by_is_a_move(name: str, rule: Rule) -> None:
    (move,) = [move for move in LIFECYCLE if move.name == name]
    assert set(rule.before) <= {named(state) for state in move.before}
    assert set(rule.after) <= {named(state) for state in move.after}


@pytest.mark.parametrize("move", [move for move in LIFECYCLE if move.name in JOBS], ids=lambda move: move.name)
def test_where_a_move_usually_leads_is_where_logs_may_lead(move: Move) -> None:
    assert {named(state) for state in move.after[: move.usual]} <= set(JOBS[move.name].after)


@pytest.mark.parametrize(("cause", "value", "error"), list(itertools.product(CAUSES, VALUES, ERRORS)))
@pytest.mark.parametrize("attempt", [1, 25])
def test_what_the_attempt_boundary_decides_is_a_move(
    cause: Cause | None, value: Any, error: BaseException | None, attempt: int
) -> None:
    decision = decide(Ending(value, error, cause, attempt=attempt))
    if (state := decision.fields.get("state")) is not None:
        assert JobState(state) in reachable(JobState.RUNNING)
