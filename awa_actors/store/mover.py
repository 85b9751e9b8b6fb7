"""The mover: what waits in the canonical plane moves to the queue plane without being run."""

from __future__ import annotations

import attrs

from awa_actors.store.pool import Session

SETTINGS = """
SELECT s.state, coalesce((s.details ->> 'mover_paused')::boolean, false) AS paused,
       (s.details ->> 'mover_rows_per_second')::float8 AS rows_per_second
FROM awa.storage_transition_state s
"""
MOVE = "SELECT moved, failed, more FROM awa.move_canonical($1)"


@attrs.frozen
class MoverSettings:
    """What operators told the mover, and whether it is its time.

    Args:
        state: of the transition; it moves only in `mixed_transition`.
        paused: it is to stand still.
        rows_per_second: most rows to move, or None.
    """

    state: str
    paused: bool
    rows_per_second: float | None


@attrs.frozen
class Moved:
    """What one step moved; those that could not be moved are recorded as failed."""

    moved: int
    failed: int
    more: bool


async def settings(session: Session) -> MoverSettings:
    """Read what the mover is told now."""
    row = await session.fetchrow(SETTINGS)
    return MoverSettings("canonical", False, None) if row is None else MoverSettings(*row)


async def move(session: Session, rows: int) -> Moved:
    """Move up to `rows` jobs that wait: available, parked for a callback, deferred (due or not).

    Shape: rows that nobody has locked -> the same jobs in the queue plane; never a running attempt; nothing unless the
    transition is mixed, which is decided under its lock.
    """
    return Moved(*await session.fetchrow(MOVE, rows))
