"""What tests of applications ask of a database: databases of their own, one claim, a clock that jumps."""

from __future__ import annotations

import re
import uuid
from typing import Any

import attrs
import orjson

from awa_actors.errors import UsageError
from awa_actors.jobs import JobRow
from awa_actors.store.claim import ENDED_AT_CLAIM, Claim, claim, claim_of
from awa_actors.store.pool import Session
from awa_actors.store.rows import job_row
from awa_actors.store.trace import watched

NOWHERE = 2**63 - 1
"""A hint behind every position: a lane with it is empty to a claim."""
_NAME = re.compile(r"[a-z0-9_]{1,60}")

FIRST_READY = """
SELECT r.queue, r.priority, r.shard, r.pos, coalesce(q.lanes, 1) AS shards
FROM awa_queue.ready r JOIN awa_queue.bodies b ON b.slot = r.slot AND b.job_id = r.job_id
LEFT JOIN awa.queues q ON q.queue = r.queue
WHERE ($1::text IS NULL OR b.kind = $1)
  AND NOT coalesce(q.paused AND coalesce(q.paused_until > clock_timestamp(), true), false)
ORDER BY r.priority, r.pos LIMIT 1
"""
FIRST_HOT = """
SELECT h.queue, h.job_id FROM awa.jobs_hot h LEFT JOIN awa.queues q ON q.queue = h.queue
WHERE h.state = 'available' AND ($1::text IS NULL OR h.kind = $1)
  AND NOT coalesce(q.paused AND coalesce(q.paused_until > clock_timestamp(), true), false)
ORDER BY h.priority, h.pos LIMIT 1
"""
# The claim of the canonical plane takes the head of a queue; this is the part of it that takes what it has chosen.
LEASE_HOT = """
SELECT l.* FROM awa.lease_hot(ARRAY[$1::bigint], $2, (
    SELECT nullif(q.override_deadline_ms, 0) FROM awa.queues q WHERE q.queue = $3), clock_timestamp()) l
"""
WAITING = """
SELECT to_jsonb(j.*) AS job FROM awa.jobs j
WHERE j.state IN ('available', 'scheduled', 'retryable') AND ($1::text IS NULL OR j.kind = $1) ORDER BY j.id LIMIT 1000
"""
EXPIRE = """
UPDATE awa.instances SET last_beat_at = clock_timestamp() - stale_after - interval '1 second' WHERE dead_at IS NULL
"""


@attrs.frozen
class FirstClaim:
    """The first job that waits, claimed: its queue and the claim of one attempt."""

    queue: str
    claim: Claim


async def claim_first(session: Session, instance: uuid.UUID, kind: str | None) -> FirstClaim | None:
    """Claim the first available job (of a kind) through the claim that workers use; None when none is available.

    Shape: one ready row -> one lease; neighbours are not touched. Paused queues are passed over, as workers do, and
    the canonical plane comes first.
    """
    return await _claim_hot(session, instance, kind) or await _claim_ready(session, instance, kind)


async def _claim_hot(session: Session, instance: uuid.UUID, kind: str | None) -> FirstClaim | None:
    while (row := await session.fetchrow(FIRST_HOT, kind)) is not None:
        with watched(session, "claim", *ENDED_AT_CLAIM):
            batch = await session.fetchrow(LEASE_HOT, row["job_id"], instance, row["queue"])
        taken = claim_of(session, batch, instance)
        if taken.attempts:
            return FirstClaim(row["queue"], taken)
        # Somebody else has it, or it ended at the claim: either way it is not available any more.
    return None


async def _claim_ready(session: Session, instance: uuid.UUID, kind: str | None) -> FirstClaim | None:
    row = await session.fetchrow(FIRST_READY, kind)
    while row is not None:
        hints = [NOWHERE] * (4 * row["shards"])
        hints[(row["priority"] - 1) * row["shards"] + row["shard"]] = row["pos"]
        taken = await claim(
            session, row["queue"], 1, instance, max_bytes=1 << 40, aging=0.0, deadline=None, hints=hints
        )
        if taken.attempts:
            return FirstClaim(row["queue"], taken)
        # It ended at the claim (as a duplicate, or because it cannot be claimed), or somebody else has it.
        before, row = row, await session.fetchrow(FIRST_READY, kind)
        if row is not None and row["pos"] == before["pos"]:
            return None
    return None


async def waiting(session: Session, kind: str | None) -> list[JobRow]:
    """Jobs that are available, scheduled or retryable, oldest first; at most a thousand."""
    rows: list[Any] = await session.fetch(WAITING, kind)
    return [job_row(orjson.loads(row["job"])) for row in rows]


async def expire_instances(session: Session) -> None:
    """Make every living process look as if it had stopped beating long ago."""
    await session.execute(EXPIRE)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of a test database")
    return name


async def create_database(session: Session, name: str, template: str = "template0") -> None:
    """Create a database as a copy of another one, which nobody may be connected to."""
    copied = f'CREATE DATABASE "{_checked(name)}" TEMPLATE "{_checked(template)}" STRATEGY FILE_COPY'
    await session.execute(copied)


async def drop_database(session: Session, name: str) -> None:
    """Drop a database, whoever is connected to it."""
    await session.execute(f'DROP DATABASE IF EXISTS "{_checked(name)}" WITH (FORCE)')
