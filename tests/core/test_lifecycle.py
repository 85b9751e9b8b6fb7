import itertools
from typing import Any

import pytest

from awa_actors.core.lifecycle import LIFECYCLE, reachable
from awa_actors.core.outcome import Cause, Ending, decide
from awa_actors.errors import TerminalError
from awa_actors.jobs import CallbackToken, Cancel, JobState, RetryAfter, Snooze, WaitForCallback
from model.transitions import JOBS, NOWHERE

CAUSES: list[Cause | None] = [None, *Cause]
VALUES: list[Any] = [None, RetryAfter(1), Snooze(1), Cancel(), WaitForCallback(CallbackToken("a", 1, 1))]
ERRORS: list[BaseException | None] = [None, ValueError("no"), TerminalError("never")]


def named(state: JobState | None) -> str:
    return NOWHERE if state is None else state.value


def test_every_state_is_reached_and_only_ends_are_left_by_retention_alone() -> None:
    assert {after for move in LIFECYCLE for after in move.after} == {None, *JobState}
    assert reachable(JobState.COMPLETED) == {None}


@pytest.mark.parametrize("move", LIFECYCLE, ids=lambda move: move.name)
def test_a_move_is_what_logs_of_real_runs_are_replayed_by(move: Any) -> None:
    rule = JOBS[move.name]
    assert {named(state) for state in move.before} == set(rule.before)
    assert {named(state) for state in move.after} == set(rule.after)


def test_no_rule_is_missing_from_the_table() -> None:
    assert {move.name for move in LIFECYCLE} == set(JOBS)


@pytest.mark.parametrize(("cause", "value", "error"), list(itertools.product(CAUSES, VALUES, ERRORS)))
@pytest.mark.parametrize("attempt", [1, 25])
def test_what_the_attempt_boundary_decides_is_a_move(
    cause: Cause | None, value: Any, error: BaseException | None, attempt: int
) -> None:
    decision = decide(Ending(value, error, cause, attempt=attempt))
    if (state := decision.fields.get("state")) is not None:
        assert JobState(state) in reachable(JobState.RUNNING)
