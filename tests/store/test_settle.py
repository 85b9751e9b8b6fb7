"""Settle: every other end of an attempt, each recorded whatever is wrong with it."""

import json
from typing import Any

import psycopg
import pytest
from queue_plane import Attempt, Plane, blocked, outcome_of

NEVER_BACK = [
    ("retry", {"state": "retryable", "delay": 0.0, "error": "x"}),
    ("snooze", {"state": "scheduled", "delay": 0.0, "uncount": True, "snooze": True}),
    ("interrupted", {"state": "available", "uncount": True, "interrupted": True}),
    ("give back", {"give_back": True}),
]


@pytest.fixture
def attempt(plane: Plane) -> Attempt:
    (job_id,) = plane.insert()
    return plane.take(job_id)


def landed(job: dict[str, Any] | None) -> dict[str, Any]:
    assert job is not None
    return job


def test_a_retry_waits_and_counts(plane: Plane, attempt: Attempt) -> None:
    job = landed(plane.retry(attempt, delay=60.0))
    assert (job["state"], job["attempt"], job["run_lease"]) == ("retryable", 1, 1)
    (error,) = job["errors"]
    assert (error["error"], error["attempt"], error["instance"]) == ("it broke", 1, str(plane.instance))
    assert plane.promote()["moved"] == 0
    wait = plane.value("SELECT extract(epoch FROM run_at - clock_timestamp())::float8 FROM awa.jobs")
    assert 55 < wait <= 60


def test_a_snooze_does_not_count_and_is_counted_for_itself(plane: Plane, attempt: Attempt) -> None:
    job = landed(plane.end(attempt, state="scheduled", delay=60.0, uncount=True, snooze=True))
    assert (job["state"], job["attempt"], job["snoozes"]) == ("scheduled", 0, 1)
    assert job["errors"] is None


def test_snoozes_stop_counting_where_integers_end(plane: Plane, attempt: Attempt) -> None:
    plane.rows("UPDATE awa_queue.bodies SET snoozes = 2147483647")
    assert landed(plane.end(attempt, state="scheduled", delay=0.0, snooze=True))["snoozes"] == 2147483647


def test_an_interrupted_attempt_is_available_at_once_and_does_not_count(plane: Plane, attempt: Attempt) -> None:
    job = landed(plane.end(attempt, state="available", uncount=True, interrupted=True))
    assert (job["state"], job["attempt"], job["interrupted"]) == ("available", 0, 1)
    assert plane.take(attempt.job_id).attempt == 1


def test_what_was_interrupted_queues_behind_those_that_wait(plane: Plane, attempt: Attempt) -> None:
    waiting = plane.insert(2)
    plane.end(attempt, state="available", uncount=True, interrupted=True)
    assert plane.claim().ids == [*waiting, attempt.job_id]


def test_what_is_given_back_has_its_old_place(plane: Plane, attempt: Attempt) -> None:
    waiting = plane.insert(2)
    before = plane.stored(attempt.job_id)["created_at"]
    job = landed(plane.end(attempt, give_back=True))
    assert (job["state"], job["attempt"], job["run_lease"]) == ("available", 0, 1)
    assert (job["attempted_at"], job["instance"]) == (None, None)
    assert plane.value("SELECT min(ready_at) FROM awa_queue.ready") == before
    assert plane.claim().ids == [attempt.job_id, *waiting]


def test_what_is_given_back_keeps_its_checkpoint(plane: Plane, attempt: Attempt) -> None:
    noted = plane.value(
        "SELECT awa_queue.note(%s, %s, %s, '{\"percent\": 40}', '{\"a\": 1}')",
        attempt.job_id,
        attempt.run_lease,
        plane.instance,
    )
    assert noted is True
    plane.end(attempt, give_back=True, metadata={"b": 2})
    extras = json.loads(plane.take(attempt.job_id).extras or "{}")
    assert (extras["progress"], extras["metadata"]) == ({"percent": 40}, {"a": 1, "b": 2})


def test_progress_and_metadata_go_with_every_end(plane: Plane, attempt: Attempt) -> None:
    job = landed(plane.end(attempt, state="retryable", delay=0.0, progress={"percent": 9}, metadata={"a": 1}))
    assert (job["progress"], job["metadata"]) == ({"percent": 9}, {"a": 1})


@pytest.mark.parametrize("outcome", [outcome for _, outcome in NEVER_BACK], ids=[name for name, _ in NEVER_BACK])
def test_the_lease_number_of_a_job_only_grows(plane: Plane, outcome: dict[str, Any]) -> None:
    (job_id,) = plane.insert()
    for run_lease in range(1, 5):
        attempt = plane.take(job_id)
        assert attempt.run_lease == run_lease
        assert landed(plane.end(attempt, **outcome))["run_lease"] == run_lease
        plane.promote()


def test_the_lease_number_survives_every_way_back(plane: Plane) -> None:
    plane.rows("INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('default', true)")
    (job_id,) = plane.insert()
    plane.fail(plane.take(job_id))
    assert plane.value("SELECT count(*) FROM awa_queue.dlq_entries") == 1
    plane.rows("SELECT awa.retry_job(%s)", job_id)
    again = plane.take(job_id)
    assert (again.attempt, again.run_lease) == (1, 2)
    plane.rescue_stale()
    plane.promote()
    third = plane.take(job_id)
    assert (third.attempt, third.run_lease) == (1, 3)
    plane.rows("SELECT awa.cancel_job(%s)", job_id)
    plane.rows("SELECT awa.retry_job(%s)", job_id)
    fourth = plane.take(job_id)
    assert (fourth.attempt, fourth.run_lease) == (1, 4)


def test_errors_are_bounded_and_keep_both_ends(plane: Plane) -> None:
    (job_id,) = plane.insert()
    for n in range(130):
        plane.end(plane.take(job_id), state="available", error=f"error {n}", uncount=True)
    errors = [error["error"] for error in plane.stored(job_id)["errors"]]
    assert errors == [f"error {n}" for n in (*range(10), *range(40, 130))]


def test_a_failed_job_is_kept_whole(plane: Plane) -> None:
    job_id = plane.job(metadata={"a": 1}, tags=["t"], deadline=5)
    plane.fail(plane.take(job_id))
    stored = plane.stored(job_id)
    assert (stored["state"], stored["metadata"], stored["tags"]) == ("failed", {"a": 1}, ["t"])
    assert (stored["errors"][0]["terminal"], stored["deadline_ms"]) == (True, 5000)
    assert stored["finalized_at"] is not None


def test_dead_letters_are_a_matter_of_the_queue(plane: Plane) -> None:
    plane.rows("INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('kept', true), ('not kept', false)")
    jobs = {queue: plane.insert(queue=queue)[0] for queue in ("kept", "not kept", "default")}
    for queue, job_id in jobs.items():
        plane.fail(plane.take(job_id, queue), reason="terminal_error")
    dead = plane.rows("SELECT job_id, dlq_reason, state FROM awa_queue.dlq_entries")
    assert dead == [{"job_id": jobs["kept"], "dlq_reason": "terminal_error", "state": "failed"}]
    assert sorted(row["id"] for row in plane.rows("SELECT id FROM awa.jobs")) == [jobs["not kept"], jobs["default"]]


def test_a_cancelled_job_is_no_dead_letter(plane: Plane) -> None:
    plane.rows("INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('default', true)")
    (job_id,) = plane.insert()
    plane.end(plane.take(job_id), state="cancelled", error="cancelled: enough", terminal=True, reason="enough")
    assert plane.state(job_id) == "cancelled"


def test_a_stale_end_changes_nothing(plane: Plane, other: Plane, attempt: Attempt) -> None:
    assert other.end(attempt, state="failed") is None
    assert plane.settle({**outcome_of(attempt, state="failed"), "run_lease": 2}) == {}
    assert plane.state(attempt.job_id) == "running"


@pytest.mark.parametrize(
    "outcome",
    [
        {"state": "retryable", "delay": 1e300, "error": "x"},
        {"state": "retryable", "delay": "soon", "error": "x"},
        {"state": "nowhere", "error": "x"},
        {"state": "completed", "error": "x"},
    ],
    ids=["a delay beyond time", "no delay at all", "no such state", "not this way"],
)
def test_an_end_that_cannot_be_recorded_as_asked_is_recorded_as_failed(plane: Plane, outcome: dict[str, Any]) -> None:
    ids = plane.insert(3)
    attempts = plane.claim().attempts
    usual = {"state": "retryable", "delay": 0.0}
    jobs = plane.settle(
        outcome_of(attempts[0], **usual), outcome_of(attempts[1], **outcome), outcome_of(attempts[2], **usual)
    )
    assert [jobs[job_id]["state"] for job_id in ids] == ["retryable", "failed", "retryable"]
    assert "could not be recorded as asked" in plane.stored(ids[1])["errors"][-1]["error"]


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM awa_queue.bodies WHERE job_id = %s",
        "UPDATE awa_queue.bodies SET errors = '7' WHERE job_id = %s",
        "INSERT INTO awa_queue.terminal (job_id, kind, queue, state, args, priority, max_attempts, run_at, created_at)"
        " VALUES (%s, 'email', 'default', 'failed', '{}', 2, 1, now(), now())",
    ],
    ids=["no body", "errors that are no list", "an id that has ended before"],
)
def test_an_end_that_cannot_even_be_recorded_as_failed_is_written_off(plane: Plane, damage: str) -> None:
    ids = plane.insert(3)
    attempts = plane.claim().attempts
    plane.connection.execute(damage.encode(), [ids[1]])
    jobs = plane.settle(*(outcome_of(attempt, state="failed", error="x", reason="x") for attempt in attempts))
    assert sorted(jobs) == ids
    assert [plane.state(job_id) for job_id in ids] == ["failed"] * 3
    assert plane.value("SELECT count(*) FROM awa_queue.leases") == 0
    assert plane.stored(ids[1])["errors"][-1]["terminal"] is True


def test_a_moment_of_the_server_is_not_the_end_of_a_job(plane: Plane, other: Plane, attempt: Attempt) -> None:
    plane.rows("SET lock_timeout = '50ms'")
    with other.transaction():
        other.rows("LOCK TABLE awa_queue.deferred_jobs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            plane.retry(attempt)
    assert plane.state(attempt.job_id) == "running"
    assert landed(plane.retry(attempt))["state"] == "retryable"


def test_a_body_that_is_carried_while_its_attempt_ends_is_found(plane: Plane, other: Plane, watcher: Plane) -> None:
    """T1: the lease is locked first, and the body is read in a statement after that."""
    job_id = plane.job(metadata={"a": 1})
    attempt = plane.take(job_id)
    slot = plane.current("segments")
    plane.turn("segments")
    with other.transaction():
        assert other.value("SELECT awa_queue.carry_bodies(%s, 100)", slot) == 1
        ending = blocked(plane, watcher, lambda: plane.retry(attempt))
    assert landed(ending.join())["metadata"] == {"a": 1}
    assert plane.state(job_id) == "retryable"


ONE_STATEMENT = """
WITH gone AS (DELETE FROM awa_queue.leases l WHERE l.job_id = %s RETURNING l.*)
INSERT INTO awa_queue.deferred_jobs
SELECT (awa_queue.as_row(b, 'retryable', g.attempt, g.run_lease, NULL, NULL, NULL, NULL)).*
FROM gone g JOIN awa_queue.bodies b ON b.slot = g.slot AND b.job_id = g.job_id RETURNING job_id
"""


def test_a_move_in_one_statement_would_lose_the_job(plane: Plane, other: Plane, watcher: Plane) -> None:
    """The broken twin of the guard above: its snapshot is older than the lease it waited for."""
    (job_id,) = plane.insert()
    plane.take(job_id)
    slot = plane.current("segments")
    plane.turn("segments")
    with other.transaction():
        other.rows("SELECT awa_queue.carry_bodies(%s, 100)", slot)
        ending = blocked(plane, watcher, lambda: plane.rows(ONE_STATEMENT, job_id))
    assert ending.join() == []
    assert plane.rows("SELECT FROM awa.jobs WHERE id = %s AND state <> 'completed'", job_id) == []


def test_a_stopping_instance_gives_back_what_it_holds(plane: Plane, other: Plane) -> None:
    mine = plane.insert(3)
    plane.claim()
    (theirs,) = other.insert()
    other.take(theirs)
    assert plane.value("SELECT awa_queue.release_instance(%s)", plane.instance) == 3
    assert [plane.state(job_id) for job_id in mine] == ["available"] * 3
    assert plane.state(theirs) == "running"
    assert [(again.attempt, again.run_lease) for again in other.claim().attempts] == [(1, 2)] * 3


def test_one_damaged_attempt_does_not_keep_the_others_from_being_given_back(plane: Plane) -> None:
    ids = plane.insert(3)
    plane.claim()
    plane.rows("DELETE FROM awa_queue.bodies WHERE job_id = %s", ids[1])
    assert plane.value("SELECT awa_queue.release_instance(%s)", plane.instance) == 3
    assert [plane.state(job_id) for job_id in ids] == ["available", "failed", "available"]


def test_a_worker_learns_which_of_its_attempts_are_lost(plane: Plane) -> None:
    ids = plane.insert(3)
    attempts = plane.claim().attempts
    plane.rows("SELECT awa.cancel_job(%s)", ids[0])
    plane.complete([attempts[1]])
    lost = plane.rows("SELECT * FROM awa_queue.lost(%s::bigint[], ARRAY[1, 1, 1]::bigint[], %s)", ids, plane.instance)
    assert [(row["job_id"], row["cancelled"]) for row in lost] == [(ids[0], True), (ids[1], False)]
