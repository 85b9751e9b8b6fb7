"""Callbacks of attempts that began in the canonical plane, before and after the flip."""

import pytest
from canonical_plane import CanonicalPlane, flip
from psycopg import sql
from psycopg.types.json import Jsonb
from queue_plane import Attempt

WAITS = ["running", "inside", "parked"]
LANDED = {
    "complete_external": {"running": "completed", "inside": "completed", "parked": "completed"},
    "fail_external": {"running": "failed", "inside": "failed", "parked": "failed"},
    "retry_external": {"inside": "available", "parked": "available"},
    "resume_external": {"running": "running", "inside": "running", "parked": "available"},
    "heartbeat_callback": {"running": "running", "inside": "waiting_external", "parked": "waiting_external"},
}
"""Where each resolution leads from each way of waiting: the same as in the queue plane."""


def registered(plane: CanonicalPlane, how: str = "running", seconds: float = 600.0) -> tuple[Attempt, str]:
    """An attempt with a callback: it still runs, waits inside its handler, or is parked."""
    attempt = plane.take(plane.job(queue="calls"), "calls")
    callback = str(
        plane.value(
            "SELECT awa_queue.register_callback(%s, %s, %s, %s, NULL)",
            attempt.job_id, attempt.run_lease, plane.instance, seconds,
        )
    )  # fmt: skip
    if how == "inside":
        assert look(plane, attempt, callback) == "waiting"
    elif how == "parked":
        assert park(plane, attempt, callback) == "parked"
    return attempt, callback


def look(plane: CanonicalPlane, attempt: Attempt, callback: str) -> str:
    status: str = plane.row(
        "SELECT status FROM awa_queue.await_callback(%s, %s, %s, %s, 5)",
        callback, attempt.job_id, attempt.run_lease, plane.instance,
    )["status"]  # fmt: skip
    return status


def park(plane: CanonicalPlane, attempt: Attempt, callback: str) -> str:
    entry = {"job_id": attempt.job_id, "run_lease": attempt.run_lease, "callback_id": callback, "progress": {"p": 1}}
    outcome: str = plane.row("SELECT outcome FROM awa_queue.park(%s, %s)", plane.instance, Jsonb([entry]))["outcome"]
    return outcome


def backlog(plane: CanonicalPlane) -> int:
    count: int = plane.value("SELECT awa.canonical_live_backlog()")
    return count


@pytest.mark.parametrize("is_flipped", [False, True], ids=["canonical", "flipped"])
@pytest.mark.parametrize("verb", LANDED)
def test_a_resolution_lands_where_it_would_in_the_queue_plane(
    plane: CanonicalPlane, verb: str, is_flipped: bool
) -> None:
    waiting = {how: registered(plane, how) for how in LANDED[verb]}
    if is_flipped:
        flip(plane)
    statement = sql.SQL("SELECT awa.{}(%s)").format(sql.Identifier(verb))
    for how, (attempt, callback) in waiting.items():
        answer = plane.value(statement, callback)
        state = LANDED[verb][how]
        assert (answer["job_id"], answer["state"]) == (attempt.job_id, state), how
        stored = plane.stored(attempt.job_id)
        assert (stored["state"], stored["run_lease"]) == (state, 1), how
        if how == "parked" and state != "available":
            assert stored["progress"] == (None if state == "completed" else {"p": 1})
        if verb != "heartbeat_callback" and not (verb == "resume_external" and how != "parked"):
            assert plane.value(statement, callback) is None, how
            assert plane.complete([attempt]) == set(), how
    staying = sum(state in ("running", "waiting_external") for state in LANDED[verb].values())
    landed = sum(state == "available" for state in LANDED[verb].values())
    assert backlog(plane) == staying + (0 if is_flipped else landed)


@pytest.mark.parametrize("is_flipped", [False, True], ids=["canonical", "flipped"])
def test_a_wait_that_is_over_is_retried_and_the_last_one_fails(plane: CanonicalPlane, is_flipped: bool) -> None:
    (first, _), (last, _) = registered(plane, "parked"), registered(plane, "parked")
    plane.rows("UPDATE awa.jobs_hot SET max_attempts = 1 WHERE job_id = %s", last.job_id)
    running, _ = registered(plane)
    plane.rows("UPDATE awa_queue.callbacks SET timeout_at = now() - interval '1 second'")
    if is_flipped:
        flip(plane)
    rescued = {row["r"]["job_id"]: row["r"] for row in plane.rows("SELECT r FROM awa_queue.rescue_callbacks(10, 5) r")}
    assert {job_id: job["state"] for job_id, job in rescued.items()} == {
        first.job_id: "retryable", last.job_id: "failed",
    }  # fmt: skip
    assert plane.state(running.job_id) == "running"
    assert backlog(plane) == (1 if is_flipped else 2)


def test_a_handler_that_waits_inside_goes_on_with_the_answer(plane: CanonicalPlane) -> None:
    attempt, callback = registered(plane, "inside")
    plane.rows(
        "SELECT awa_queue.leave_callback(%s, %s, %s, %s, 5)",
        callback, attempt.job_id, attempt.run_lease, plane.instance,
    )  # fmt: skip
    assert plane.state(attempt.job_id) == "running"
    assert plane.stored(attempt.job_id)["deadline_at"] is not None
    assert look(plane, attempt, callback) == "waiting"
    flip(plane)
    assert plane.value("SELECT awa.resume_external(%s, '7')", callback)["state"] == "running"
    assert look(plane, attempt, callback) == "resumed"
    assert plane.stored(attempt.job_id)["metadata"] == {"awa:callback_result": 7}
    assert plane.complete([attempt]) == {attempt.job_id}


@pytest.mark.parametrize("how", WAITS)
def test_a_job_with_a_callback_is_cancelled_by_an_operator(plane: CanonicalPlane, how: str) -> None:
    attempt, callback = registered(plane, how)
    flip(plane)
    assert plane.value("SELECT awa.cancel_job(%s)", attempt.job_id)["state"] == "cancelled"
    assert plane.value("SELECT awa.complete_external(%s)", callback) is None
    assert backlog(plane) == 0


def test_a_registration_is_taken_back_and_its_end_is_a_violation(plane: CanonicalPlane) -> None:
    attempt, callback = registered(plane)
    assert plane.value(
        "SELECT awa_queue.cancel_callback(%s, %s, %s, %s)",
        callback, attempt.job_id, attempt.run_lease, plane.instance,
    )  # fmt: skip
    assert park(plane, attempt, callback) == "violation"
    assert plane.state(attempt.job_id) == "failed"
