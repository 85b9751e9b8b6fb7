"""Unique keys through every move: a job holds its key exactly in the states of its mask, and a newer holder wins."""

from collections.abc import Callable

import pytest
from queue_plane import STATES, Plane, outcome_of

KEY = b"the key"

MASKS = {
    "the default": {"scheduled", "available", "running", "completed", "retryable", "waiting_external"},
    "every state": set(STATES),
    "while waiting": {"scheduled", "available", "retryable"},
    "while it runs": {"running"},
    "without running": set(STATES) - {"running"},
    "without available": set(STATES) - {"available"},
    "until it is done": {"scheduled", "available", "running", "retryable", "waiting_external"},
    "once it has ended": {"completed", "failed", "cancelled"},
    "failed alone": {"failed"},
    "scheduled and running": {"scheduled", "running"},
}


@pytest.fixture(params=list(MASKS))
def mask(request: pytest.FixtureRequest) -> set[str]:
    return MASKS[request.param]


def running(plane: Plane) -> dict[str, object]:
    """The one live attempt, as settle wants it."""
    return plane.row("SELECT job_id, run_lease FROM awa_queue.leases")


def ended_as(plane: Plane, **outcome: object) -> Callable[[], object]:
    return lambda: plane.settle({**running(plane), **outcome})


def paths(plane: Plane) -> dict[str, list[tuple[Callable[[], object], str]]]:
    """Lives of a job: each step, and the state it leads to."""

    def claim() -> None:
        assert plane.claim(1).attempts[0].kind is not None

    def complete() -> None:
        lease = running(plane)
        plane.rows(
            "SELECT awa_queue.complete(ARRAY[%s]::bigint[], ARRAY[%s]::bigint[], ARRAY[0]::smallint[], %s)",
            lease["job_id"],
            lease["run_lease"],
            plane.instance,
        )

    def due() -> None:
        plane.rows("UPDATE awa_queue.deferred_jobs SET run_at = clock_timestamp()")
        assert plane.promote()["moved"] == 1

    def retry_it() -> None:
        plane.rows("SELECT awa.retry_job(id) FROM awa.jobs")

    def cancel_it() -> None:
        plane.rows("SELECT awa.cancel_job(id) FROM awa.jobs")

    def rescue() -> None:
        assert len(plane.rescue_stale()) == 1

    def overrun() -> None:
        plane.rows("UPDATE awa_queue.leases SET deadline_at = clock_timestamp() - interval '1 minute'")
        assert len(plane.rescue_deadlines()) == 1

    again = ended_as(plane, state="retryable", delay=0.0, error="x")
    snooze = ended_as(plane, state="scheduled", delay=60.0, uncount=True, snooze=True)
    interrupted = ended_as(plane, state="available", uncount=True, interrupted=True)
    give_back = ended_as(plane, give_back=True)
    fail = ended_as(plane, state="failed", error="x", terminal=True)
    cancel = ended_as(plane, state="cancelled", error="x", terminal=True)
    return {
        "to completion": [(claim, "running"), (complete, "completed")],
        "retried": [(claim, "running"), (again, "retryable"), (due, "available"), (claim, "running")],
        "snoozed": [(claim, "running"), (snooze, "scheduled"), (due, "available"), (claim, "running")],
        "interrupted": [(claim, "running"), (interrupted, "available"), (claim, "running")],
        "given back": [(claim, "running"), (give_back, "available"), (claim, "running")],
        "failed and retried": [(claim, "running"), (fail, "failed"), (retry_it, "available")],
        "cancelled and retried": [(claim, "running"), (cancel, "cancelled"), (retry_it, "available")],
        "cancelled while it waits": [(cancel_it, "cancelled"), (retry_it, "available")],
        "cancelled while it runs": [(claim, "running"), (cancel_it, "cancelled")],
        "rescued": [(claim, "running"), (rescue, "retryable"), (due, "available"), (claim, "running")],
        "over its deadline": [(claim, "running"), (overrun, "retryable"), (due, "available")],
    }


PATHS = [
    *("to completion", "retried", "snoozed", "interrupted", "given back", "failed and retried"),
    *("cancelled and retried", "cancelled while it waits", "cancelled while it runs", "rescued", "over its deadline"),
]


@pytest.mark.parametrize("path", PATHS)
def test_a_job_holds_its_key_exactly_in_the_states_of_its_mask(plane: Plane, mask: set[str], path: str) -> None:
    job_id = plane.keyed(KEY, mask)
    assert plane.holder(KEY) == (job_id if "available" in mask else None)
    for step, state in paths(plane)[path]:
        step()
        assert plane.state(job_id) == state
        assert plane.holder(KEY) == (job_id if state in mask else None), state


def test_a_scheduled_job_holds_its_key_by_its_mask(plane: Plane, mask: set[str]) -> None:
    job_id = plane.keyed(KEY, mask, delay=60.0)
    assert plane.holder(KEY) == (job_id if "scheduled" in mask else None)
    plane.rows("UPDATE awa_queue.deferred_jobs SET run_at = clock_timestamp()")
    plane.promote()
    assert plane.state(job_id) == "available"
    assert plane.holder(KEY) == (job_id if "available" in mask else None)


def test_a_dead_letter_holds_its_key_as_a_failed_job_does(plane: Plane, mask: set[str]) -> None:
    plane.rows("INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('default', true)")
    job_id = plane.keyed(KEY, mask)
    plane.fail(plane.take(job_id))
    assert plane.value("SELECT count(*) FROM awa_queue.dlq_entries") == 1
    assert plane.holder(KEY) == (job_id if "failed" in mask else None)


# A key that is free while its job runs: another job takes it, and the first has to come back.

WHILE_WAITING = MASKS["while waiting"]


@pytest.fixture
def superseded(plane: Plane) -> tuple[int, int]:
    """A running job and the newer one that has its key."""
    older = plane.keyed(KEY, WHILE_WAITING)
    plane.take(older)
    newer = plane.keyed(KEY, WHILE_WAITING)
    assert plane.holder(KEY) == newer
    return older, newer


@pytest.mark.parametrize(
    "outcome",
    [
        {"state": "retryable", "delay": 0.0, "error": "it broke"},
        {"state": "scheduled", "delay": 9.0, "uncount": True, "snooze": True},
        {"state": "available", "uncount": True, "interrupted": True},
        {"give_back": True},
    ],
    ids=["retry", "snooze", "interrupted", "given back"],
)
def test_a_job_that_comes_back_to_a_taken_key_ends_as_a_duplicate(
    plane: Plane, superseded: tuple[int, int], outcome: dict[str, object]
) -> None:
    older, newer = superseded
    landed = plane.settle({**running(plane), **outcome})
    assert landed[older]["state"] == "cancelled"
    assert_duplicate(plane, older, newer)
    assert [error["error"] for error in plane.stored(older)["errors"][:-1]] == [
        text for text in [outcome.get("error")] if text
    ]


def test_a_rescued_job_whose_key_is_taken_ends_as_a_duplicate_and_stops_nobody(
    plane: Plane, superseded: tuple[int, int]
) -> None:
    older, newer = superseded
    bystanders = plane.insert(10, queue="other")
    assert plane.claim(10, "other").ids == bystanders
    plane.register()
    plane.die()
    rescued = {job["job_id"]: job["state"] for job in plane.rescue_stale()}
    assert rescued == {older: "cancelled", **dict.fromkeys(bystanders, "retryable")}
    assert_duplicate(plane, older, newer)


def test_a_job_over_its_deadline_whose_key_is_taken_ends_as_a_duplicate_and_stops_nobody(
    plane: Plane, superseded: tuple[int, int]
) -> None:
    older, newer = superseded
    bystanders = plane.insert(10, queue="other")
    plane.claim(10, "other")
    plane.rows("UPDATE awa_queue.leases SET deadline_at = clock_timestamp() - interval '1 minute'")
    rescued = {job["job_id"]: job["state"] for job in plane.rescue_deadlines()}
    assert rescued == {older: "cancelled", **dict.fromkeys(bystanders, "retryable")}
    assert_duplicate(plane, older, newer)


def test_a_promoted_job_whose_key_is_taken_ends_as_a_duplicate_and_stops_nobody(plane: Plane) -> None:
    older = plane.keyed(KEY, {"available", "running"}, delay=0.0)
    newer = plane.keyed(KEY, {"available", "running"})
    bystanders = [plane.job(delay=0.0) for _ in range(10)]
    assert plane.promote() == {"moved": 11, "failed": 0, "next_due": None}
    assert sorted(plane.claim().ids) == sorted([newer, *bystanders])
    assert_duplicate(plane, older, newer, state="running")


def test_a_claimed_job_that_needs_a_taken_key_ends_as_a_duplicate_and_stops_nobody(plane: Plane) -> None:
    older = plane.keyed(KEY, {"running"})
    newer = plane.keyed(KEY, {"available", "running"}, queue="other")
    bystanders = plane.insert(10)
    claimed = plane.claim()
    assert claimed.ids == bystanders
    assert [attempt.job_id for attempt in claimed.attempts if attempt.kind is None] == [older]
    assert_duplicate(plane, older, newer)


def test_a_job_completes_although_its_key_is_taken(plane: Plane) -> None:
    older = plane.keyed(KEY, {"available", "completed"})
    attempt = plane.take(older)
    newer = plane.keyed(KEY, {"available", "completed"})
    assert plane.complete([attempt]) == {older}
    assert plane.state(older) == "completed"
    assert plane.holder(KEY) == newer


def test_a_failure_is_recorded_although_the_key_is_taken(plane: Plane) -> None:
    older = plane.keyed(KEY, {"available", "failed"})
    attempt = plane.take(older)
    newer = plane.keyed(KEY, {"available", "failed"})
    plane.fail(attempt)
    assert_duplicate(plane, older, newer)
    assert plane.stored(older)["errors"][0]["error"] == "it broke"


def test_a_job_that_is_retried_by_hand_does_not_take_a_key_from_a_newer_one(plane: Plane) -> None:
    older = plane.keyed(KEY, WHILE_WAITING)
    plane.fail(plane.take(older))
    plane.keyed(KEY, WHILE_WAITING)
    with pytest.raises(Exception, match="holds the unique key"):
        plane.rows("SELECT awa.retry_job(%s)", older)
    assert plane.state(older) == "failed"


def test_a_duplicate_gives_up_a_key_that_cancelled_jobs_would_hold(plane: Plane) -> None:
    older = plane.keyed(KEY, {*WHILE_WAITING, "cancelled"})
    attempt = plane.take(older)
    newer = plane.keyed(KEY, {*WHILE_WAITING, "cancelled"})
    plane.settle(outcome_of(attempt, state="retryable", delay=0.0))
    assert plane.stored(older)["unique_key"] is None
    assert_duplicate(plane, older, newer)


def assert_duplicate(plane: Plane, older: int, newer: int, state: str = "available") -> None:
    stored = plane.stored(older)
    assert stored["state"] == "cancelled"
    assert stored["errors"][-1]["duplicate"] is True
    assert plane.state(newer) == state
    assert plane.holder(KEY) == newer
