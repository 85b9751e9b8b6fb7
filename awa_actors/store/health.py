"""One look at a deployment, for health: cheap at any size, since it counts nothing that maintenance counts already."""

from __future__ import annotations

from awa_actors.core.health import Deployment, Health, Lane, Leader, Process, QueueNumbers, Server
from awa_actors.store.instances import Instance, instances
from awa_actors.store.migrate import expected_version, schema_version
from awa_actors.store.pool import Session

# Only columns that every role sees of everybody's sessions.
SERVER = """
SELECT current_setting('server_version') AS version, current_setting('transaction_read_only') = 'on' AS read_only,
       count(*) FILTER (WHERE a.datname = current_database() AND a.application_name LIKE 'awa_actors %')::int AS ours,
       count(*)::int AS all_sessions, current_setting('max_connections')::int AS max_connections
FROM pg_catalog.pg_stat_activity a WHERE a.datname IS NOT NULL
"""
# When a session began is hidden from a role that asks about another's; its process id then has to do.
LEADER = """
SELECT l.holder::text AS instance, l.term, extract(epoch FROM clock_timestamp() - l.acquired_at)::float8 AS led_for,
       extract(epoch FROM clock_timestamp() - l.renewed_at)::float8 AS lease_age,
       extract(epoch FROM l.expires_at - clock_timestamp())::float8 AS lease_left
FROM awa.leadership l
WHERE l.name = 'maintenance' AND l.holder IS NOT NULL AND l.expires_at > clock_timestamp()
  AND (NOT l.sessions_matter OR EXISTS (
      SELECT FROM pg_catalog.pg_stat_activity a
      WHERE a.pid = l.backend_pid AND coalesce(a.backend_start = l.backend_start, true)))
"""
QUEUES = """
SELECT q.queue, q.available, q.running, q.scheduled, q.retryable, q.waiting_external, q.failed, q.dead_letters,
       extract(epoch FROM clock_timestamp() - q.oldest_ready_at)::float8 AS oldest_available_age,
       extract(epoch FROM clock_timestamp() - q.refreshed_at)::float8 AS counted_age
FROM awa.queue_stats q ORDER BY q.queue
"""
JOBS_WAIT = """
SELECT EXISTS (SELECT FROM awa_queue.ready) OR EXISTS (SELECT FROM awa_queue.parked_ready)
    OR EXISTS (SELECT FROM awa_queue.leases) OR EXISTS (SELECT FROM awa_queue.deferred_jobs)
    OR EXISTS (SELECT FROM awa.jobs_hot WHERE state <> 'completed') OR EXISTS (SELECT FROM awa.scheduled_jobs)
"""


async def server(session: Session) -> Server:
    """Facts of the server; needs no schema of ours."""
    return Server(*await session.fetchrow(SERVER))


async def look(session: Session) -> Health:
    """Look once. A schema of another version is reported and not read."""
    found, expected = await schema_version(session), expected_version()
    facts = await server(session)
    if found != expected:
        return Health(facts, found, expected, None)
    row = await session.fetchrow(LEADER)
    leader = None if row is None else Leader(*row)
    registered = await instances(session)
    # A process that does not lead may still decide the schedules of its application.
    leading = [one for one in registered if one.alive or (leader is not None and one.id == leader.instance)]
    deployment = Deployment(
        leader=leader,
        lanes=tuple(lane for one in leading for lane in _lanes(one)),
        processes=tuple(_process(one) for one in registered),
        queues=tuple(QueueNumbers(*row) for row in await session.fetch(QUEUES)),
        jobs_wait=await session.fetchval(JOBS_WAIT),
    )
    return Health(facts, found, expected, deployment)


def _lanes(leading: Instance) -> list[Lane]:
    return [
        Lane(name, lane["healthy"], lane["last_success_age"], lane["last_error"], lane["blocked"])
        for name, lane in leading.lanes.items()
    ]


def _process(one: Instance) -> Process:
    return Process(
        one.id, one.role, one.hostname, one.pid, one.version, one.state, one.alive, one.beat_age, tuple(one.queues),
        one.details.get("totals", {}),
    )  # fmt: skip
