"""Leases of leaders: a row each, renewed by compare-and-swap on (holder, term), judged by the database's clock."""

from __future__ import annotations

import uuid

import attrs

from awa_actors.store.pool import Session
from awa_actors.store.trace import watched

# When a session began is hidden from a role that asks about another's; its process id then has to do.
_SESSION_LIVES = """EXISTS (
       SELECT FROM pg_catalog.pg_stat_activity a
       WHERE a.pid = l.backend_pid AND coalesce(a.backend_start = l.backend_start, true))"""
# Take the lease when it is free: expired, given up, or its holder's session is gone from the server, where sessions
# mean something. One statement; the conflicting row is locked, so two candidates cannot both win.
ACQUIRE = f"""
INSERT INTO awa.leadership AS l
    (name, holder, term, expires_at, backend_pid, backend_start, sessions_matter, acquired_at, renewed_at)
SELECT $1, $2, nextval('awa.leadership_term_seq'), clock_timestamp() + make_interval(secs => $3), a.pid,
       a.backend_start, $4, clock_timestamp(), clock_timestamp()
FROM (SELECT pid, backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_backend_pid()) a
ON CONFLICT (name) DO UPDATE SET
    holder = excluded.holder, term = excluded.term, expires_at = excluded.expires_at,
    backend_pid = excluded.backend_pid, backend_start = excluded.backend_start,
    sessions_matter = excluded.sessions_matter, acquired_at = excluded.acquired_at, renewed_at = excluded.renewed_at,
    resign_requested = false
WHERE l.holder IS NULL OR l.expires_at < clock_timestamp() OR (l.sessions_matter AND NOT {_SESSION_LIVES})
RETURNING term, clock_timestamp() AS t
"""
# What a candidate looks at between elections: who leads, and whether its session still lives. Writes nothing.
LOOK = f"""
SELECT l.holder, l.term, extract(epoch FROM l.expires_at - clock_timestamp())::float8 AS left,
       l.holder IS NOT NULL AND (NOT l.sessions_matter OR {_SESSION_LIVES}) AS session_alive
FROM awa.leadership l WHERE l.name = $1
"""
RENEW = """
UPDATE awa.leadership SET expires_at = clock_timestamp() + make_interval(secs => $4), renewed_at = clock_timestamp()
WHERE name = $1 AND holder = $2 AND term = $3 AND expires_at > clock_timestamp() RETURNING resign_requested
"""
RESIGN = """
UPDATE awa.leadership SET holder = NULL, expires_at = clock_timestamp()
WHERE name = $1 AND holder = $2 AND term = $3 RETURNING pg_catalog.pg_notify('awa:leader', 'resigned')
"""
REQUEST_RESIGN = """
UPDATE awa.leadership SET resign_requested = true WHERE name = $1 AND holder IS NOT NULL AND expires_at >
clock_timestamp()
RETURNING term, pg_catalog.pg_notify('awa:leader', 'resign')
"""
MAINTENANCE = "maintenance"
"""The lease of whoever runs the lanes; `cron_lease` names those of the applications that declare schedules."""


@attrs.frozen
class Lease:
    """Who leads: `left` is seconds until expiry; `session_alive` False means the holder's session is gone."""

    holder: str | None
    term: int
    left: float
    session_alive: bool

    @property
    def is_free(self) -> bool:
        """Whether a candidate would win now."""
        return self.holder is None or self.left <= 0 or not self.session_alive


def cron_lease(application: str) -> str:
    """Name the lease of the process that decides the schedules of an application."""
    return f"cron of {application}"


async def acquire(session: Session, holder: uuid.UUID, lease: float, name: str = MAINTENANCE) -> int | None:
    """Stand for election; returns the term that was won, or None. `lease` in seconds."""
    with watched(session, "elected"):
        row = await session.fetchrow(ACQUIRE, name, holder, lease, not session.pooler)
    if row is None:
        return None
    if session.log is not None:
        session.log.note([{"t": row["t"], "by": "elected", "lease": name, "term": row["term"], "instance": holder}])
    return int(row["term"])


async def look(session: Session, name: str = MAINTENANCE) -> Lease | None:
    """Who leads now; None when nobody ever did."""
    row = await session.fetchrow(LOOK, name)
    if row is None:
        return None
    return Lease(None if row["holder"] is None else str(row["holder"]), row["term"], row["left"], row["session_alive"])


async def renew(session: Session, holder: uuid.UUID, term: int, lease: float, name: str = MAINTENANCE) -> bool | None:
    """Extend the lease of this very term.

    Returns:
        None when the term is over; else whether somebody asked the leader to resign.
    """
    asked: bool | None = await session.fetchval(RENEW, name, holder, term, lease)
    return asked


async def resign(session: Session, holder: uuid.UUID, term: int, name: str = MAINTENANCE) -> None:
    """Give the lease back and tell the candidates. An old term changes nothing."""
    await session.execute(RESIGN, name, holder, term)


async def request_resign(session: Session) -> int | None:
    """Ask the leader to give up its term; returns that term, or None when nobody leads."""
    row = await session.fetchrow(REQUEST_RESIGN, MAINTENANCE)
    return None if row is None else row["term"]
