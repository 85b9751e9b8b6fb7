"""Promote: what is due becomes available, and one row that cannot stops nobody."""

import psycopg
import pytest
from queue_plane import Plane


def test_what_is_due_is_promoted_and_what_is_not_waits(plane: Plane) -> None:
    due = [plane.job(delay=0.0) for _ in range(3)]
    later = plane.job(delay=60.0)
    promoted = plane.promote()
    assert (promoted["moved"], promoted["failed"]) == (3, 0)
    assert promoted["next_due"] == plane.stored(later)["run_at"]
    assert plane.claim().ids == due
    assert plane.state(later) == "scheduled"


def test_jobs_are_promoted_in_the_order_they_are_due(plane: Plane) -> None:
    ids = [plane.job(delay=0.0) for _ in range(20)]
    plane.rows("UPDATE awa_queue.deferred_jobs SET run_at = now() - job_id * interval '1 second'")
    plane.promote()
    assert plane.claim().ids == ids[::-1]


def test_of_those_due_at_once_the_more_urgent_is_first(plane: Plane) -> None:
    ids = [plane.job(delay=0.0, priority=priority) for priority in (3, 1, 2)]
    plane.rows("UPDATE awa_queue.deferred_jobs SET run_at = date_trunc('day', now())")
    plane.promote()
    by_pos = [row["job_id"] for row in plane.rows("SELECT job_id FROM awa_queue.ready ORDER BY pos")]
    assert by_pos == [ids[1], ids[2], ids[0]]


def test_a_promoted_job_queues_behind_those_that_wait(plane: Plane) -> None:
    late = plane.job(delay=0.0)
    waiting = plane.insert(2)
    plane.promote()
    assert plane.claim().ids == [*waiting, late]


def test_a_pass_is_bounded(plane: Plane) -> None:
    for _ in range(5):
        plane.job(delay=0.0)
    assert [plane.promote(2)["moved"] for _ in range(4)] == [2, 2, 1, 0]


def test_everything_about_a_job_survives_the_promotion(plane: Plane) -> None:
    job_id = plane.job(delay=0.0, metadata={"a": None}, tags=["t"], deadline=7, priority=3, max_attempts=4)
    attempt_one = ("state", "run_at")
    before = {name: value for name, value in plane.stored(job_id).items() if name not in attempt_one}
    plane.promote()
    after = {name: value for name, value in plane.stored(job_id).items() if name not in attempt_one}
    assert after == before


def test_a_job_may_come_back_to_the_segment_that_still_has_its_body(plane: Plane) -> None:
    (job_id,) = plane.insert()
    for _ in range(3):
        plane.retry(plane.take(job_id))
        plane.promote()
    assert plane.state(job_id) == "available"
    assert plane.value("SELECT count(*) FROM awa_queue.bodies") == 1


def test_two_promoters_do_not_wait_for_each_other(plane: Plane, other: Plane) -> None:
    ids = [plane.job(delay=0.0) for _ in range(4)]
    with other.transaction():
        assert other.promote(2)["moved"] == 2
        assert plane.promote(10)["moved"] == 2
    assert sorted(plane.claim().ids) == ids


POISON = "UPDATE awa_queue.deferred_jobs SET args = '{\"poison\": true}' WHERE job_id = ANY (%s)"


@pytest.fixture
def poisonous(plane: Plane) -> Plane:
    """A database in which jobs with certain args cannot be made available: their bodies are refused."""
    plane.rows("ALTER TABLE awa_queue.bodies ADD CONSTRAINT antidote CHECK (NOT args ? 'poison')")
    return plane


def test_one_poison_row_among_many_fails_alone(poisonous: Plane) -> None:
    plane = poisonous
    ids = [plane.job(delay=0.0) for _ in range(50)]
    plane.rows(POISON, [ids[20]])
    assert plane.promote() == {"moved": 49, "failed": 1, "next_due": None}
    assert plane.claim().ids == [*ids[:20], *ids[21:]]
    stored = plane.stored(ids[20])
    assert stored["state"] == "failed"
    assert stored["errors"][-1]["error"].startswith("could not be promoted: ")


def test_poison_gives_its_unique_key_back(poisonous: Plane) -> None:
    plane = poisonous
    job_id = plane.job(delay=0.0, unique_key="ab")
    plane.rows(POISON, [job_id])
    plane.promote()
    assert plane.state(job_id) == "failed"
    assert plane.holder(b"\xab") is None


def test_poison_everywhere_is_worked_off(poisonous: Plane) -> None:
    plane = poisonous
    ids = [plane.job(delay=0.0) for _ in range(300)]
    plane.rows(POISON, ids[:290])
    passes = 0
    while plane.value("SELECT count(*) FROM awa_queue.deferred_jobs"):
        plane.promote()
        passes += 1
        assert passes < 5
    assert plane.claim().ids == ids[290:]


def test_a_moment_of_the_server_fails_no_job(plane: Plane, other: Plane) -> None:
    job_id = plane.job(delay=0.0)
    plane.rows("SET lock_timeout = '50ms'")
    with other.transaction():
        other.rows("LOCK TABLE awa_queue.bodies IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            plane.promote()
    assert plane.state(job_id) == "scheduled"
    assert plane.promote()["moved"] == 1


def test_a_missing_right_fails_no_job(plane: Plane) -> None:
    job_id = plane.job(delay=0.0)
    plane.rows("CREATE ROLE visitor_of_the_queue")
    try:
        plane.rows("GRANT USAGE ON SCHEMA awa, awa_queue TO visitor_of_the_queue")
        plane.rows("GRANT SELECT, UPDATE, DELETE ON ALL TABLES IN SCHEMA awa_queue TO visitor_of_the_queue")
        plane.rows("SET ROLE visitor_of_the_queue")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            plane.promote()
        plane.rows("RESET ROLE")
        assert plane.state(job_id) == "scheduled"
    finally:
        plane.rows("RESET ROLE")
        plane.rows("DROP OWNED BY visitor_of_the_queue")
        plane.rows("DROP ROLE visitor_of_the_queue")
