"""Jobs that wait, for operators: a whole queue of them, or the one that holds a unique key."""

from __future__ import annotations

import orjson

from awa_actors.jobs import JobRow
from awa_actors.store.pool import Session
from awa_actors.store.rows import job_row
from awa_actors.store.trace import step, watched

NEWEST = "SELECT last_value FROM awa.job_id_seq"
# By queue in the index of each place. What came after the drain began stays: a busy producer must not keep it going.
WAITING = """
SELECT w.job_id FROM (
    SELECT r.job_id FROM awa_queue.ready r WHERE r.queue = $1
    UNION ALL SELECT p.job_id FROM awa_queue.parked_ready p WHERE p.queue = $1
    UNION ALL SELECT d.job_id FROM awa_queue.deferred_jobs d WHERE d.queue = $1
    UNION ALL SELECT l.job_id FROM awa_queue.leases l JOIN awa_queue.bodies b ON b.slot = l.slot AND b.job_id = l.job_id
              WHERE l.state = 'waiting_external' AND b.queue = $1
    UNION ALL SELECT h.job_id FROM awa.jobs_hot h WHERE h.queue = $1 AND h.state IN ('available', 'waiting_external')
    UNION ALL SELECT s.job_id FROM awa.scheduled_jobs s WHERE s.queue = $1
) w WHERE w.job_id <= $2 AND NOT w.job_id = ANY ($3) LIMIT $4
"""
CANCEL_WAITING = "SELECT j::text AS job, clock_timestamp() AS t FROM awa_queue.cancel_waiting($1, $2) j"
HOLDER = "SELECT c.job_id FROM awa.job_unique_claims c WHERE c.unique_key = $1"
# A job whose mask leaves out the state it is in holds no claim, so it is looked for.
OLDEST_WITH_KEY = """
SELECT j.id FROM awa.jobs j WHERE j.unique_key = $1 AND j.state NOT IN ('completed', 'failed', 'cancelled')
ORDER BY j.id LIMIT 1
"""


async def newest_id(session: Session) -> int:
    """An id that no job there is now exceeds."""
    return int(await session.fetchval(NEWEST))


async def waiting_ids(session: Session, queue: str, newest: int, without: list[int], limit: int) -> list[int]:
    """Jobs of a queue that wait (available, scheduled, retryable or for a callback), up to an id."""
    return [row[0] for row in await session.fetch(WAITING, queue, newest, without, limit)]


async def cancel_waiting(session: Session, job_ids: list[int], reason: str) -> list[JobRow]:
    """Cancel those that still wait; returns them as they landed. What runs meanwhile goes on."""
    with watched(session, "admin_cancel"):
        rows = await session.fetch(CANCEL_WAITING, job_ids, reason)
    stored = [orjson.loads(row["job"]) for row in rows]
    if session.log is not None:
        session.log.note(
            step(row["t"], one["job_id"], one["run_lease"], one["came_from"], "cancelled", "admin_cancel")
            for row, one in zip(rows, stored, strict=True)
        )
    return [job_row(one) for one in stored]


async def key_holder(session: Session, key: bytes) -> int | None:
    """The job that holds a unique key, which may have ended."""
    found: int | None = await session.fetchval(HOLDER, key)
    return found


async def oldest_with_key(session: Session, key: bytes) -> int | None:
    """The oldest job with this key that has not ended, whether it holds the claim or not. Reads all jobs."""
    found: int | None = await session.fetchval(OLDEST_WITH_KEY, key)
    return found
