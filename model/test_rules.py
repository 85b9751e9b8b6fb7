"""Counterexamples that the machines or the refinement found in the store, each as the plain test of its rule."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import Connection

from awa_actors.store.claim import ANSWER
from model.refinement.sessions import Session

INSTANCE = uuid.UUID(int=1)
INSERT = """
SELECT ids FROM awa.insert_jobs(
    %s::text[], ARRAY['k'], ARRAY['q'], ARRAY[2]::smallint[], ARRAY[25]::smallint[], %s::text[])
"""
CLAIM = "SELECT job_ids, run_leases, lslots FROM awa_queue.take('q', %s, 1000000000, %s, 0, NULL, NULL)"
COMPLETE = "SELECT completed FROM awa_queue.complete(%s::bigint[], %s::bigint[], %s::smallint[], %s)"
TURN = "SELECT awa_queue.turn(%(ring)s, max(generation)) FROM awa_queue.ring_turns WHERE ring = %(ring)s"


@pytest.fixture
def observer(database: str) -> Iterator[Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@contextmanager
def opened(database: str, observer: Connection[Any], count: int) -> Iterator[list[Session]]:
    sessions = [Session(database, observer) for _ in range(count)]
    try:
        yield sessions
    finally:
        for session in sessions:
            session.close()


def one(connection: Connection[Any], statement: Any, values: Any = ()) -> Any:
    row = connection.execute(statement, values).fetchone()
    assert row is not None
    return row[0]


def enqueued(connection: Connection[Any], count: int, opts: str | None = None) -> list[int]:
    ids: list[int] = one(connection, INSERT, [["{}"] * count, None if opts is None else [opts] * count])
    return ids


def test_a_lease_that_is_carried_twice_while_it_is_completed_is_completed(
    database: str, observer: Connection[Any]
) -> None:
    first, second = enqueued(observer, 2)
    row = observer.execute(CLAIM, [2, INSTANCE]).fetchone()
    assert row is not None
    with opened(database, observer, 3) as (completer, slow, quick):
        one(observer, TURN, {"ring": "leases"})
        assert one(observer, "SELECT awa_queue.carry_leases(0, 10)") == 2
        one(observer, TURN, {"ring": "leases"})
        slow.run("BEGIN")
        slow.run("SELECT FROM awa_queue.leases WHERE job_id = %s FOR UPDATE", [first])
        # The leases are not where they were claimed: this looks for both in all slots, and waits for the first.
        assert not completer.start(COMPLETE, [row[0], row[1], row[2], INSTANCE])
        assert quick.run("SELECT awa_queue.carry_leases(1, 10)") == [(1,)]
        slow.run("ROLLBACK")
        assert completer.has_ended()
        assert sorted(completer.rows()[0][0]) == [first, second]


def test_a_lease_that_is_carried_while_it_is_settled_is_settled(database: str, observer: Connection[Any]) -> None:
    (job,) = enqueued(observer, 1)
    observer.execute(CLAIM, [1, INSTANCE])
    with opened(database, observer, 2) as (settler, carrier):
        one(observer, TURN, {"ring": "leases"})
        carrier.run("BEGIN")
        assert carrier.run("SELECT awa_queue.carry_leases(0, 10)") == [(1,)]
        entry = f'[{{"job_id": {job}, "run_lease": 1, "state": "retryable", "delay": 0, "error": "x"}}]'
        assert not settler.start("SELECT job_id FROM awa_queue.settle(%s, %s::jsonb)", [INSTANCE, entry])
        carrier.run("COMMIT")
        assert settler.has_ended()
        assert settler.rows() == [(job,)]


def test_a_body_that_is_carried_while_its_attempt_is_settled_is_found(database: str, observer: Connection[Any]) -> None:
    (job,) = enqueued(observer, 1)
    observer.execute(CLAIM, [1, INSTANCE])
    with opened(database, observer, 2) as (settler, carrier):
        one(observer, TURN, {"ring": "segments"})
        carrier.run("BEGIN")
        assert carrier.run("SELECT awa_queue.carry_bodies(0, 10)") == [(1,)]
        entry = f'[{{"job_id": {job}, "run_lease": 1, "state": "retryable", "delay": 0, "error": "x"}}]'
        assert not settler.start("SELECT job_id FROM awa_queue.settle(%s, %s::jsonb)", [INSTANCE, entry])
        carrier.run("COMMIT")
        assert settler.has_ended()
        assert settler.rows() == [(job,)]
    assert one(observer, "SELECT state FROM awa.jobs WHERE id = %s", [job]) == "retryable"


def test_a_job_whose_shard_an_operator_took_away_is_still_claimed(observer: Connection[Any]) -> None:
    observer.execute("INSERT INTO awa.queues (queue, shards) VALUES ('q', 8)")
    jobs = sorted(job for key in range(8) for job in enqueued(observer, 1, f'{{"ordering_key": "{key:02x}"}}'))
    assert one(observer, "SELECT count(DISTINCT shard) FROM awa_queue.ready") > 1
    observer.execute("UPDATE awa.queues SET shards = 1")
    assert sorted(one(observer, CLAIM, [100, INSTANCE])) == jobs


def test_a_unique_key_goes_with_the_history_that_held_it(observer: Connection[Any]) -> None:
    opts = '{"unique_key": "aa", "unique_states": "11111001"}'
    (job,) = enqueued(observer, 1, opts)
    row = observer.execute(CLAIM, [1, INSTANCE]).fetchone()
    one(observer, TURN, {"ring": "segments"})
    # The janitor released the keys of old history, and then the last job of the segment completed.
    assert one(observer, "SELECT awa_queue.release_history_claims(0, interval '0')") == 0
    assert row is not None
    assert one(observer, COMPLETE, [*row, INSTANCE]) == [job]
    assert (
        one(observer, "SELECT outcome FROM awa_queue.truncate_slot('segments', 0, interval '0', interval '0')")
        == "truncated"
    )
    assert enqueued(observer, 1, opts) != [job]


def test_a_retry_that_waits_for_a_cancellation_finds_the_cancelled_job(
    database: str, observer: Connection[Any]
) -> None:
    (job,) = enqueued(observer, 1)
    with opened(database, observer, 2) as (canceller, retrier):
        canceller.run("BEGIN")
        canceller.run("SELECT awa.cancel_job(%s)", [job])
        assert not retrier.start("SELECT awa.retry_job(%s)->>'state'", [job])
        canceller.run("COMMIT")
        assert retrier.has_ended()
        assert retrier.rows() == [("available",)]


def test_a_key_stays_with_history_that_is_kept(observer: Connection[Any]) -> None:
    opts = '{"unique_key": "aa", "unique_states": "11111001"}'
    (job,) = enqueued(observer, 1, opts)
    row = observer.execute(CLAIM, [1, INSTANCE]).fetchone()
    assert row is not None
    assert one(observer, COMPLETE, [*row, INSTANCE]) == [job]
    one(observer, TURN, {"ring": "segments"})
    assert one(observer, "SELECT outcome FROM awa_queue.truncate_slot('segments', 0, interval '1 hour')") == "history"
    with pytest.raises(psycopg.errors.UniqueViolation):
        enqueued(observer, 1, opts)


PENDING_ONLY = '{"unique_key": "aa", "unique_states": "11001000"}'
"""A mask of pending states: the key is given up when the job runs, and needed again when it is retried."""


def test_a_retried_job_whose_key_a_newer_job_took_ends_as_a_duplicate(observer: Connection[Any]) -> None:
    (older,) = enqueued(observer, 1, PENDING_ONLY)
    observer.execute(CLAIM, [1, INSTANCE])
    (newer,) = enqueued(observer, 1, PENDING_ONLY)
    entry = f'[{{"job_id": {older}, "run_lease": 1, "state": "retryable", "delay": 0, "error": "x"}}]'
    observer.execute("SELECT job_id FROM awa_queue.settle(%s, %s::jsonb)", [INSTANCE, entry])
    states = observer.execute("SELECT id, state::text FROM awa.jobs ORDER BY id").fetchall()
    assert states == [(older, "cancelled"), (newer, "available")]
    assert one(observer, "SELECT job_id FROM awa.job_unique_claims") == newer


def test_one_conflict_does_not_stop_the_rescue_of_the_others(observer: Connection[Any]) -> None:
    (older,) = enqueued(observer, 1, PENDING_ONLY)
    (innocent,) = enqueued(observer, 1)
    observer.execute(CLAIM, [2, INSTANCE])
    (newer,) = enqueued(observer, 1, PENDING_ONLY)
    observer.execute("SELECT awa_queue.rescue_stale(10, 5)")
    states = observer.execute("SELECT id, state::text FROM awa.jobs ORDER BY id").fetchall()
    assert states == [(older, "cancelled"), (innocent, "retryable"), (newer, "available")]


def test_a_row_that_cannot_be_claimed_is_recorded_and_the_rest_is_claimed(observer: Connection[Any]) -> None:
    first, second = enqueued(observer, 2)
    observer.execute("DELETE FROM awa_queue.bodies WHERE job_id = %s", [first])
    row = observer.execute(f"CALL awa_queue.claim('q', 10, 1000, %s, 0, NULL, NULL, {ANSWER})", [INSTANCE]).fetchone()
    assert row is not None
    assert row[0] == [second]
    assert one(observer, "SELECT state::text FROM awa.jobs WHERE id = %s", [first]) == "failed"


def test_an_instance_that_was_declared_dead_claims_nothing(observer: Connection[Any]) -> None:
    observer.execute(
        "INSERT INTO awa.instances (id, role, hostname, pid, version, stale_after, dead_at)"
        " VALUES (%s, 'worker', 'model', 1, '0', interval '1 hour', now())",
        [INSTANCE],
    )
    enqueued(observer, 1)
    row = observer.execute(CLAIM, [1, INSTANCE]).fetchone()
    assert row is not None
    assert row[0] is None
