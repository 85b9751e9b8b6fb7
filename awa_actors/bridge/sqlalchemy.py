"""Enqueue on a SQLAlchemy session or connection, over any PostgreSQL driver: the job exists when it commits."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, TextClause, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session

from awa_actors.bridge.statements import named, names, translated, wrong_connection
from awa_actors.errors import UsageError
from awa_actors.jobs import FinalizationReceipt, InsertedJob, InsertOpts, JobRow
from awa_actors.registry import Registry
from awa_actors.store import resolve as resolutions
from awa_actors.store.completion import COMPLETE_ATTEMPT, completion, receipt
from awa_actors.store.decided import ExternalOutcome, outcome_of
from awa_actors.store.insert import NewJob, admit, admit_many, inserted, parameters, statement
from awa_actors.store.stepping import run_steps

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    Sync = Connection | Session | scoped_session[Any]
    Async = AsyncConnection | AsyncSession | async_scoped_session[Any]


def insert(conn: Sync, args: Any, opts: InsertOpts | None = None) -> InsertedJob:
    """Insert one job in the transaction of a session or connection, which SQLAlchemy begins where none is open.

    The session is not flushed: flush it yourself where the args name the key of a new object.

    Args:
        conn: a Session, a scoped_session or a Connection on PostgreSQL.
        args: an instance of an args class.
        opts: how it differs from what the class declares.

    Raises:
        ValidationError: something in it cannot be stored; nothing was sent.
        UniqueConflict: another job holds its unique key; nothing was inserted, and the transaction stays usable.
        UsageError: `conn` is something else, or on another database; an async one goes to :func:`insert_async`.
        StoreError: the database refused; the transaction is aborted, as after any failed statement.
    """
    return _insert(_connection(conn, "insert"), [admit(args, opts)])[0]


def insert_many(conn: Sync, jobs: Iterable[Any], opts: InsertOpts | None = None) -> list[InsertedJob]:
    """Insert many jobs, all or none and in their order, as :func:`insert` does one.

    Args:
        conn: as there.
        jobs: instances of args classes, not necessarily of one.
        opts: options of every one of them.
    """
    return _insert(_connection(conn, "insert_many"), admit_many(jobs, opts))


async def insert_async(conn: Async, args: Any, opts: InsertOpts | None = None) -> InsertedJob:
    """Insert one job on an async session or connection, as :func:`insert` does on a sync one."""
    return await _asynchronous(conn, "insert_async").run_sync(insert, args, opts)


async def insert_many_async(conn: Async, jobs: Iterable[Any], opts: InsertOpts | None = None) -> list[InsertedJob]:
    """Insert many jobs on an async session or connection, as :func:`insert_many` does on a sync one."""
    return await _asynchronous(conn, "insert_many_async").run_sync(insert_many, jobs, opts)


def resolve(
    conn: Sync, resolution: resolutions.Resolution, *, registry: Registry | None = None
) -> resolutions.Resolved:
    """Run a resolution of a callback, with its follow-ups, in the transaction of a session or connection.

    Args:
        conn: a Session, a scoped_session or a Connection on PostgreSQL.
        resolution: made by :mod:`awa_actors.store.resolve`, or by a web service that admitted a request.
        registry: whose follow-ups go into the same transaction; what the database declares goes there in any case.

    Raises:
        CallbackNotFound: there is no open callback of this id; the transaction stays usable.
        FollowUpError: a follow-up failed: the callback is open as before, and the transaction stays usable.
    """
    connection = _connection(conn, "resolve")
    with connection.begin_nested():
        made = resolutions.steps(resolution, registry or Registry())
        return run_steps(made, functools.partial(fetch_row, connection))


def complete(conn: Sync, job: Any) -> FinalizationReceipt:
    """Complete the job whose handler this is, in the transaction of a session or connection; return the receipt.

    Args:
        conn: a Session, a scoped_session or a Connection on PostgreSQL.
        job: of a kind registered with ``completion=awa.Completion.CALLER_OWNED``.

    Raises:
        StaleAttempt: the attempt was taken away; let it out, so that this transaction is rolled back.
        UsageError: the runtime completes jobs of this kind.
    """
    fetch_row(_connection(conn, "complete"), COMPLETE_ATTEMPT, *completion(job))
    return receipt(job)


def complete_external(conn: Sync, callback_id: str, payload: Any = None, *, registry: Registry | None = None) -> JobRow:
    """Complete the job of a callback with the payload as its result, as :func:`resolve` does it."""
    return resolve(conn, resolutions.complete(callback_id, payload), registry=registry).job


def fail_external(conn: Sync, callback_id: str, error: str, *, registry: Registry | None = None) -> JobRow:
    """Fail the job of a callback for good."""
    return resolve(conn, resolutions.fail(callback_id, error), registry=registry).job


def retry_external(conn: Sync, callback_id: str, *, registry: Registry | None = None) -> JobRow:
    """Run the waiting job of a callback again from the start."""
    return resolve(conn, resolutions.retry(callback_id), registry=registry).job


def resume_external(conn: Sync, callback_id: str, payload: Any = None, *, registry: Registry | None = None) -> JobRow:
    """Let the job of a callback go on with the payload."""
    return resolve(conn, resolutions.resume(callback_id, payload), registry=registry).job


def resolve_external(
    conn: Sync,
    callback_id: str,
    payload: Any = None,
    default_action: str = "ignore",
    *,
    registry: Registry | None = None,
) -> ExternalOutcome:
    """Let the callback's own expressions decide what the payload means; locked until the transaction ends."""
    return outcome_of(
        resolve(conn, resolutions.by_expressions(callback_id, payload, default_action), registry=registry)
    )


def heartbeat_callback(
    conn: Sync, callback_id: str, seconds: float = 3600.0, *, registry: Registry | None = None
) -> JobRow:
    """Let a callback expire this many seconds from now instead."""
    return resolve(conn, resolutions.heartbeat(callback_id, seconds), registry=registry).job


async def resolve_async(
    conn: Async, resolution: resolutions.Resolution, *, registry: Registry | None = None
) -> resolutions.Resolved:
    """Run a resolution on an async session or connection, as :func:`resolve` does on a sync one."""
    return await _asynchronous(conn, "resolve_async").run_sync(resolve, resolution, registry=registry)


async def complete_external_async(
    conn: Async, callback_id: str, payload: Any = None, *, registry: Registry | None = None
) -> JobRow:
    """Complete the job of a callback with the payload as its result."""
    return (await resolve_async(conn, resolutions.complete(callback_id, payload), registry=registry)).job


async def fail_external_async(conn: Async, callback_id: str, error: str, *, registry: Registry | None = None) -> JobRow:
    """Fail the job of a callback for good."""
    return (await resolve_async(conn, resolutions.fail(callback_id, error), registry=registry)).job


async def retry_external_async(conn: Async, callback_id: str, *, registry: Registry | None = None) -> JobRow:
    """Run the waiting job of a callback again from the start."""
    return (await resolve_async(conn, resolutions.retry(callback_id), registry=registry)).job


async def resume_external_async(
    conn: Async, callback_id: str, payload: Any = None, *, registry: Registry | None = None
) -> JobRow:
    """Let the job of a callback go on with the payload."""
    return (await resolve_async(conn, resolutions.resume(callback_id, payload), registry=registry)).job


async def resolve_external_async(
    conn: Async,
    callback_id: str,
    payload: Any = None,
    default_action: str = "ignore",
    *,
    registry: Registry | None = None,
) -> ExternalOutcome:
    """Let the callback's own expressions decide what the payload means; locked until the transaction ends."""
    asked = resolutions.by_expressions(callback_id, payload, default_action)
    return outcome_of(await resolve_async(conn, asked, registry=registry))


async def heartbeat_callback_async(
    conn: Async, callback_id: str, seconds: float = 3600.0, *, registry: Registry | None = None
) -> JobRow:
    """Let a callback expire this many seconds from now instead."""
    return (await resolve_async(conn, resolutions.heartbeat(callback_id, seconds), registry=registry)).job


def fetch_row(conn: Connection, sql: str, *values: Any) -> Sequence[Any]:
    """Run one statement that gives one row.

    Raises:
        AwaError: translated from what the driver raises.
    """
    try:
        return conn.execute(_clause(sql), names(values)).one()
    except DBAPIError as error:
        raise translated(error, lost=error.connection_invalidated) from error


def _insert(conn: Connection, jobs: Sequence[NewJob]) -> list[InsertedJob]:
    if not jobs:
        return []
    return inserted(jobs, fetch_row(conn, statement(jobs), *parameters(jobs)))


@functools.cache
def _clause(sql: str) -> TextClause:
    return text(named(sql))


def _connection(conn: object, function: str) -> Connection:
    found = conn.connection() if isinstance(conn, Session | scoped_session) else conn
    if not isinstance(found, Connection):
        takes = "a Session or Connection"
        raise wrong_connection(conn, bridge="sqlalchemy", function=function, takes=takes)
    if found.dialect.name != "postgresql":
        raise UsageError(f"jobs are stored in PostgreSQL, and this connection is to {found.dialect.name}")
    return found


def _asynchronous(conn: object, function: str) -> AsyncConnection | AsyncSession:
    # Here and not above: this needs greenlet, which those who stay synchronous may not have.
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

    found = conn() if isinstance(conn, async_scoped_session) else conn
    if not isinstance(found, AsyncConnection | AsyncSession):
        takes = "an AsyncSession or AsyncConnection"
        raise wrong_connection(conn, bridge="sqlalchemy", function=function, takes=takes)
    return found
