"""What the doctor asks about jobs and those who work on them: bounded looks, whatever the backlog."""

from __future__ import annotations

from awa_actors.core.doctor import Process
from awa_actors.core.doctor_work import Lease, OutboxLook, Poisoned, QueueLook, ScheduleLook
from awa_actors.store import cron, leadership, outbox
from awa_actors.store.instances import Instance, instances
from awa_actors.store.pool import Session

JOBS_WAIT = """
SELECT EXISTS (SELECT FROM awa_queue.ready) OR EXISTS (SELECT FROM awa_queue.leases)
    OR EXISTS (SELECT FROM awa_queue.deferred_jobs d WHERE d.run_at < clock_timestamp())
    OR EXISTS (SELECT FROM awa.jobs_hot h WHERE h.state <> 'completed')
    OR EXISTS (SELECT FROM awa.scheduled_jobs s WHERE s.run_at < clock_timestamp())
"""
# Which queues hold jobs is found by walking the index from name to name. The head of each priority has waited longest,
# unless jobs with smaller positions came back later.
QUEUES = """
WITH RECURSIVE names AS (
    (SELECT r.queue FROM awa_queue.ready r ORDER BY r.queue LIMIT 1)
    UNION ALL
    SELECT (SELECT r.queue FROM awa_queue.ready r WHERE r.queue > n.queue ORDER BY r.queue LIMIT 1)
    FROM names n WHERE n.queue IS NOT NULL
), held AS (
    SELECT n.queue FROM names n WHERE n.queue IS NOT NULL UNION SELECT DISTINCT p.queue FROM awa_queue.parked_ready p
    UNION SELECT h.queue FROM (SELECT x.queue FROM awa.jobs_hot x WHERE x.state = 'available' LIMIT 5000) h
), running AS (
    SELECT a.queue, count(*) AS count, min(a.claimed_at) AS since, min(a.job_id) AS job_id FROM (
        SELECT b.queue, l.claimed_at, l.job_id
        FROM (SELECT x.slot, x.job_id, x.claimed_at FROM awa_queue.leases x WHERE x.state = 'running'
              ORDER BY x.claimed_at LIMIT 2000) l
        JOIN awa_queue.bodies b ON b.slot = l.slot AND b.job_id = l.job_id
        UNION ALL (SELECT x.queue, x.attempted_at, x.job_id FROM awa.jobs_hot x WHERE x.state = 'running' LIMIT 2000)) a
    GROUP BY a.queue
)
SELECT h.queue, c.waiting, greatest(0, extract(epoch FROM clock_timestamp() - o.oldest))::float8 AS oldest,
       coalesce(q.paused AND coalesce(q.paused_until > clock_timestamp(), true), false) AS paused, q.paused_by,
       coalesce(r.count, 0)::int AS running,
       coalesce(extract(epoch FROM clock_timestamp() - r.since), 0)::float8 AS longest, r.job_id AS longest_job
FROM held h LEFT JOIN awa.queues q ON q.queue = h.queue LEFT JOIN running r ON r.queue = h.queue
CROSS JOIN LATERAL (
    SELECT count(*)::int AS waiting FROM (
        (SELECT FROM awa_queue.ready x WHERE x.queue = h.queue LIMIT 1000)
        UNION ALL (SELECT FROM awa_queue.parked_ready x WHERE x.queue = h.queue LIMIT 1000)
        UNION ALL (SELECT FROM awa.jobs_hot x WHERE x.queue = h.queue AND x.state = 'available' LIMIT 1000)) e) c
CROSS JOIN LATERAL (
    SELECT min(e.ready_at) AS oldest FROM generate_series(1, 4) AS p (priority) CROSS JOIN LATERAL (
        (SELECT x.ready_at FROM awa_queue.ready x WHERE x.queue = h.queue AND x.priority = p.priority
         ORDER BY x.shard, x.pos LIMIT 1)
        UNION ALL (SELECT x.ready_at FROM awa_queue.parked_ready x WHERE x.queue = h.queue AND x.priority = p.priority
         ORDER BY x.shard, x.pos LIMIT 1)
        UNION ALL (SELECT x.ready_at FROM awa.jobs_hot x WHERE x.queue = h.queue AND x.priority = p.priority
         AND x.state = 'available' ORDER BY x.pos LIMIT 1)) e) o
ORDER BY o.oldest LIMIT 100
"""
# A sample of what is there now, and what the leader counted lately. A job that nobody knew goes back as scheduled.
KINDS = """
SELECT DISTINCT b.kind FROM (SELECT r.slot, r.job_id FROM awa_queue.ready r LIMIT 1000) s
JOIN awa_queue.bodies b ON b.slot = s.slot AND b.job_id = s.job_id
UNION SELECT d.kind FROM (SELECT x.kind FROM awa_queue.deferred_jobs x ORDER BY x.run_at LIMIT 1000) d
UNION SELECT h.kind FROM (SELECT x.kind FROM awa.jobs_hot x WHERE x.state = 'available' LIMIT 1000) h
UNION SELECT s.kind FROM (SELECT x.kind FROM awa.scheduled_jobs x ORDER BY x.run_at LIMIT 1000) s
UNION SELECT k.kind FROM awa.kind_stats k
WHERE k.live > 0 AND k.refreshed_at > clock_timestamp() - interval '1 minute'
"""
# Jobs that were rescued again and again, wherever they are; the bound is 5 unless maintenance says otherwise.
POISON = """
(SELECT b.job_id, b.kind, b.rescues, false AS failed
 FROM (SELECT x.slot, x.job_id FROM awa_queue.leases x LIMIT 5000) l
 JOIN awa_queue.bodies b ON b.slot = l.slot AND b.job_id = l.job_id WHERE b.rescues >= 3 LIMIT 10)
UNION ALL
(SELECT b.job_id, b.kind, b.rescues, false
 FROM (SELECT x.slot, x.job_id FROM awa_queue.ready x ORDER BY x.pos LIMIT 5000) r
 JOIN awa_queue.bodies b ON b.slot = r.slot AND b.job_id = r.job_id WHERE b.rescues >= 3 LIMIT 10)
UNION ALL
(SELECT d.job_id, d.kind, d.rescues, false FROM awa_queue.deferred_jobs d WHERE d.rescues >= 3 LIMIT 10)
UNION ALL
(SELECT h.job_id, h.kind, h.rescues, false FROM awa.jobs_hot h WHERE h.rescues >= 3 AND h.state <> 'completed' LIMIT 10)
UNION ALL
(SELECT s.job_id, s.kind, s.rescues, false FROM awa.scheduled_jobs s WHERE s.rescues >= 3 LIMIT 10)
UNION ALL
(SELECT t.job_id, t.kind, coalesce(t.rescues, 0), true FROM awa_queue.terminal t
 WHERE t.state = 'failed' AND t.errors -> -1 ->> 'error' LIKE 'rescued % times: %' LIMIT 10)
UNION ALL
(SELECT d.job_id, d.kind, coalesce(d.rescues, 0), true FROM awa_queue.dlq_entries d
 WHERE d.dlq_reason = 'rescue_bound' LIMIT 10)
"""
SCHEDULES = """
SELECT s.name, s.application, extract(epoch FROM clock_timestamp() - s.declared_at)::float8 AS declared,
       s.declared_at < clock_timestamp() - make_interval(secs => $1) AS stale
FROM awa.cron_schedules s WHERE s.paused_at IS NULL ORDER BY s.name LIMIT 1000
"""
FAILED_FOLLOW_UPS = """
SELECT (SELECT count(*)::int FROM (SELECT FROM awa.follow_up_failures LIMIT 1000) f) AS count,
       (SELECT format('%s of job %s: %s', f.spec, f.job_id, left(split_part(f.error, E'\\n', 1), 120))
        FROM awa.follow_up_failures f ORDER BY f.id DESC LIMIT 1) AS newest
"""


async def schedules(session: Session) -> list[ScheduleLook]:
    """Schedules that are not paused, and whether somebody holds the lease of those who decide them."""
    rows = await session.fetch(SCHEDULES, cron.STALE_AFTER)
    held = {name: await _is_decided(session, name) for name in sorted({row["application"] for row in rows})}
    return [ScheduleLook(**row, decided=held[row["application"]]) for row in rows]


async def _is_decided(session: Session, application: str) -> bool:
    found = await leadership.look(session, leadership.cron_lease(application))
    return found is not None and not found.is_free


async def lease(session: Session) -> Lease | None:
    """Who leads; None when nobody ever did."""
    found = await leadership.look(session)
    return None if found is None else Lease(found.holder, found.left, found.session_alive)


async def jobs_wait(session: Session) -> bool:
    """Whether a job is there that somebody should work on or move."""
    return bool(await session.fetchval(JOBS_WAIT))


async def processes(session: Session) -> list[Process]:
    """Registered processes that are not known to be dead."""
    return [_process(one) for one in await instances(session)]


def _process(one: Instance) -> Process:
    queues = {name: int(config.get("max_workers", 1)) for name, config in one.queues.items()}
    name = f"{one.role} {one.hostname}:{one.pid}"
    return Process(
        one.id, one.role, name, one.alive, one.beat_age, one.state, one.kinds, queues, one.lanes, one.details
    )


async def queues(session: Session) -> list[QueueLook]:
    """Queues that hold available jobs, the longest waiting first."""
    return [QueueLook(**row) for row in await session.fetch(QUEUES)]


async def kinds(session: Session) -> set[str]:
    """Kinds of jobs that wait."""
    return {row["kind"] for row in await session.fetch(KINDS)}


async def poison(session: Session) -> list[Poisoned]:
    """Jobs whose attempts keep ending with their worker."""
    return [Poisoned(**row) for row in await session.fetch(POISON)]


async def failed_follow_ups(session: Session) -> tuple[int, str | None]:
    """How many follow-ups are recorded as failed, and the newest of them in words."""
    row = await session.fetchrow(FAILED_FOLLOW_UPS)
    return row["count"], row["newest"]


async def waiting_outbox(session: Session) -> list[OutboxLook]:
    """What waits in the outbox."""
    return [OutboxLook(o.kind, o.spec, o.rows, o.most_tries, o.oldest, o.error) for o in await outbox.status(session)]
