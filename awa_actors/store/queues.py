"""Queues, for operators: settings, pause and resume, numbers."""

from __future__ import annotations

import datetime as dt

import attrs

from awa_actors.store.pool import Session

PAUSE = """
INSERT INTO awa.queues AS q (queue, paused, paused_at, paused_by, paused_until) VALUES ($1, true, clock_timestamp(),
$2, $3)
ON CONFLICT (queue) DO UPDATE SET paused = true, paused_at = clock_timestamp(), paused_by = excluded.paused_by,
    paused_until = excluded.paused_until
"""
RESUME = """
WITH resumed AS (
    UPDATE awa.queues SET paused = false, paused_at = NULL, paused_by = NULL, paused_until = NULL
    WHERE queue = $1 AND paused RETURNING queue
)
SELECT awa.wake(r.queue, awa.queue_channel(r.queue)), true AS resumed FROM resumed r
"""
# Exact and live, for one look: what dashboards poll is stored by admin refresh.
STATS = """
SELECT j.queue, count(*) FILTER (WHERE j.state = 'available') AS available, count(*) FILTER (WHERE j.state = 'running')
AS running,
       count(*) FILTER (WHERE j.state = 'scheduled') AS scheduled, count(*) FILTER (WHERE j.state = 'retryable') AS
       retryable,
       count(*) FILTER (WHERE j.state = 'waiting_external') AS waiting_external, count(*) FILTER (WHERE j.state =
       'failed') AS failed,
       count(*) FILTER (WHERE j.state = 'cancelled') AS cancelled, count(*) FILTER (WHERE j.state = 'completed') AS
       completed
FROM awa.jobs j GROUP BY j.queue ORDER BY j.queue
"""
SETTINGS = """
SELECT queue, paused AND coalesce(paused_until > clock_timestamp(), true) AS paused, paused_at, paused_by,
paused_until, shards
FROM awa.queues ORDER BY queue
"""
SET_SHARDS = """
INSERT INTO awa.queues (queue, shards) VALUES ($1, $2) ON CONFLICT (queue) DO UPDATE SET shards = excluded.shards
"""
# A dispatcher that goes idle says so, then looks once more; a producer that reads the mark notifies.
MARK_ASLEEP = """
INSERT INTO awa.sleepers AS s (name, until) VALUES ($1, clock_timestamp() + make_interval(secs => $2))
ON CONFLICT (name) DO UPDATE SET until = excluded.until
"""


@attrs.frozen
class QueueSettings:
    """What is set about a queue."""

    queue: str
    paused: bool
    paused_at: dt.datetime | None
    paused_by: str | None
    paused_until: dt.datetime | None
    shards: int


@attrs.frozen
class QueueStats:
    """Jobs of a queue by state, all counted in one snapshot."""

    queue: str
    available: int
    running: int
    scheduled: int
    retryable: int
    waiting_external: int
    failed: int
    cancelled: int
    completed: int


async def pause(session: Session, queue: str, by: str | None, until: dt.datetime | None) -> None:
    """Stop claims from a queue everywhere, at the next claim; running attempts go on."""
    await session.execute(PAUSE, queue, by, until)


async def resume(session: Session, queue: str) -> bool:
    """Undo a pause and wake the workers; False when the queue was not paused."""
    return bool(await session.fetch(RESUME, queue))


async def stats(session: Session) -> list[QueueStats]:
    """Exact numbers of every queue that has jobs."""
    return [QueueStats(*row) for row in await session.fetch(STATS)]


async def settings(session: Session) -> list[QueueSettings]:
    """Every queue that has settings."""
    return [QueueSettings(*row) for row in await session.fetch(SETTINGS)]


async def set_shards(session: Session, queue: str, shards: int) -> None:
    """Spread a queue over shards (1 to 64): order then holds within one; jobs with one ordering_key share one."""
    await session.execute(SET_SHARDS, queue, shards)


async def mark_asleep(session: Session, name: str, seconds: float) -> None:
    """Ask producers to notify for the next `seconds`."""
    await session.execute(MARK_ASLEEP, name, seconds)
