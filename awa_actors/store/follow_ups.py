"""Follow-up jobs inside somebody's transaction, and the record of those that failed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

import attrs
import orjson

from awa_actors.core.json_text import json_text
from awa_actors.errors import AwaError, FollowUpError, TransientStoreError
from awa_actors.events import Event
from awa_actors.jobs import InsertedJob
from awa_actors.registry import Registry
from awa_actors.store.follow_up_plan import (
    DEPTH_KEY,
    FAILURES_KEY,
    SpecFailed,
    plan,
    read_declared,
)
from awa_actors.store.insert import NewJob, call, inserted
from awa_actors.store.pool import Session

__all__ = [
    "DEPTH_KEY",
    "FAILURES_KEY",
    "Failure",
    "enqueue",
    "failures",
    "forget",
    "insert",
    "record_failure",
    "take_failure",
]

DECLARED_FOR = """
SELECT application, name, version, kind, outcome, definition::pg_catalog.text AS definition
FROM awa.follow_up_specs WHERE kind = $1 AND outcome = $2 ORDER BY application, name
"""
RECORD_FAILURE = """
INSERT INTO awa.follow_up_failures (job_id, kind, outcome, spec, error, event)
VALUES ($1, $2, $3, $4, $5, $6::pg_catalog.text::pg_catalog.jsonb)
"""
LIST_FAILURES = """
SELECT id, job_id, kind, outcome, spec, error, event::pg_catalog.text AS event, failed_at
FROM awa.follow_up_failures WHERE ($2::bigint IS NULL OR id < $2) ORDER BY id DESC LIMIT $1
"""
# The row lock makes a replay exactly once: whoever comes second finds the row gone.
TAKE_FAILURE = """
DELETE FROM awa.follow_up_failures WHERE id = $1
RETURNING id, job_id, kind, outcome, spec, error, event::pg_catalog.text AS event, failed_at
"""
SAVEPOINT, KEEP, UNDO = "SAVEPOINT follow_up", "RELEASE SAVEPOINT follow_up", "ROLLBACK TO SAVEPOINT follow_up"


@attrs.frozen
class Failure:
    """A follow-up that is missing although its outcome was committed.

    Args:
        id: of the record.
        job_id, kind, outcome: whose follow-up.
        spec: which one.
        error: why.
        event: what the spec was given, for the replay.
        failed_at: when, by the database's clock.
    """

    id: int
    job_id: int
    kind: str
    outcome: str
    spec: str
    error: str
    event: dict[str, Any] = attrs.field(repr=False)
    failed_at: dt.datetime


async def insert(session: Session, jobs: Sequence[NewJob]) -> Callable[[], list[InsertedJob]]:
    """Insert follow-up jobs by the ordinary bulk insert, in the transaction that is open on the session.

    Returns:
        What reads the answer: hardly any sender wants to know the ids.

    Raises:
        UniqueConflict: another job holds a key, and the options say that this is an error.
        StoreError, ValidationError: as for any insert.
    """
    sql, values = call(jobs)
    row = await session.fetchrow(sql, *values)
    if row[0] is None:
        inserted(jobs, row)  # raises what was refused
    return partial(inserted, jobs, row)


async def enqueue(session: Session, registry: Registry, outcome: str, event: Event[Any]) -> list[InsertedJob]:
    """Plan and insert the follow-ups of a transition whose transaction is open on the session: both, or neither.

    For senders without a dispatcher: admin actions, callback resolution. What is declared in the database counts too.

    Args:
        session: in the transaction that made the transition.
        registry: of this process.
        outcome: one of `events.OUTCOME_EVENTS`.
        event: of that outcome, built from the row that the transition returned.

    Raises:
        FollowUpError: a spec or its insert failed; roll back.
        TransientStoreError: as it says; roll back.
    """
    rows = await session.fetch(DECLARED_FOR, event.job.kind, outcome)
    declared = [read_declared({**row, "definition": orjson.loads(row["definition"])}) for row in rows]
    planned = plan(registry, outcome, event, declared)
    if isinstance(planned, SpecFailed):
        raise FollowUpError(f"follow-up {planned.spec} failed, nothing was changed: {planned.error}")
    if not planned.jobs:
        return []
    try:
        return (await insert(session, planned.jobs))()
    except TransientStoreError:
        raise
    except AwaError as error:
        raise FollowUpError(f"a follow-up could not be enqueued, nothing was changed: {error}") from error


async def in_savepoint(session: Session, work: Coroutine[Any, Any, object]) -> AwaError | None:
    """Do something in the open transaction that may be refused without spoiling it; gives what was wrong.

    Raises:
        TransientStoreError: the transaction is to be tried again as a whole.
    """
    try:
        await session.execute(SAVEPOINT)
    except BaseException:
        work.close()
        raise
    try:
        await work
    except TransientStoreError:
        raise
    except AwaError as error:
        await session.execute(UNDO)
        return error
    await session.execute(KEEP)
    return None


async def record_failure(
    session: Session, job_id: int, kind: str, outcome: str, failure: SpecFailed, event: dict[str, Any]
) -> None:
    """Record a follow-up that is missing although its outcome is committed, where operators see and replay it."""
    text = json_text(event, limit=2**28)
    await session.execute(RECORD_FAILURE, job_id, kind, outcome, failure.spec, failure.error, text)


async def failures(session: Session, limit: int, before: int | None = None) -> list[Failure]:
    """Recorded failures, newest first."""
    return _failures(await session.fetch(LIST_FAILURES, limit, before))


async def take_failure(session: Session, failure_id: int) -> Failure | None:
    """Take one record out, in the transaction that is open on the session; None when somebody else has."""
    found = _failures(await session.fetch(TAKE_FAILURE, failure_id))
    return found[0] if found else None


async def forget(session: Session, failure_id: int) -> bool:
    """Delete one record; False when there is none."""
    return await take_failure(session, failure_id) is not None


def _failures(rows: Iterable[Any]) -> list[Failure]:
    return [Failure(**{**row, "event": orjson.loads(row["event"])}) for row in rows]
