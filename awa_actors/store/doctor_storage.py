"""What the doctor asks about where jobs live."""

from __future__ import annotations

from awa_actors.core.doctor_storage import Copy, Plane, RingLook
from awa_actors.store import hygiene
from awa_actors.store.pool import Session

SIZES = """
SELECT pg_total_relation_size('awa_queue.terminal'::regclass) AS ended,
       pg_total_relation_size('awa_queue.dlq_entries'::regclass) AS dead
"""
DONE_BYTES = (
    "SELECT sum(pg_total_relation_size(i.inhrelid)) FROM pg_inherits i WHERE i.inhparent = 'awa_queue.done'::regclass"
)
COPY = """
SELECT CASE WHEN s.is_called THEN s.last_value ELSE s.last_value - 1 END AS last_id,
       greatest((SELECT max(b.job_id) FROM awa_queue.bodies b), (SELECT max(d.job_id) FROM awa_queue.deferred_jobs d),
                (SELECT max(t.job_id) FROM awa_queue.terminal t), (SELECT max(d.job_id) FROM awa_queue.dlq_entries d),
                (SELECT max(h.job_id) FROM awa.jobs_hot h), (SELECT max(s.job_id) FROM awa.scheduled_jobs s),
                0) AS highest,
       (SELECT count(*)::int FROM awa_queue.leases l WHERE l.state = 'running'
        AND NOT EXISTS (SELECT FROM awa.instances i WHERE i.id = l.instance)) AS strangers
FROM awa.job_id_seq s
"""
PLANE = """
SELECT state, current_engine AS current, prepared_engine AS prepared,
       extract(epoch FROM clock_timestamp() - entered_at)::float8 AS since
FROM awa.storage_transition_state
"""
BACKLOG = "SELECT state, jobs FROM awa.canonical_backlog_by_state() WHERE jobs > 0"
HAS_BACKLOG = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
               WHERE n.nspname = 'awa' AND p.proname = 'canonical_backlog_by_state')
"""


async def rings(session: Session) -> list[RingLook]:
    """Every ring, with how many of its slots hold something; the segments with what completed in them."""
    slots = await hygiene.slots(session)
    found = []
    for name, count in hygiene.SLOTS.items():
        mine = [slot.bytes for slot in slots if slot.ring == name]
        extra = int(await session.fetchval(DONE_BYTES)) if name == "segments" else 0
        found.append(RingLook(name, sum(size > 0 for size in mine), count, sum(mine) + extra))
    return found


async def sizes(session: Session) -> tuple[int, int]:
    """Bytes of failed and cancelled jobs, and of dead letters."""
    row = await session.fetchrow(SIZES)
    return row["ended"], row["dead"]


async def copy(session: Session) -> Copy:
    """What tells a copy that misses something."""
    return Copy(**await session.fetchrow(COPY))


async def plane(session: Session) -> Plane | None:
    """Where jobs live, and what still holds up a move."""
    row = await session.fetchrow(PLANE)
    if row is None:
        return None
    moving = row["state"] == "mixed_transition" and await session.fetchval(HAS_BACKLOG)
    backlog = {each["state"]: each["jobs"] for each in await session.fetch(BACKLOG)} if moving else {}
    return Plane(row["state"], row["current"], row["prepared"], row["since"], backlog)
