"""Admin refresh: the numbers that dashboards read, one row per queue and per kind, with the time they were counted."""

from __future__ import annotations

import attrs

from awa_actors.store.pool import Session

REFRESH_QUEUES = "SELECT awa.refresh_queue_stats()"
REFRESH_KINDS = "SELECT awa.refresh_kind_stats($1)"
COUNTED = """
SELECT q.queue, q.available, q.running, q.scheduled, q.retryable, q.waiting_external, q.failed, q.cancelled,
       q.dead_letters, greatest(0, extract(epoch FROM q.refreshed_at - q.oldest_ready_at))::float8 AS lag
FROM awa.queue_stats q ORDER BY q.queue
"""
STORAGE = "SELECT state, current_engine FROM awa.storage_transition_state"
READY = """
SELECT s.step, NOT EXISTS (SELECT FROM awa.storage_blockers(s.step)) AS ready
FROM unnest(ARRAY['enter_mixed_transition', 'finalize']) AS s (step)
"""
RUNTIMES = "SELECT capability, count(*) AS processes FROM awa.storage_runtimes() GROUP BY capability"
CANONICAL_BACKLOG = "SELECT awa.canonical_live_backlog()"
STATES = ("available", "running", "scheduled", "retryable", "waiting_external", "failed", "cancelled")

EXACT_BYTES = 4 * 1024 * 1024
"""Size of a table up to which kinds and completions are counted exactly (about 50,000 rows); beyond it they are
estimated from as many rows of random blocks."""


@attrs.frozen
class Counted:
    """What was counted last, for metrics.

    Args:
        depth: (queue, state, jobs).
        lag: (queue, seconds since the oldest available job became so), queues without one left out.
        dead_letters: (queue, letters).
        storage_state, engine: of the transition between the storage planes.
        canonical_backlog: jobs in the canonical plane that have not ended; None where it is absent or not in use.
        ready: (step of the transition, whether nothing stands in its way); none once the transition is over.
        runtimes: (capability for the storage planes, live processes that have it).
    """

    depth: list[tuple[str, str, int]]
    lag: list[tuple[str, float]]
    dead_letters: list[tuple[str, int]]
    storage_state: str
    engine: str
    canonical_backlog: int | None
    ready: list[tuple[str, bool]]
    runtimes: list[tuple[str, int]]


async def counted(session: Session) -> Counted:
    """Read what the last counts stored; the backlog of the canonical plane is counted, while there may be one."""
    rows = await session.fetch(COUNTED)
    storage = await session.fetchrow(STORAGE)
    backlog: int | None = None
    ready: list[tuple[str, bool]] = []
    if storage["state"] != "active":
        backlog = await session.fetchval(CANONICAL_BACKLOG)
        ready = [(row["step"], row["ready"]) for row in await session.fetch(READY)]
    runtimes = [(row["capability"], row["processes"]) for row in await session.fetch(RUNTIMES)]
    return Counted(
        [(row["queue"], state, row[state]) for row in rows for state in STATES],
        [(row["queue"], row["lag"]) for row in rows if row["lag"] is not None],
        [(row["queue"], row["dead_letters"]) for row in rows],
        storage["state"],
        storage["current_engine"],
        backlog,
        ready,
        runtimes,
    )


async def refresh_queues(session: Session) -> int:
    """Count every queue once; returns how many queues have a row, 0 when another process is counting.

    Shape: one snapshot; the counts by state of all queues add up to the jobs at that instant.
    """
    return int(await session.fetchval(REFRESH_QUEUES))


async def refresh_kinds(session: Session, exact_bytes: int = EXACT_BYTES) -> int:
    """Count every kind, and the completions of the last hour; returns how many kinds have a row.

    Shape: one snapshot, at a price that does not grow with the backlog or the history.
    """
    return int(await session.fetchval(REFRESH_KINDS, exact_bytes))
