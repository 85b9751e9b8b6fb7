"""Admin refresh: the numbers that dashboards read, one row per queue and per kind, with the time they were counted."""

from __future__ import annotations

from awa_actors.store.pool import Session

REFRESH_QUEUES = "SELECT awa.refresh_queue_stats()"
REFRESH_KINDS = "SELECT awa.refresh_kind_stats($1)"

EXACT_BYTES = 4 * 1024 * 1024
"""Size of a table up to which kinds and completions are counted exactly (about 50,000 rows); beyond it they are
estimated from as many rows of random blocks."""


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
