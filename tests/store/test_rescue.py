"""Rescue: attempts of dead instances and attempts past their deadline come back, or fail visibly."""

from typing import Any

import psycopg
import pytest
from queue_plane import Plane, blocked


def overdue(plane: Plane) -> None:
    plane.rows("UPDATE awa_queue.leases SET deadline_at = clock_timestamp() - interval '1 minute'")


def by_job(jobs: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {job["job_id"]: job for job in jobs}


def test_attempts_of_a_dead_instance_come_back_unspent(plane: Plane, other: Plane) -> None:
    plane.register()
    other.register()
    ids = plane.insert(5)
    assert plane.claim(3).ids == ids[:3]
    other.claim()
    assert plane.rescue_stale() == []
    plane.die()
    rescued = by_job(other.rescue_stale())
    assert sorted(rescued) == ids[:3]
    for job in rescued.values():
        assert (job["state"], job["attempt"], job["rescues"], job["run_lease"]) == ("retryable", 0, 1, 1)
        assert (job["rescue_reason"], job["errors"][0]["rescue"]) == ("stale_instance", "stale_instance")
        assert (job["errors"][0]["attempt"], job["errors"][0]["instance"]) == (1, str(plane.instance))
    other.promote()
    again = other.claim().attempts
    assert [(attempt.job_id, attempt.attempt, attempt.run_lease) for attempt in again] == [
        (job_id, 1, 2) for job_id in ids[:3]
    ]


def test_attempts_of_an_instance_nobody_knows_come_back(plane: Plane) -> None:
    ids = plane.insert(2)
    plane.claim()
    assert sorted(by_job(plane.rescue_stale())) == ids


def test_a_beating_instance_keeps_its_attempts(plane: Plane) -> None:
    plane.register()
    plane.insert(2)
    plane.claim()
    assert plane.rows("SELECT awa.bury_instances()") == []
    assert plane.rescue_stale() == []


def test_a_beat_after_the_burial_does_not_raise_the_dead(plane: Plane) -> None:
    plane.register()
    plane.die()
    beat = "UPDATE awa.instances SET last_beat_at = clock_timestamp() WHERE id = %s AND dead_at IS NULL RETURNING true"
    assert plane.rows(beat, plane.instance) == []
    assert plane.rows("SELECT awa.bury_instances()") == []


def test_parked_attempts_need_no_instance(plane: Plane) -> None:
    (job_id,) = plane.insert()
    plane.take(job_id)
    plane.rows("UPDATE awa_queue.leases SET state = 'waiting_external'")
    assert plane.rescue_stale() == []


def test_what_an_attempt_noted_survives_its_worker(plane: Plane) -> None:
    job_id = plane.job(metadata={"a": 1})
    attempt = plane.take(job_id)
    plane.rows(
        "SELECT awa_queue.note(%s, %s, %s, '{\"percent\": 40}', '{\"b\": 2}')",
        job_id,
        attempt.run_lease,
        plane.instance,
    )
    (job,) = plane.rescue_stale()
    assert (job["progress"], job["metadata"]) == ({"percent": 40}, {"a": 1, "b": 2})


def test_a_late_completion_of_a_rescued_attempt_is_stale(plane: Plane) -> None:
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    plane.rescue_stale()
    assert plane.complete([attempt]) == set()
    assert plane.fail(attempt) is None
    assert plane.state(job_id) == "retryable"


def test_rescues_are_bounded_and_the_last_is_a_visible_failure(plane: Plane) -> None:
    plane.rows("INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('default', true)")
    (job_id,) = plane.insert()
    for rescues in (1, 2, 3):
        plane.take(job_id)
        (job,) = plane.rescue_stale(bound=3)
        assert (job["state"], job["rescues"]) == ("retryable", rescues)
        plane.promote()
    plane.take(job_id)
    (job,) = plane.rescue_stale(bound=3)
    assert job["state"] == "failed"
    assert job["errors"][-1]["error"] == "rescued 3 times: its attempts keep ending with their worker"
    dead = plane.row("SELECT dlq_reason, rescues FROM awa_queue.dlq_entries")
    assert dead["dlq_reason"] == "rescue_bound"


def test_a_pass_is_bounded(plane: Plane) -> None:
    plane.insert(5)
    plane.claim()
    assert [len(plane.rescue_stale(2)) for _ in range(4)] == [2, 2, 1, 0]


def test_two_rescuers_take_each_attempt_once(plane: Plane, other: Plane) -> None:
    ids = plane.insert(4)
    plane.claim()
    with other.transaction():
        first = by_job(other.rescue_stale(2))
        second = by_job(plane.rescue_stale(10))
    assert sorted([*first, *second]) == ids


@pytest.mark.parametrize("sweep", ["stale", "deadline"])
def test_an_attempt_without_a_body_is_written_off_and_stops_nobody(plane: Plane, sweep: str) -> None:
    ids = plane.insert(5)
    plane.claim()
    overdue(plane)
    plane.rows("DELETE FROM awa_queue.bodies WHERE job_id = %s", ids[2])
    jobs = by_job(plane.rescue_stale() if sweep == "stale" else plane.rescue_deadlines())
    assert [jobs[job_id]["state"] for job_id in ids] == ["retryable", "retryable", "failed", "retryable", "retryable"]
    assert plane.value("SELECT count(*) FROM awa_queue.leases") == 0
    assert "is not in segment" in plane.stored(ids[2])["errors"][0]["error"]


@pytest.mark.parametrize("sweep", ["stale", "deadline"])
def test_an_attempt_whose_body_is_elsewhere_keeps_what_is_known_of_it(plane: Plane, sweep: str) -> None:
    job_id = plane.job(unique_key="ab", metadata={"a": 1})
    plane.take(job_id)
    overdue(plane)
    plane.rows("UPDATE awa_queue.leases SET slot = 5")
    (job,) = plane.rescue_stale() if sweep == "stale" else plane.rescue_deadlines()
    assert (job["state"], job["kind"], job["metadata"]) == ("failed", "email", {"a": 1})
    assert plane.holder(b"\xab") is None


def test_an_unreadable_attempt_gives_its_unique_key_back(plane: Plane) -> None:
    job_id = plane.job(unique_key="ab")
    plane.take(job_id)
    plane.rows("DELETE FROM awa_queue.bodies")
    plane.rescue_stale()
    assert plane.state(job_id) == "failed"
    assert plane.holder(b"\xab") is None


def test_a_destination_that_is_taken_stops_nobody(plane: Plane) -> None:
    """A job id that is deferred already, by whatever damage, cannot be deferred again."""
    ids = plane.insert(3)
    plane.claim()
    plane.rows(
        "INSERT INTO awa_queue.deferred_jobs"
        " (job_id, kind, queue, state, args, priority, max_attempts, run_at, created_at)"
        " VALUES (%s, 'email', 'default', 'scheduled', '{}', 2, 1, now() + interval '1 hour', now())",
        ids[1],
    )
    jobs = by_job(plane.rescue_stale())
    assert [jobs[job_id]["state"] for job_id in ids] == ["retryable", "failed", "retryable"]


@pytest.mark.parametrize("sweep", ["stale", "deadline"])
def test_a_moment_of_the_server_fails_no_job(plane: Plane, other: Plane, sweep: str) -> None:
    (job_id,) = plane.insert()
    plane.take(job_id)
    overdue(plane)
    plane.rows("SET lock_timeout = '50ms'")
    with other.transaction():
        other.rows("LOCK TABLE awa_queue.deferred_jobs IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            plane.rescue_stale() if sweep == "stale" else plane.rescue_deadlines()
    assert plane.state(job_id) == "running"
    assert len(plane.rescue_stale()) == 1


def test_a_deadline_counts_the_attempt_and_backs_off(plane: Plane) -> None:
    (job_id,) = plane.insert()
    plane.take(job_id)
    assert plane.rescue_deadlines() == []
    overdue(plane)
    assert plane.rescue_deadlines(margin=3600.0) == []
    (job,) = plane.rescue_deadlines()
    assert (job["state"], job["attempt"], job["rescues"]) == ("retryable", 1, None)
    assert job["rescue_reason"] == "deadline_exceeded"
    assert job["errors"][0]["error"] == "hard deadline exceeded"
    wait = plane.value("SELECT extract(epoch FROM run_at - clock_timestamp())::float8 FROM awa.jobs")
    assert 1.5 < wait <= 2.5


def test_a_deadline_of_the_last_attempt_exhausts_the_job(plane: Plane) -> None:
    plane.rows("INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('default', true)")
    job_id = plane.job(max_attempts=1)
    plane.take(job_id)
    overdue(plane)
    (job,) = plane.rescue_deadlines()
    assert (job["state"], job["job_id"]) == ("failed", job_id)
    assert plane.value("SELECT dlq_reason FROM awa_queue.dlq_entries") == "max_attempts_exhausted"


def test_a_completion_in_flight_is_not_rescued(plane: Plane, other: Plane) -> None:
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    overdue(plane)
    with plane.transaction():
        assert plane.complete([attempt]) == {job_id}
        assert other.rescue_stale() == []
        assert other.rescue_deadlines() == []
    assert plane.state(job_id) == "completed"


def test_a_rescue_of_an_attempt_that_has_just_ended_makes_nothing_up(plane: Plane) -> None:
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    lease = plane.value("SELECT l::text FROM awa_queue.leases l")
    plane.complete([attempt])
    late = "SELECT awa_queue.rescue_one(%s::text::awa_queue.leases, %s, 5, 0)"
    assert plane.value(late, lease, "stale_instance") is None
    plane.rows("DELETE FROM awa_queue.bodies")
    assert plane.value(late, lease, "deadline_exceeded") is None
    assert plane.value("SELECT count(*) FROM awa_queue.terminal") == 0


def test_an_end_that_waits_for_a_rescue_is_stale(plane: Plane, other: Plane, watcher: Plane) -> None:
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    with other.transaction():
        assert len(other.rescue_stale()) == 1
        ending = blocked(plane, watcher, lambda: plane.retry(attempt))
    assert ending.join() is None
    assert plane.stored(job_id)["rescues"] == 1
