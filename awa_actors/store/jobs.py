"""Single jobs, for operators: find, list, cancel, retry."""

from __future__ import annotations

import datetime as dt
from typing import Any

import orjson

from awa_actors.jobs import JobRow, JobState
from awa_actors.store.pool import Session
from awa_actors.store.rows import job_row
from awa_actors.store.trace import landed, step, watched

FIND = "SELECT awa.find_job($1)"
CANCEL = "SELECT awa.cancel_job($1, $2) AS job, clock_timestamp() AS t"
RETRY = "SELECT awa.retry_job($1) AS job, clock_timestamp() AS t"
LIST = """
SELECT j::text AS job FROM awa.list_jobs($1::text::awa.job_state, $2, $3, $4, $5, $6, $7, $8) j
"""


async def _moved(session: Session, by: str, sql: str, *args: Any) -> tuple[JobRow, JobState, bool] | None:
    with watched(session, by):
        row = await session.fetchrow(sql, *args)
    if row["job"] is None:
        return None
    values = orjson.loads(row["job"])
    job, came_from = job_row(values), JobState(values["came_from"])
    if session.log is not None and job.state is not came_from:
        who = landed(by, "cancelled" if sql == CANCEL else "available", job.state.value)
        session.log.note([step(row["t"], job.id, job.run_lease, came_from.value, job.state.value, who)])
    return job, came_from, values.get("was_dead_letter", False)


async def find(session: Session, job_id: int) -> JobRow | None:
    """One job, wherever it is (dead letters have `dlq_reason`); None when it is not (or no longer) known."""
    stored = await session.fetchval(FIND, job_id)
    return None if stored is None else job_row(orjson.loads(stored))


async def cancel(session: Session, job_id: int, reason: str) -> tuple[JobRow, JobState] | None:
    """Cancel a job that has not ended; returns the row and the state it came from, or None when none is alive."""
    moved = await _moved(session, "admin_cancel", CANCEL, job_id, reason)
    return None if moved is None else moved[:2]


async def retry(session: Session, job_id: int) -> tuple[JobRow, JobState, bool] | None:
    """Make a job available again, attempt 0; None when there is none that could be (it runs, completed, or is gone).

    Returns:
        The row, the state it came from, and whether it was a dead letter.
    """
    return await _moved(session, "admin_retry", RETRY, job_id)


async def list_jobs(
    session: Session,
    *,
    state: JobState | None = None,
    kind: str | None = None,
    queue: str | None = None,
    tag: str | None = None,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    before: int | None = None,
    limit: int = 100,
) -> list[JobRow]:
    """Newest first, ids below `before`. A page is short only when no more rows match."""
    name = None if state is None else state.value
    rows: list[Any] = await session.fetch(LIST, name, kind, queue, tag, since, until, before, limit)
    return [job_row(orjson.loads(row["job"])) for row in rows]
