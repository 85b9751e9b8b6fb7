"""One row per process start: what it is, what it does, and when it was last alive."""

from __future__ import annotations

import uuid
from typing import Any

import attrs
import orjson

from awa_actors.store.pool import Session

REGISTER = """
INSERT INTO awa.instances (id, role, hostname, pid, version, stale_after, kinds, queues, details)
VALUES ($1, $2, $3, $4, $5, make_interval(secs => $6), $7, $8::text::jsonb, $9::text::jsonb)
"""
# A row that was declared dead is not beaten alive again: this instance's attempts are already going elsewhere.
BEAT = "UPDATE awa.instances SET last_beat_at = clock_timestamp() WHERE id = $1 AND dead_at IS NULL RETURNING true"
PUBLISH = """
UPDATE awa.instances SET state = $2, lanes = $3::text::jsonb, details = $4::text::jsonb WHERE id = $1 AND dead_at IS
NULL
"""
# Releasing happens in one transaction with the declaration: whoever sees the instance dead may take its attempts.
LEAVE = """
UPDATE awa.instances SET dead_at = clock_timestamp(), state = 'stopped' WHERE id = $1 AND dead_at IS NULL
"""
LIST = """
SELECT id::text, role, hostname, pid, version, state, started_at, last_beat_at, dead_at, kinds, queues::text,
lanes::text, details::text,
       extract(epoch FROM clock_timestamp() - last_beat_at)::float8 AS beat_age,
       dead_at IS NULL AND last_beat_at + stale_after >= clock_timestamp() AS alive
FROM awa.instances WHERE dead_at IS NULL OR $1 ORDER BY started_at
"""


@attrs.frozen
class Identity:
    """What a process says about itself when it registers."""

    id: uuid.UUID
    role: str
    hostname: str
    pid: int
    version: str
    stale_after: float
    kinds: tuple[str, ...]
    queues: dict[str, Any]
    details: dict[str, Any]


@attrs.frozen
class Instance:
    """One registered process; `beat_age` in seconds."""

    id: str
    role: str
    hostname: str
    pid: int
    version: str
    state: str
    alive: bool
    beat_age: float
    kinds: tuple[str, ...]
    queues: dict[str, Any]
    lanes: dict[str, Any]
    details: dict[str, Any]


async def register(session: Session, me: Identity) -> None:
    """Insert the row of a new instance."""
    await session.execute(
        REGISTER, me.id, me.role, me.hostname, me.pid, me.version, me.stale_after, list(me.kinds),
        orjson.dumps(me.queues).decode(), orjson.dumps(me.details).decode(),
    )  # fmt: skip


async def publish(
    session: Session, instance: uuid.UUID, state: str, lanes: dict[str, Any], details: dict[str, Any]
) -> None:
    """Store what health shows of this process."""
    await session.execute(PUBLISH, instance, state, orjson.dumps(lanes).decode(), orjson.dumps(details).decode())


async def leave(session: Session, instance: uuid.UUID) -> None:
    """Say that this instance is no more; whatever it still holds is rescued at the next sweep."""
    await session.execute(LEAVE, instance)


async def instances(session: Session, *, with_dead: bool = False) -> list[Instance]:
    """Registered processes, oldest first."""
    return [
        Instance(
            row["id"], row["role"], row["hostname"], row["pid"], row["version"], row["state"], row["alive"],
            row["beat_age"],
            tuple(row["kinds"]), orjson.loads(row["queues"]), orjson.loads(row["lanes"]), orjson.loads(row["details"]),
        )
        for row in await session.fetch(LIST, with_dead)
    ]  # fmt: skip
