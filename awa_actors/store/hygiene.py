"""Hygiene: turn the rings, carry what keeps a slot from emptying, truncate, and forget what retention lets go."""

from __future__ import annotations

import math

import attrs

from awa_actors.store.pool import Session
from awa_actors.store.trace import watched

SLOTS = {"segments": 8, "ready": 8, "leases": 4}

RINGS = """
SELECT DISTINCT ON (ring) ring, generation, slot, extract(epoch FROM clock_timestamp() - turned_at)::float8 AS age
FROM awa_queue.ring_turns ORDER BY ring, generation DESC
"""
SLOT_SIZES = """
SELECT r.ring, s.slot, pg_catalog.pg_relation_size(('awa_queue.' || r.tables || '_' || s.slot)::regclass) AS bytes,
       extract(epoch FROM clock_timestamp() - (
           SELECT n.turned_at FROM awa_queue.ring_turns t JOIN awa_queue.ring_turns n ON n.ring = t.ring AND
           n.generation = t.generation + 1
           WHERE t.ring = r.ring AND t.slot = s.slot ORDER BY t.generation DESC LIMIT 1))::float8 AS sealed_for
FROM (VALUES ('segments', 'bodies', 8), ('ready', 'ready', 8), ('leases', 'leases', 4)) AS r (ring, tables, slots)
CROSS JOIN LATERAL generate_series(0, r.slots - 1) AS s (slot)
"""
TURN = "SELECT awa_queue.turn($1, $2) AS slot, clock_timestamp() AS t"
TRUNCATE_SLOT = (
    "SELECT outcome, blocker, clock_timestamp() AS t FROM awa_queue.truncate_slot($1, $2, make_interval(secs => $3))"
)
CARRY_LEASES = "SELECT awa_queue.carry_leases($1, $2)"
PARK_READY = "SELECT awa_queue.park_ready($1, $2)"
CARRY_BODIES = "SELECT awa_queue.carry_bodies($1, $2)"
FORGET = "SELECT terminal, dead FROM awa_queue.forget($1, make_interval(secs => $2), make_interval(secs => $3))"
FORGET_CANONICAL = "SELECT awa.forget_canonical($1, make_interval(secs => $2))"
FORGET_INSTANCES = """
DELETE FROM awa.instances i WHERE i.dead_at < clock_timestamp() - greatest(interval '1 hour', make_interval(secs => $1))
AND NOT EXISTS (SELECT FROM awa_queue.leases l WHERE l.instance = i.id)
AND NOT EXISTS (SELECT FROM awa.jobs_hot h WHERE h.instance = i.id AND h.state = 'running')
"""
END_STUCK = "SELECT awa.end_stuck_sessions(make_interval(secs => $1))"
COMPLETED_RETENTION = "SELECT extract(epoch FROM max(completed_retention))::float8 FROM awa.queues"


@attrs.frozen
class Ring:
    """Where a ring stands; `age` in seconds since it turned."""

    name: str
    generation: int
    slot: int
    age: float


@attrs.frozen
class Slot:
    """One slot; `bytes` 0: truncated or never used; `sealed_for`: seconds since it stopped being current.

    The ledger of turns is short: a slot that it no longer names has been sealed for longer than anybody asks.
    """

    ring: str
    number: int
    bytes: int
    sealed_for: float


@attrs.frozen
class Truncation:
    """What became of one slot: truncated, empty, current, live, history, settling, busy (`blocker`: server pid)."""

    ring: str
    slot: int
    outcome: str
    blocker: int | None


async def rings(session: Session) -> dict[str, Ring]:
    """Where each ring stands."""
    return {
        row["ring"]: Ring(row["ring"], row["generation"], row["slot"], row["age"]) for row in await session.fetch(RINGS)
    }


async def slots(session: Session) -> list[Slot]:
    """Every slot of every ring with its size on disk."""
    rows = await session.fetch(SLOT_SIZES)
    return [
        Slot(row["ring"], row["slot"], row["bytes"], math.inf if row["sealed_for"] is None else row["sealed_for"])
        for row in rows
    ]


async def turn(session: Session, ring: Ring) -> int | None:
    """Turn a ring to any empty slot, if nobody else did; None when it stays."""
    with watched(session, "turn"):
        row = await session.fetchrow(TURN, ring.name, ring.generation)
    slot: int | None = row["slot"]
    if session.log is not None and slot is not None:
        moved = {"ring": ring.name, "generation": ring.generation + 1, "from": ring.slot, "to": slot}
        session.log.note([{"t": row["t"], "by": "turn", **moved}])
    return slot


async def truncate_slot(session: Session, ring: str, slot: int, retention: float = 0.0) -> Truncation:
    """Truncate a slot if nothing in it is alive or younger than `retention` seconds. Never waits for a lock.

    A slot is truncated some seconds after it was first found empty (`settling` until then): a dump that took its
    snapshot before that has its locks by now, and finds everything its snapshot shows.
    """
    with watched(session, "truncate"):
        row = await session.fetchrow(TRUNCATE_SLOT, ring, slot, retention)
    if session.log is not None and row["outcome"] == "truncated":
        session.log.note([{"t": row["t"], "by": "truncate", "ring": ring, "slot": slot}])
    return Truncation(ring, slot, row["outcome"], row["blocker"])


async def carry_leases(session: Session, slot: int, rows: int) -> int:
    """Move up to `rows` leases out of a slot; returns how many."""
    return int(await session.fetchval(CARRY_LEASES, slot, rows))


async def park_ready(session: Session, slot: int, rows: int) -> int:
    """Move up to `rows` ready rows of paused queues out of a slot; returns how many."""
    return int(await session.fetchval(PARK_READY, slot, rows))


async def carry_bodies(session: Session, slot: int, rows: int) -> int:
    """Copy up to `rows` bodies that are still needed out of a segment, re-addressing them; returns how many."""
    return int(await session.fetchval(CARRY_BODIES, slot, rows))


async def forget(session: Session, rows: int, failed: float, dlq: float) -> int:
    """Delete up to `rows` failed, cancelled and dead jobs past their retention (seconds); returns how many."""
    row = await session.fetchrow(FORGET, rows, failed, dlq)
    return int(row["terminal"] + row["dead"])


async def forget_canonical(session: Session, rows: int, completed: float) -> int:
    """Delete up to `rows` completed jobs of the canonical plane past their retention (seconds); returns how many."""
    return int(await session.fetchval(FORGET_CANONICAL, rows, completed))


async def forget_instances(session: Session, completed: float) -> None:
    """Delete rows of instances that hold nothing and have been dead for as long as completed jobs may name them.

    Args:
        session: any.
        completed: seconds that completed jobs are kept; a dead instance stays for an hour at least.
    """
    await session.execute(FORGET_INSTANCES, completed)


async def end_stuck_sessions(session: Session, after: float) -> int:
    """End sessions of this role that have been sending an answer nobody reads for `after` seconds; returns how many."""
    return int(await session.fetchval(END_STUCK, after))


async def completed_retention(session: Session, default: float) -> float:
    """The longest retention of completed jobs that any queue asks for, in seconds."""
    configured = await session.fetchval(COMPLETED_RETENTION)
    return max(default, configured or 0.0)
