"""Dead letters: jobs that failed for good, kept apart for operators; and the bulk moves of failed jobs."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import attrs
import orjson

from awa_actors.jobs import JobRow
from awa_actors.store.pool import Session
from awa_actors.store.rows import job_row
from awa_actors.store.trace import step, watched

FILTER = """($1::text IS NULL OR d.kind = $1) AND ($2::text IS NULL OR d.queue = $2)
AND ($3::text IS NULL OR d.tags @> ARRAY[$3])"""
LIST = f"""
SELECT to_jsonb(d.*) AS job, d.dlq_at FROM awa_queue.dlq_entries d
WHERE {FILTER} AND ($4::timestamptz IS NULL OR (d.dlq_at, d.job_id) < ($4, $5))
ORDER BY d.dlq_at DESC, d.job_id DESC LIMIT $6
"""
SHOW = "SELECT to_jsonb(d.*) AS job, d.dlq_at FROM awa_queue.dlq_entries d WHERE d.job_id = $1"
DEPTH = """
SELECT d.queue, count(*) AS letters, min(d.dlq_at) AS oldest FROM awa_queue.dlq_entries d
WHERE $1::text IS NULL OR d.queue = $1 GROUP BY d.queue ORDER BY d.queue
"""
POLICY = """
INSERT INTO awa.queues (queue, dlq_enabled, dlq_retention) VALUES ($1, $2, make_interval(secs => $3))
ON CONFLICT (queue) DO UPDATE SET dlq_enabled = excluded.dlq_enabled, dlq_retention = excluded.dlq_retention
"""
POLICIES = """
SELECT queue, coalesce(dlq_enabled, false), extract(epoch FROM dlq_retention)::float8 FROM awa.queues
WHERE dlq_enabled IS NOT NULL OR dlq_retention IS NOT NULL ORDER BY queue
"""
# In which queue it was dead, as this statement's snapshot shows it.
RETRY = """
SELECT awa_queue.retry_ended($1, true, $2, $3::smallint, $4) AS job, clock_timestamp() AS t,
       (SELECT d.queue FROM awa_queue.dlq_entries d WHERE d.job_id = $1) AS queue
"""
RETRY_EACH = "SELECT retried, refused::text AS refused FROM awa_queue.retry_each($1, $2, $3, $4::smallint, $5)"
NOW = "SELECT clock_timestamp()"
# Oldest first and only what was there at the beginning: a job that dies again meanwhile is not retried again.
DEAD_PAGE = f"""
SELECT d.dlq_at AS at, d.job_id, d.queue FROM awa_queue.dlq_entries d
WHERE {FILTER} AND d.dlq_at <= $4 AND ($5::timestamptz IS NULL OR (d.dlq_at, d.job_id) > ($5, $6))
ORDER BY d.dlq_at, d.job_id LIMIT $7
"""
FAILED_PAGE = f"""
SELECT d.finalized_at AS at, d.job_id, d.queue FROM awa_queue.terminal d
WHERE {FILTER} AND d.state = 'failed' AND d.finalized_at <= $4
  AND ($5::timestamptz IS NULL OR (d.finalized_at, d.job_id) > ($5, $6))
ORDER BY d.finalized_at, d.job_id LIMIT $7
"""
MOVE = "SELECT kind, queue, jobs FROM awa_queue.move_failed($1, $2, $3, $4, $5)"
DISCARD = "SELECT queue, jobs FROM awa_queue.discard($1, $2, $3, $4, $5)"
PAGE = 500
"""Rows of one transaction of a bulk form: short enough that nobody waits for its locks."""
REFUSED_TOLD = 100
"""Refused rows that an answer names; all are counted."""


@attrs.frozen
class DeadLetter:
    """A job that failed for good, why it is here, and since when."""

    job: JobRow
    reason: str
    at: dt.datetime


@attrs.frozen
class Depth:
    """How many dead letters a queue has, and since when the oldest is here."""

    queue: str
    letters: int
    oldest: dt.datetime


@attrs.frozen
class Policy:
    """Whether failures of a queue become dead letters; `retention` in seconds, None for the deployment's."""

    queue: str
    enabled: bool
    retention: float | None


@attrs.frozen
class Filter:
    """Which jobs a bulk form is about."""

    kind: str | None = None
    queue: str | None = None
    tag: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it lets everything through."""
        return self.kind is None and self.queue is None and self.tag is None


@attrs.frozen
class Redrive:
    """Where retried jobs go instead of where they came from; None keeps what they had, and now."""

    queue: str | None = None
    priority: int | None = None
    run_at: dt.datetime | None = None


@attrs.frozen
class Retried:
    """What a bulk retry did.

    Args:
        retried: jobs that run again.
        refused: jobs that stay, almost always because a newer job holds their unique key.
        reasons: the first hundred of these, by job id.
        by_queue: how many run again, by the queue that they had failed in.
    """

    retried: int
    refused: int
    reasons: dict[int, str]
    by_queue: dict[str, int] = attrs.field(factory=dict)


def _letter(row: Any) -> DeadLetter:
    stored = orjson.loads(row["job"])
    return DeadLetter(job_row(stored), stored["dlq_reason"], row["dlq_at"])


async def letters(
    session: Session, wanted: Filter, before: tuple[dt.datetime, int] | None, limit: int
) -> list[DeadLetter]:
    """Newest first, beyond `before`: time and id of the last letter of the page before."""
    at, job_id = before or (None, None)
    rows = await session.fetch(LIST, wanted.kind, wanted.queue, wanted.tag, at, job_id, limit)
    return [_letter(row) for row in rows]


async def letter(session: Session, job_id: int) -> DeadLetter | None:
    """One dead letter; None when the job is none."""
    row = await session.fetchrow(SHOW, job_id)
    return None if row is None else _letter(row)


async def depth(session: Session, queue: str | None) -> list[Depth]:
    """Dead letters by queue; queues without any are missing."""
    return [Depth(*row) for row in await session.fetch(DEPTH, queue)]


async def set_policy(session: Session, queue: str, enabled: bool, retention: float | None) -> None:
    """Say whether failures of a queue become dead letters, and for how many seconds these are kept."""
    await session.execute(POLICY, queue, enabled, retention)


async def policies(session: Session) -> list[Policy]:
    """What was said about queues."""
    return [Policy(*row) for row in await session.fetch(POLICIES)]


async def retry(session: Session, job_id: int, redrive: Redrive) -> tuple[JobRow, str] | None:
    """Run a dead letter again; returns it and the queue it was dead in, or None when the job is none.

    Shape: dead letter -> ready or deferred row; attempt 0, run_lease grows on.

    Raises:
        UniqueConflict: a newer job holds its unique key; the letter stays.
    """
    with watched(session, "admin_retry"):
        row = await session.fetchrow(RETRY, job_id, redrive.queue, redrive.priority, redrive.run_at)
    if row["job"] is None:
        return None
    job = job_row(orjson.loads(row["job"]))
    if session.log is not None:
        session.log.note([step(row["t"], job.id, job.run_lease, "failed", job.state.value, "admin_retry")])
    return job, row["queue"] or job.queue


async def retry_many(session: Session, wanted: Filter, redrive: Redrive, *, dead: bool) -> Retried:
    """Run every matching job again, page by page, each page committed; refused rows stay and stop nobody.

    Args:
        session: outside a transaction.
        wanted: which jobs.
        redrive: where they go.
        dead: dead letters, or else jobs in state failed.

    Cancellation: pages that were committed stay; calling again goes on.
    """
    until, cursor = await session.fetchval(NOW), (None, None)
    retried, refused, reasons = Counter[str](), 0, dict[int, str]()
    page = DEAD_PAGE if dead else FAILED_PAGE
    if session.log is not None:
        session.log.unseen(["admin_retry"])  # the answers count jobs and do not name them
    while rows := await session.fetch(page, wanted.kind, wanted.queue, wanted.tag, until, *cursor, PAGE):
        cursor = (rows[-1]["at"], rows[-1]["job_id"])
        queues = {row["job_id"]: row["queue"] for row in rows}
        answer = await session.fetchrow(RETRY_EACH, list(queues), dead, redrive.queue, redrive.priority, redrive.run_at)
        retried.update(queues[job_id] for job_id in answer["retried"])
        for one in orjson.loads(answer["refused"]):
            refused += 1
            if len(reasons) < REFUSED_TOLD:
                reasons[one["job_id"]] = one["reason"]
    return Retried(retried.total(), refused, reasons, dict(retried))


async def move(session: Session, wanted: Filter, job_id: int | None) -> Counter[tuple[str, str]]:
    """Make dead letters, with reason `manual`, of failed jobs that are none; returns how many, by kind and queue."""
    total = Counter[tuple[str, str]]()
    while rows := await session.fetch(MOVE, wanted.kind, wanted.queue, wanted.tag, job_id, PAGE):
        total.update({(row["kind"], row["queue"]): row["jobs"] for row in rows})
    return total


async def discard(session: Session, wanted: Filter, *, dead: bool) -> Counter[str]:
    """Delete failed jobs for good, dead letters or others, with their unique keys; returns how many, by queue."""
    total = Counter[str]()
    while rows := await session.fetch(DISCARD, dead, wanted.kind, wanted.queue, wanted.tag, PAGE):
        total.update({row["queue"]: row["jobs"] for row in rows})
    return total
