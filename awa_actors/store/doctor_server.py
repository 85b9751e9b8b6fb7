"""What the doctor asks the server about itself and about other sessions. Nothing here needs our schema."""

from __future__ import annotations

import time

from awa_actors.core.doctor_server import Seats
from awa_actors.core.doctor_server import Session as Other
from awa_actors.store.pool import Session

SERVER = """
SELECT current_setting('server_version_num')::int AS version, current_setting('server_version') AS text,
       current_setting('default_transaction_read_only') = 'on' OR pg_is_in_recovery() AS read_only
"""
CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"
# A role, a database and the reserved seats each have a limit; what counts is the least of what is left for us.
SEATS = """
SELECT count(*) FILTER (WHERE a.datname = current_database() AND a.application_name LIKE 'awa_actors %')::int AS ours,
       count(*)::int AS everybody,
       least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
                 - coalesce(current_setting('reserved_connections', true)::int, 0),
             (SELECT nullif(r.rolconnlimit, -1) FROM pg_catalog.pg_roles r WHERE r.rolname = current_user),
             (SELECT nullif(d.datconnlimit, -1) FROM pg_catalog.pg_database d
              WHERE d.datname = current_database())) AS most
FROM pg_catalog.pg_stat_activity a WHERE a.datname IS NOT NULL
"""
_NAME = "nullif(concat_ws(' of ', nullif(a.application_name, ''), a.usename), '')"
_OURS = "n.nspname IN ('awa', split_part('awa_queue.', '.', 1))"
# Who waits for longer than a moment on our tables, or is a session of ours, and who is in the way. A prepared
# transaction blocks as process 0.
BLOCKERS = f"""
WITH waiting AS MATERIALIZED (
    SELECT l.pid, coalesce(max(n.nspname || '.' || c.relname), 'a row') AS relation
    FROM pg_catalog.pg_locks l
    LEFT JOIN pg_catalog.pg_class c ON c.oid = l.relation LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_stat_activity w ON w.pid = l.pid
    WHERE NOT l.granted AND w.datname = current_database() AND l.waitstart < clock_timestamp() - interval '0.5 s'
      AND ({_OURS} OR w.application_name LIKE 'awa_actors %')
    GROUP BY l.pid LIMIT 50
), blocking AS MATERIALIZED (
    SELECT b.pid, count(*) AS count, min(w.relation) AS relation, min(v.application_name) AS victim
    FROM waiting w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS b (pid)
    JOIN pg_catalog.pg_stat_activity v ON v.pid = w.pid
    WHERE b.pid NOT IN (SELECT x.pid FROM waiting x) GROUP BY b.pid
)
SELECT nullif(b.pid, 0) AS pid, coalesce({_NAME}, (SELECT min(p.gid) FROM pg_catalog.pg_prepared_xacts p
                                                  WHERE p.database = current_database()), 'unknown') AS name,
       a.state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age,
       concat(b.victim, CASE WHEN b.count > 1 THEN format(' (and %s more)', b.count - 1) END,
              ' on ', b.relation) AS what
FROM blocking b LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid
ORDER BY b.count DESC LIMIT 5
"""
# Locks that a transaction has kept for so long that it is not at work any more: any lock on a partition keeps it from
# being truncated, a strong one on anything of ours keeps everybody out.
_HOLDERS = f"""
SELECT a.pid, {_NAME} AS name, a.state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age,
       min(n.nspname || '.' || c.relname) AS what
FROM pg_catalog.pg_locks l
JOIN pg_catalog.pg_class c ON c.oid = l.relation JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND {_OURS} AND (%s) AND a.pid <> pg_backend_pid()
  AND a.datname = current_database() AND a.xact_start < clock_timestamp() - make_interval(secs => $1)
GROUP BY a.pid, a.application_name, a.usename, a.state, a.xact_start
UNION ALL
SELECT NULL, p.gid, 'prepared', extract(epoch FROM clock_timestamp() - p.prepared)::float8,
       min(n.nspname || '.' || c.relname)
FROM pg_catalog.pg_prepared_xacts p
JOIN pg_catalog.pg_locks own ON own.pid IS NULL AND own.locktype = 'transactionid' AND own.transactionid = p.transaction
JOIN pg_catalog.pg_locks l ON l.pid IS NULL AND l.virtualtransaction = own.virtualtransaction
JOIN pg_catalog.pg_class c ON c.oid = l.relation JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE {_OURS} AND (%s) AND p.database = current_database()
  AND p.prepared < clock_timestamp() - make_interval(secs => $1)
GROUP BY p.gid, p.prepared
ORDER BY 4 DESC LIMIT 5
"""
HOLDERS = _HOLDERS % (("c.relispartition",) * 2)
STRONG = ("l.mode IN ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock')",)
STRONG_HOLDERS = _HOLDERS % (STRONG * 2)
PINS = f"""
SELECT a.pid, {_NAME} AS name, a.state, extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS age, '' AS what
FROM pg_catalog.pg_stat_activity a
WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.backend_type = 'client backend'
  AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
  AND a.xact_start < clock_timestamp() - make_interval(secs => $1)
UNION ALL
SELECT NULL, p.gid, 'prepared', extract(epoch FROM clock_timestamp() - p.prepared)::float8, ''
FROM pg_catalog.pg_prepared_xacts p
WHERE p.database = current_database() AND p.prepared < clock_timestamp() - make_interval(secs => $1)
ORDER BY 4 DESC LIMIT 5
"""
# How long a slot has pinned it is not recorded: a million transactions is no longer a moment.
PINNING_SLOTS = """
SELECT s.slot_name::text AS name FROM pg_catalog.pg_replication_slots s
WHERE greatest(age(s.xmin), age(s.catalog_xmin)) > 1000000 ORDER BY 1 LIMIT 3
"""
BACKENDS = "SELECT pid FROM pg_catalog.pg_stat_activity WHERE datname = current_database()"


async def server(session: Session) -> tuple[int, str, bool]:
    """Version as a number and as text, and whether nothing can be written."""
    row = await session.fetchrow(SERVER)
    return row["version"], row["text"], row["read_only"]


async def clock(session: Session) -> tuple[float, float]:
    """Seconds by which the server's clock is ahead of this host's, and how wrong that may be."""
    sent = time.time()
    theirs: float = await session.fetchval(CLOCK)
    received = time.time()
    return theirs - (sent + received) / 2, max(0.0, received - sent) / 2


async def seats(session: Session) -> Seats:
    """Connections in use, and at most for this role in this database."""
    return Seats(*await session.fetchrow(SEATS))


async def blockers(session: Session) -> list[Other]:
    """Sessions that others wait for, on our tables or as our sessions."""
    return [Other(**row) for row in await session.fetch(BLOCKERS)]


async def holders(session: Session, patience: float) -> list[Other]:
    """Transactions that have kept locks on partitions for longer than `patience` seconds."""
    return [Other(**row) for row in await session.fetch(HOLDERS, patience)]


async def strong_holders(session: Session, patience: float) -> list[Other]:
    """Transactions that have kept everybody else out of one of our tables for longer than `patience` seconds."""
    return [Other(**row) for row in await session.fetch(STRONG_HOLDERS, patience)]


async def pins(session: Session, patience: float) -> tuple[list[Other], list[str]]:
    """Transactions older than `patience` seconds, and replication slots, that keep dead rows from being cleaned up."""
    slots = [row["name"] for row in await session.fetch(PINNING_SLOTS)]
    return [Other(**row) for row in await session.fetch(PINS, patience)], slots


async def backends(session: Session) -> set[int]:
    """The server processes of this database."""
    return {row["pid"] for row in await session.fetch(BACKENDS)}
