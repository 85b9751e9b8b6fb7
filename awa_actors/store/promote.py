"""Promote: scheduled and retryable jobs that are due become available."""

from __future__ import annotations

import attrs
import orjson

from awa_actors.store.pool import Session
from awa_actors.store.trace import Log, landed, watched

# The mark says until when a promoter sleeps at most: a job deferred to an earlier time notifies `awa:due`. It is
# renewed by the same statement that looks, and outlasts the next look, so that no job falls between the two.
PROMOTE = """
WITH marked AS (
    INSERT INTO awa.sleepers AS s (name, until)
    SELECT 'awa:due', clock_timestamp() + make_interval(secs => $2::float8) WHERE $2::float8 IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET until = excluded.until
)
SELECT moved, failed, extract(epoch FROM next_due - clock_timestamp())::float8 AS due_in
FROM awa_queue.promote($1)
"""
# Its answer counts jobs; the log names them.
PROMOTE_TRACED = PROMOTE.replace(
    "SELECT moved, failed,", "SELECT steps, is_whole, clock_timestamp() AS t, moved, failed,"
).replace("awa_queue.promote(", "awa_queue.promote_traced(")


@attrs.frozen
class Promoted:
    """What one step moved. `due_in` is seconds until the next job is due (negative: already), None: none waits."""

    moved: int
    failed: int
    due_in: float | None


async def promote(session: Session, rows: int, sleeps: float | None = None) -> Promoted:
    """Move up to `rows` due jobs to the ready rows.

    Args:
        session: outside a transaction.
        rows: most jobs to move.
        sleeps: seconds the caller may sleep afterwards unless it is notified; None: it does not listen.

    Shape: deferred rows that are due, skipping locked ones -> bodies and ready rows. One that cannot be moved is
    recorded as failed.
    """
    if session.log is not None:
        return await _promote_traced(session.log, session, rows, sleeps)
    row = await session.fetchrow(PROMOTE, rows, sleeps)
    return Promoted(row["moved"], row["failed"], row["due_in"])


async def _promote_traced(log: Log, session: Session, rows: int, sleeps: float | None) -> Promoted:
    with watched(session, "promote"):
        row = await session.fetchrow(PROMOTE_TRACED, rows, sleeps)
    moved = [one for one in orjson.loads(row["steps"] or "[]") if one["from"] != one["to"]]
    log.note({"t": row["t"], "by": landed("promote", "available", one["to"]), **one} for one in moved)
    if not row["is_whole"]:
        log.unseen(["promote"])
    return Promoted(row["moved"], row["failed"], row["due_in"])
