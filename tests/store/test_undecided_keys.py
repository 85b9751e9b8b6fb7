"""A unique key that an open transaction is about to take: nobody who is on the way waits for a stranger."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from queue_plane import Plane

KEY = b"the key"
WAITING = {"scheduled", "available", "retryable"}
BOUND_MS = 5_000
"""A wait for the stranger would end with this error; each test makes dozens of moves that wait milliseconds at most."""


@pytest.fixture(autouse=True)
def impatient(plane: Plane) -> None:
    plane.rows("SELECT set_config('statement_timeout', %s, false)", str(BOUND_MS))


@contextmanager
def open_producer(session: Plane, keys: list[bytes], *, commits: bool) -> Iterator[list[int]]:
    """A transaction that has inserted jobs with these keys, and ends with the body."""

    class Undone(Exception):
        pass

    try:
        with session.transaction():
            yield [session.keyed(key, WAITING, queue="elsewhere") for key in keys]
            if not commits:
                raise Undone
    except Undone:
        pass


def due_now(plane: Plane) -> None:
    plane.rows("UPDATE awa_queue.deferred_jobs SET run_at = clock_timestamp() - interval '1 second'")
    plane.promote()


@pytest.mark.parametrize("commits", [True, False])
def test_the_end_of_an_attempt_is_recorded_and_the_key_decided_later(plane: Plane, other: Plane, commits: bool) -> None:
    older = plane.keyed(KEY, WAITING)
    (bystander,) = plane.insert()
    attempts = plane.claim().attempts
    with open_producer(other, [KEY], commits=commits) as (newer,):
        landed = [plane.retry(attempt) for attempt in attempts]
        assert [job and job["state"] for job in landed] == ["retryable", "retryable"]
    due_now(plane)
    assert plane.state(bystander) == "available"
    assert plane.state(older) == ("cancelled" if commits else "available")
    assert plane.holder(KEY) == (newer if commits else older)


@pytest.mark.parametrize("commits", [True, False])
def test_a_promotion_moves_everybody_else_and_asks_again(plane: Plane, other: Plane, commits: bool) -> None:
    older = plane.keyed(KEY, {"available", "running"}, delay=0.0)
    bystanders = [plane.job(delay=0.0) for _ in range(3)]
    with open_producer(other, [KEY], commits=commits) as (newer,):
        assert plane.promote()["failed"] == 0
        assert plane.claim().ids == bystanders
        assert plane.state(older) == "scheduled"
        assert plane.value("SELECT run_at > clock_timestamp() FROM awa.jobs WHERE id = %s", older)
    due_now(plane)
    assert plane.state(older) == ("cancelled" if commits else "available")
    assert plane.holder(KEY) == (newer if commits else older)


@pytest.mark.parametrize("commits", [True, False])
def test_a_claim_takes_everybody_else_and_the_job_comes_back(plane: Plane, other: Plane, commits: bool) -> None:
    older = plane.keyed(KEY, {"running"})
    bystanders = plane.insert(3)
    with open_producer(other, [KEY], commits=commits) as (newer,):
        assert plane.claim().ids == bystanders
        assert plane.claim().ids == []
        stored = plane.stored(older)
        assert (stored["state"], stored["attempt"], stored["attempted_at"]) == ("scheduled", 0, None)
        assert stored["run_lease"] == 1
    due_now(plane)
    assert plane.claim().ids == ([] if commits else [older])
    assert plane.state(older) == ("cancelled" if commits else "running")
    assert plane.holder(KEY) == (newer if commits else older)


@pytest.mark.parametrize("commits", [True, False])
def test_a_rescue_takes_everybody_back(plane: Plane, other: Plane, commits: bool) -> None:
    older = plane.keyed(KEY, WAITING)
    bystanders = plane.insert(3)
    plane.claim()
    with open_producer(other, [KEY], commits=commits) as (newer,):
        rescued = {job["job_id"]: job["state"] for job in plane.rescue_stale()}
        assert rescued == dict.fromkeys([older, *bystanders], "retryable")
    due_now(plane)
    assert plane.state(older) == ("cancelled" if commits else "available")
    assert plane.holder(KEY) == (newer if commits else older)


@pytest.mark.parametrize("commits", [True, False])
def test_a_claim_that_is_given_back_waits_outside_its_queue(plane: Plane, other: Plane, commits: bool) -> None:
    older = plane.keyed(KEY, WAITING)
    attempt = plane.take(older)
    with open_producer(other, [KEY], commits=commits) as (newer,):
        landed = plane.end(attempt, give_back=True)
        assert landed is not None
        assert (landed["state"], landed["attempt"]) == ("scheduled", 0)
    due_now(plane)
    assert plane.state(older) == ("cancelled" if commits else "available")
    assert plane.holder(KEY) == (newer if commits else older)


def test_a_job_completes_while_its_key_is_undecided(plane: Plane, other: Plane) -> None:
    older = plane.keyed(KEY, {"available", "completed"})
    attempt = plane.take(older)
    with open_producer(other, [KEY], commits=True) as (newer,):
        assert plane.complete([attempt]) == {older}
    assert plane.state(older) == "completed"
    assert plane.holder(KEY) == newer


def test_many_undecided_keys_cost_one_wait(plane: Plane, sessions: Callable[[], Plane]) -> None:
    keys = [f"key {n}".encode() for n in range(200)]
    older = [plane.keyed(key, {"available"}, delay=0.0) for key in keys]
    with open_producer(sessions(), keys, commits=False):
        plane.rows("SELECT set_config('statement_timeout', '3000', false)")
        assert plane.promote()["moved"] == len(keys)
    due_now(plane)
    assert [plane.state(job_id) for job_id in older] == ["available"] * len(keys)
