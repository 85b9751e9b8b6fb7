"""Claim and complete find their rows by index, whatever the statistics of churning tables say (trap T8)."""

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

DEAD = 200_000
INSTANCE = uuid.uuid4()
SCANS = """
SELECT coalesce(sum(seq_tup_read), 0)::bigint AS read, coalesce(sum(idx_tup_fetch), 0)::bigint AS fetched
FROM pg_stat_xact_user_tables WHERE schemaname = 'awa_queue' AND relname ~ '^(leases|ready|bodies|done)_[0-9]'
"""
BURY_LEASES = f"""
INSERT INTO awa_queue.leases (lslot, slot, attempt, frees_claim, job_id, run_lease, instance, claimed_at)
SELECT 0, 0, 1, false, 10000000 + n, 1, '{INSTANCE}', now() FROM generate_series(1, {DEAD}) n
"""
BURY_READY = f"""
INSERT INTO awa_queue.ready (rslot, priority, shard, slot, attempt, pos, job_id, run_lease, ready_at, queue)
SELECT 0, 2, 0, 0, 0, 10000000 + n, 10000000 + n, 0, now(), 'bench' FROM generate_series(1, {DEAD}) n
"""
INSERT = """
SELECT awa.insert_jobs(array_fill('{}'::text, ARRAY[64]), ARRAY['noop'], ARRAY['bench'], ARRAY[2]::smallint[],
                       ARRAY[25]::smallint[])
"""
TAKE = """
SELECT t.job_ids, t.run_leases, t.lslots FROM awa_queue.take('bench', 64, 8000000, %s, 60, NULL, ARRAY[0]::bigint[]) t
"""
COMPLETE = "SELECT completed FROM awa_queue.complete(%s, %s, %s, %s)"
REGISTER = """
INSERT INTO awa.instances (id, role, hostname, pid, version, stale_after)
VALUES (%s, 'worker', 'test', 1, '0', '1 hour')
"""


@pytest.fixture(params=["never analysed", "analysed while full", "analysed while empty, then grown"])
def graveyard(database: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """A plane with 200,000 dead leases and as many dead ready rows, and an instance that may claim."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(REGISTER, [INSTANCE])
        if request.param == "analysed while empty, then grown":
            connection.execute("ANALYZE")
        for bury, table in ((BURY_LEASES, "leases"), (BURY_READY, "ready")):
            connection.execute(bury.encode())
            if request.param == "analysed while full":
                connection.execute("ANALYZE")
            connection.execute(f"DELETE FROM awa_queue.{table}".encode())
        connection.execute(INSERT)
        yield connection


class Reads:
    """Rows read one after the other, and by an index, since the last look; the view still shows earlier statements."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._before = self._now()

    def _now(self) -> tuple[int, int]:
        row = self._connection.execute(SCANS).fetchone()
        assert row is not None
        return row[0], row[1]

    def since(self) -> tuple[int, int]:
        """Sequential and by index."""
        now = self._now()
        return now[0] - self._before[0], now[1] - self._before[1]


@pytest.mark.slow
def test_claim_and_complete_read_only_the_rows_they_take(graveyard: psycopg.Connection[Any]) -> None:
    for _ in range(7):  # beyond the five plans that a session makes before it keeps one
        graveyard.execute(INSERT)
        with graveyard.transaction():
            reads = Reads(graveyard)
            jobs, leases, slots = graveyard.execute(TAKE, [INSTANCE]).fetchone() or ([], [], [])
            sequential, fetched = reads.since()
            assert len(jobs) == 64
            assert sequential == 0
            assert fetched < 64 * 12
        with graveyard.transaction():
            reads = Reads(graveyard)
            done = graveyard.execute(COMPLETE, [jobs, leases, slots, INSTANCE]).fetchone()
            sequential, fetched = reads.since()
            assert done is not None
            assert sorted(done[0]) == sorted(jobs)
            assert sequential == 0
            assert fetched < 64 * 12


@pytest.mark.slow
def test_a_completion_that_scans_would_be_seen(graveyard: psycopg.Connection[Any]) -> None:
    """The broken twin: the same delete without an index to go by reads every live lease one after the other."""
    graveyard.execute(BURY_LEASES.encode())
    with graveyard.transaction():
        graveyard.execute("SET LOCAL enable_indexscan = off")
        graveyard.execute("SET LOCAL enable_bitmapscan = off")
        reads = Reads(graveyard)
        graveyard.execute("DELETE FROM awa_queue.leases l WHERE l.job_id = 10000001")
        assert reads.since()[0] >= DEAD
