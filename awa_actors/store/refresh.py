"""Admin refresh: the numbers that dashboards read, one row per queue and per kind, with the time they were counted."""

from __future__ import annotations

from awa_actors.store.pool import Session

# One statement, one snapshot: counts by state add up to the live jobs at that instant.
REFRESH_QUEUES = """
WITH counted AS (
    SELECT r.queue, 'available' AS state, count(*) AS jobs, min(r.ready_at) AS oldest FROM awa_queue.ready r GROUP BY
    r.queue
    UNION ALL SELECT r.queue, 'available', count(*), min(r.ready_at) FROM awa_queue.parked_ready r GROUP BY r.queue
    UNION ALL SELECT b.queue, l.state::text, count(*), NULL
              FROM awa_queue.leases l JOIN awa_queue.bodies b ON b.slot = l.slot AND b.job_id = l.job_id GROUP BY
              b.queue, l.state
    UNION ALL SELECT d.queue, d.state::text, count(*), NULL FROM awa_queue.deferred_jobs d GROUP BY d.queue, d.state
    UNION ALL SELECT t.queue, t.state::text, count(*), NULL FROM awa_queue.terminal t GROUP BY t.queue, t.state
    UNION ALL SELECT e.queue, 'dead', count(*), NULL FROM awa_queue.dlq_entries e GROUP BY e.queue
    UNION ALL SELECT b.queue, 'completed', count(*), NULL
              FROM awa_queue.done d JOIN awa_queue.bodies b ON b.slot = d.slot AND b.job_id = d.job_id
              WHERE d.finalized_at > clock_timestamp() - interval '1 hour' GROUP BY b.queue
), summed AS (
    SELECT c.queue, coalesce(sum(c.jobs) FILTER (WHERE c.state = 'available'), 0) AS available,
           coalesce(sum(c.jobs) FILTER (WHERE c.state = 'running'), 0) AS running,
           coalesce(sum(c.jobs) FILTER (WHERE c.state = 'scheduled'), 0) AS scheduled,
           coalesce(sum(c.jobs) FILTER (WHERE c.state = 'retryable'), 0) AS retryable,
           coalesce(sum(c.jobs) FILTER (WHERE c.state = 'waiting_external'), 0) AS waiting_external,
           coalesce(sum(c.jobs) FILTER (WHERE c.state = 'failed'), 0) AS failed,
           coalesce(sum(c.jobs) FILTER (WHERE c.state = 'cancelled'), 0) AS cancelled,
           coalesce(sum(c.jobs) FILTER (WHERE c.state = 'completed'), 0) AS completed_last_hour,
           coalesce(sum(c.jobs) FILTER (WHERE c.state = 'dead'), 0) AS dead_letters, min(c.oldest) AS oldest_ready_at
    FROM counted c GROUP BY c.queue
), gone AS (
    DELETE FROM awa.queue_stats q WHERE NOT EXISTS (SELECT FROM summed s WHERE s.queue = q.queue)
)
INSERT INTO awa.queue_stats AS q SELECT s.*, clock_timestamp() FROM summed s
ON CONFLICT (queue) DO UPDATE SET (available, running, scheduled, retryable, waiting_external, failed, cancelled,
    completed_last_hour, dead_letters, oldest_ready_at, refreshed_at)
  = (excluded.available, excluded.running, excluded.scheduled, excluded.retryable, excluded.waiting_external,
  excluded.failed,
     excluded.cancelled, excluded.completed_last_hour, excluded.dead_letters, excluded.oldest_ready_at,
     excluded.refreshed_at)
"""


async def refresh_queues(session: Session) -> int:
    """Count every queue once; returns how many queues have a row."""
    return int((await session.execute(REFRESH_QUEUES)).rpartition(" ")[2])
