"""What claim and completion read, counted by the server itself: by index, and little, whatever the statistics say."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from queue_plane import Attempt, Plane

pytestmark = pytest.mark.slow

DEAD = 200_000
BATCH = 100

RELATIONS = """
SELECT c.oid::regclass::text AS name, c.relkind, pg_stat_get_xact_blocks_fetched(c.oid) AS blocks,
       pg_stat_get_xact_numscans(c.oid) AS scans, pg_relation_size(c.oid) AS bytes
FROM pg_class c
WHERE c.relkind IN ('r', 'i', 't')
  AND c.relnamespace IN ('awa'::regnamespace, 'awa_queue'::regnamespace, 'pg_toast'::regnamespace)
"""


class Read:
    """What one transaction has read: blocks of all relations, and tables that were read from end to end."""

    blocks: int
    scanned: set[str]


@contextmanager
def counted(plane: Plane) -> Iterator[Read]:
    """Count what the body reads, in one transaction."""
    read = Read()
    with plane.transaction():
        before = {row["name"]: row for row in plane.rows(RELATIONS)}
        yield read
        after = plane.rows(RELATIONS)
    read.blocks = sum(row["blocks"] - before[row["name"]]["blocks"] for row in after)
    read.scanned = {
        row["name"]
        for row in after
        if row["relkind"] == "r" and row["bytes"] and row["scans"] > before[row["name"]]["scans"]
    }


def take(plane: Plane, hints: list[int]) -> tuple[list[Attempt], list[int]]:
    """Claim inside the open transaction, where the procedure may not be called."""
    batch = plane.row(
        "SELECT (t).job_ids, (t).run_leases, (t).lslots, (t).hints"
        " FROM (SELECT awa_queue.take('default', %s, 1000000, %s, 60, NULL, %s::bigint[]) OFFSET 0) s (t)",
        BATCH,
        plane.instance,
        hints,
    )
    triples = zip(batch["job_ids"] or (), batch["run_leases"] or (), batch["lslots"] or (), strict=True)
    attempts = [Attempt(job_id, lease, lslot, 1, 2, "", "", None, None) for job_id, lease, lslot in triples]
    return attempts, batch["hints"]


def fill(plane: Plane) -> None:
    """Rows that have come and gone, before those that are there; no vacuum has seen them."""
    plane.rows(
        "INSERT INTO awa_queue.ready SELECT 0, 2, 0, 0, 0, n, n, 0, now(), 'default' FROM generate_series(1, %s) n",
        DEAD,
    )
    plane.rows(
        "INSERT INTO awa_queue.leases (lslot, slot, attempt, frees_claim, job_id, run_lease, instance, claimed_at)"
        " SELECT 0, 0, 1, false, n, 1, gen_random_uuid(), now() FROM generate_series(1, %s) n",
        DEAD,
    )
    plane.rows("SELECT setval('awa.job_id_seq', %s)", DEAD + 1)


def leave(plane: Plane) -> None:
    plane.rows("DELETE FROM awa_queue.ready")
    plane.rows("DELETE FROM awa_queue.leases")


def analyze(plane: Plane) -> None:
    for table in ("ready", "leases", "bodies", "done"):
        plane.connection.execute(f"ANALYZE awa_queue.{table}".encode())


@pytest.mark.parametrize("statistics", ["of full tables", "none", "of empty tables", "none, planned while empty"])
def test_claim_and_completion_read_by_index_and_little(plane: Plane, other: Plane, statistics: str) -> None:
    """T8."""
    if statistics == "of empty tables":
        analyze(plane)
    elif statistics == "none, planned while empty":
        plane.complete(plane.claim().attempts)
    other.rows("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other.rows("SELECT 1 FROM pg_class LIMIT 1")
    fill(plane)
    if statistics == "of full tables":
        analyze(plane)
    leave(plane)
    plane.insert(5 * BATCH)
    hints = plane.claim(1).hints
    for _ in range(3):
        with counted(plane) as claiming:
            attempts, hints = take(plane, hints)
        with counted(plane) as completing:
            assert len(plane.complete(attempts)) == BATCH
        assert (claiming.scanned & RINGS, completing.scanned & RINGS) == (set(), set())
        # A ready row, a body, a lease and a done row, each with its index: about ten blocks per job.
        assert claiming.blocks < 15 * BATCH
        assert completing.blocks < 15 * BATCH
    other.rows("ROLLBACK")


def test_a_job_of_a_large_batch_costs_no_more_after_statistics_of_an_idle_plane(plane: Plane) -> None:
    """T8: planned for one row, a join of a batch with its leases compares every one with every other."""
    plane.insert(2_000)
    plane.complete(plane.claim(2_000).attempts)
    analyze(plane)

    def seconds_per_job(batch: int) -> float:
        took = []
        for _ in range(3):
            plane.insert(batch)
            began = time.perf_counter()
            attempts = plane.claim(batch).attempts
            assert len(plane.complete(attempts)) == batch
            took.append((time.perf_counter() - began) / batch)
        return min(took)

    assert seconds_per_job(4_000) < 3 * seconds_per_job(200)


RINGS = {f"awa_queue.{table}_{slot}" for table in ("bodies", "done", "ready", "leases") for slot in range(8)}


def test_a_sequential_scan_would_be_seen(plane: Plane) -> None:
    """The broken twin of the test above: a completion that is left to the planner's own idea of a small table."""
    plane.insert(BATCH)
    plane.claim(BATCH)
    with counted(plane) as read:
        plane.rows("SET LOCAL enable_indexscan = off")
        plane.rows("SET LOCAL enable_bitmapscan = off")
        plane.rows("DELETE FROM awa_queue.leases WHERE job_id = 1")
    assert "awa_queue.leases_0" in read.scanned


JOBS = 30_000


def blocks_per_claim(plane: Plane, *, hinted: bool) -> list[int]:
    """Work off JOBS jobs in batches; returns what each claim of a full batch has read."""
    for _ in range(JOBS // 1000):
        plane.insert(1000)
    hints: list[int] = []
    blocks: list[int] = []
    while True:
        with counted(plane) as read:
            attempts, found = take(plane, hints)
        if len(attempts) < BATCH:
            return blocks
        assert len(plane.complete(attempts)) == BATCH
        hints = found if hinted else []
        blocks.append(read.blocks)


@pytest.mark.parametrize("writes", [False, True], ids=["a reader", "an idle writer"])
def test_a_claim_costs_the_same_while_another_session_pins_the_horizon(
    plane: Plane, other: Plane, writes: bool
) -> None:
    """P4."""
    other.rows("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other.rows("CREATE TABLE public.idle ()" if writes else "SELECT 1 FROM pg_class LIMIT 1")
    blocks = blocks_per_claim(plane, hinted=True)
    other.rows("ROLLBACK")
    assert len(blocks) == JOBS // BATCH
    early, late = blocks[5:25], blocks[-20:]
    assert max(late) < 1.1 * max(early)


def test_without_hints_a_claim_walks_over_everything_that_was_claimed(plane: Plane, other: Plane) -> None:
    """The broken twin of the test above."""
    other.rows("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other.rows("SELECT 1 FROM pg_class LIMIT 1")
    blocks = blocks_per_claim(plane, hinted=False)
    other.rows("ROLLBACK")
    assert sum(blocks[-20:]) > 1.5 * sum(blocks[5:25])
