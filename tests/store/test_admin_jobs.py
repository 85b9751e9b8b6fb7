"""Single jobs in an operator's hands, and the view in which each appears exactly once."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from queue_plane import Plane, blocked

CANCEL = "SELECT awa.cancel_job(%s, 'enough')"
RETRY = "SELECT awa.retry_job(%s)"


def bring(plane: Plane, state: str) -> int:
    """Make a job of a state; returns its id."""
    if state == "scheduled":
        return plane.job(delay=3600.0)
    (job_id,) = plane.insert()
    if state == "available":
        return job_id
    if state == "parked":
        plane.rows("INSERT INTO awa.queues (queue, paused) VALUES ('default', true)")
        plane.turn("ready")
        assert plane.value("SELECT awa_queue.park_ready(0, 10)") == 1
        return job_id
    if state == "dead":
        plane.rows("INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('default', true)")
    attempt = plane.take(job_id)
    if state == "completed":
        plane.complete([attempt])
    elif state == "retryable":
        plane.retry(attempt, delay=3600.0)
    elif state in ("failed", "dead"):
        plane.fail(attempt)
    elif state == "cancelled":
        plane.end(attempt, state="cancelled", error="x", terminal=True)
    elif state == "waiting_external":
        plane.rows("UPDATE awa_queue.leases SET state = 'waiting_external'")
    return job_id


ALIVE = ["scheduled", "available", "parked", "running", "retryable", "waiting_external"]


@pytest.mark.parametrize("state", ALIVE)
def test_a_job_that_has_not_ended_is_cancelled(plane: Plane, state: str) -> None:
    job_id = bring(plane, state)
    job = plane.value(CANCEL, job_id)
    assert (job["state"], job["came_from"]) == ("cancelled", "available" if state == "parked" else state)
    stored = plane.stored(job_id)
    assert stored["state"] == "cancelled"
    assert stored["errors"][-1]["error"] == "cancelled: enough"
    assert plane.claim().ids == []
    plane.rows("UPDATE awa_queue.deferred_jobs SET run_at = now()")
    assert plane.promote()["moved"] == 0


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled", "dead"])
def test_a_job_that_has_ended_is_not_cancelled(plane: Plane, state: str) -> None:
    job_id = bring(plane, state)
    before = plane.value("SELECT awa.find_job(%s)", job_id)
    assert plane.value(CANCEL, job_id) is None
    assert plane.value("SELECT awa.find_job(%s)", job_id) == before


def test_an_unknown_job_is_neither_cancelled_nor_retried(plane: Plane) -> None:
    assert plane.value(CANCEL, 999) is None
    assert plane.value(RETRY, 999) is None


def test_the_worker_of_a_cancelled_job_is_told_and_comes_too_late(plane: Plane, other: Plane) -> None:
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    other.rows('LISTEN "awa:cancel"')
    plane.rows(CANCEL, job_id)
    (notice,) = other.connection.notifies(timeout=5.0, stop_after=1)
    assert json.loads(notice.payload) == {"job_id": job_id, "run_lease": 1}
    assert plane.complete([attempt]) == set()
    assert plane.retry(attempt) is None


@pytest.mark.parametrize(
    "state", [*[state for state in ALIVE if state not in ("running", "parked")], "failed", "cancelled", "dead"]
)
def test_a_retried_job_runs_again_from_the_start(plane: Plane, state: str) -> None:
    job_id = bring(plane, state)
    run_lease = plane.value("SELECT awa.find_job(%s)", job_id)["run_lease"]
    job = plane.value(RETRY, job_id)
    assert (job["state"], job["attempt"], job["run_lease"]) == ("available", 0, run_lease)
    again = plane.take(job_id)
    assert (again.attempt, again.run_lease) == (1, run_lease + 1)
    assert plane.complete([again]) == {job_id}
    assert plane.state(job_id) == "completed"


@pytest.mark.parametrize("state", ["running", "completed"])
def test_a_job_that_runs_or_is_done_is_not_retried(plane: Plane, state: str) -> None:
    job_id = bring(plane, state)
    assert plane.value(RETRY, job_id) is None
    assert plane.state(job_id) == state


def test_a_retry_forgets_rescues_and_keeps_errors(plane: Plane) -> None:
    (job_id,) = plane.insert()
    plane.take(job_id)
    plane.rescue_stale()
    plane.promote()
    plane.fail(plane.take(job_id))
    plane.value(RETRY, job_id)
    stored = plane.stored(job_id)
    assert (stored["rescues"], len(stored["errors"]), stored["finalized_at"]) == (0, 2, None)


def test_a_job_that_is_claimed_while_it_is_cancelled_is_cancelled_as_running(
    plane: Plane, other: Plane, watcher: Plane
) -> None:
    (job_id,) = plane.insert()
    with other.transaction():
        other.rows(
            "SELECT awa_queue.take('default', 1, 1000, %s, 0, NULL, '{}')",
            other.instance,
        )
        cancelling = blocked(plane, watcher, lambda: plane.value(CANCEL, job_id))
    assert cancelling.join()["came_from"] == "running"
    assert plane.state(job_id) == "cancelled"


def test_a_job_that_completes_while_it_is_cancelled_is_completed(plane: Plane, other: Plane, watcher: Plane) -> None:
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    with other.transaction():
        assert other.complete([attempt], instance=plane.instance) == {job_id}
        cancelling = blocked(plane, watcher, lambda: plane.value(CANCEL, job_id))
    assert cancelling.join() is None
    assert plane.state(job_id) == "completed"


def test_a_cancellation_while_the_body_is_carried_finds_it(plane: Plane, other: Plane, watcher: Plane) -> None:
    job_id = plane.job(metadata={"a": 1})
    plane.take(job_id)
    plane.turn("segments")
    with other.transaction():
        other.rows("SELECT awa_queue.carry_bodies(0, 10)")
        cancelling = blocked(plane, watcher, lambda: plane.value(CANCEL, job_id))
    assert cancelling.join()["metadata"] == {"a": 1}


@pytest.mark.parametrize("state", [*ALIVE, "completed", "failed", "cancelled"])
def test_every_job_is_shown_exactly_once(plane: Plane, state: str) -> None:
    job_id = bring(plane, state)
    plane.insert(3, queue="bystanders")
    assert plane.state(job_id) == ("available" if state == "parked" else state)
    assert plane.value("SELECT count(*) FROM awa.jobs") == 4


def test_a_job_with_bodies_in_several_segments_is_shown_once(plane: Plane) -> None:
    (job_id,) = plane.insert()
    for _ in range(3):
        plane.retry(plane.take(job_id))
        plane.turn("segments")
        plane.promote()
    assert plane.value("SELECT count(*) FROM awa_queue.bodies") == 4
    assert plane.state(job_id) == "available"
    attempt = plane.take(job_id)
    assert plane.state(job_id) == "running"
    plane.complete([attempt])
    assert plane.stored(job_id)["attempt"] == 4


def test_live_attempts_are_shown_once_while_everything_is_carried(plane: Plane, sessions: Callable[[], Plane]) -> None:
    other = sessions()
    ids = plane.insert(5)
    plane.claim()
    leases, segment = plane.current("leases"), plane.current("segments")
    plane.turn("leases")
    plane.turn("segments")

    def shown() -> list[tuple[Any, Any]]:
        return [(row["id"], row["state"]) for row in plane.rows("SELECT id, state FROM awa.jobs ORDER BY id")]

    running = [(job_id, "running") for job_id in ids]
    with other.transaction():
        other.rows("SELECT awa_queue.carry_leases(%s, 3)", leases)
        other.rows("SELECT awa_queue.carry_bodies(%s, 4)", segment)
        assert shown() == running
    assert shown() == running


@pytest.mark.parametrize("deadline", [0, -5])
def test_a_deadline_that_could_not_be_recorded_later_is_refused_at_once(plane: Plane, deadline: int) -> None:
    raw = json.dumps({"deadline_ms": deadline})
    with pytest.raises(psycopg.errors.CheckViolation):
        plane.rows(
            "SELECT awa.insert_jobs(ARRAY['{}'], ARRAY['email'], ARRAY['default'], ARRAY[2]::smallint[],"
            " ARRAY[25]::smallint[], ARRAY[%s])",
            raw,
        )


def test_a_unique_key_that_could_not_be_recorded_later_is_refused_at_once(plane: Plane) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        plane.keyed(b"x" * 201, {"available"})
