"""Promote: scheduled and retryable jobs that are due become available."""

from __future__ import annotations

import datetime as dt

import attrs

from awa_actors.store.pool import Session

PROMOTE = """
SELECT moved, failed, next_due, extract(epoch FROM next_due - clock_timestamp())::float8 AS due_in
FROM awa_queue.promote($1)
"""
SLEEP_UNTIL_DUE = """
INSERT INTO awa.sleepers AS s (name, until) VALUES ('awa:due', clock_timestamp() + make_interval(secs => $1))
ON CONFLICT (name) DO UPDATE SET until = excluded.until
"""


@attrs.frozen
class Promoted:
    """What one step moved. `due_in` is seconds until the next job is due (negative: already), None: none waits."""

    moved: int
    failed: int
    next_due: dt.datetime | None
    due_in: float | None


async def promote(session: Session, rows: int) -> Promoted:
    """Move up to `rows` due jobs to the ready rows.

    Shape: deferred rows that are due,
    skipping locked ones -> bodies and ready rows. One that cannot be moved is recorded
    as failed.
    """
    row = await session.fetchrow(PROMOTE, rows)
    return Promoted(row["moved"], row["failed"], row["next_due"], row["due_in"])


async def sleep_until_due(session: Session, seconds: float) -> None:
    """Say that the promoter looks again in `seconds`: a job deferred to an earlier time notifies `awa:due`."""
    await session.execute(SLEEP_UNTIL_DUE, seconds)
