"""What an instance holds, as the database sees it: where the answer of a claim was lost, nobody else knows."""

from __future__ import annotations

import uuid

from awa_actors.store.pool import Session

HELD = """
SELECT l.job_id, l.run_lease FROM awa_queue.leases l JOIN awa_queue.bodies b ON b.slot = l.slot AND b.job_id = l.job_id
WHERE l.instance = $1 AND l.state = 'running' AND b.queue = $2
UNION ALL SELECT h.job_id, h.run_lease FROM awa.jobs_hot h
WHERE h.instance = $1 AND h.state = 'running' AND h.queue = $2
"""


async def held(session: Session, instance: uuid.UUID, queue: str) -> list[tuple[int, int]]:
    """Which attempts of a queue are leased to an instance: (job_id, run_lease)."""
    return [tuple(row) for row in await session.fetch(HELD, instance, queue)]
