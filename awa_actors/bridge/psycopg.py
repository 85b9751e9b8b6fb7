"""Enqueue on a psycopg connection (3.2 or newer): the job exists when the caller's transaction commits."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
import psycopg.pq
from psycopg.rows import tuple_row

from awa_actors.bridge.statements import translated, wrong_connection
from awa_actors.jobs import FinalizationReceipt, InsertedJob, InsertOpts, JobRow
from awa_actors.registry import Registry
from awa_actors.store import resolve as resolutions
from awa_actors.store.completion import COMPLETE_ATTEMPT, completion, receipt
from awa_actors.store.decided import ExternalOutcome, outcome_of
from awa_actors.store.insert import NewJob, admit, admit_many, inserted, parameters, statement
from awa_actors.store.stepping import run_steps, run_steps_async

Connection = psycopg.Connection[Any] | psycopg.Cursor[Any]
AsyncConnection = psycopg.AsyncConnection[Any] | psycopg.AsyncCursor[Any]
# Of a cursor only its connection is used: what the caller has yet to fetch from it stays.


def insert(conn: Connection, args: Any, opts: InsertOpts | None = None) -> InsertedJob:
    """Insert one job in the transaction of a connection; psycopg begins one where none is open, unless in autocommit.

    Args:
        conn: a connection, or a cursor on it.
        args: an instance of an args class.
        opts: how it differs from what the class declares.

    Raises:
        ValidationError: something in it cannot be stored; nothing was sent.
        UniqueConflict: another job holds its unique key; nothing was inserted, and the transaction stays usable.
        UsageError: `conn` is something else; an async connection goes to :func:`insert_async`.
        StoreError: the database refused; the transaction is aborted, as after any failed statement.
    """
    return _insert(_sync(conn, "insert"), [admit(args, opts)])[0]


def insert_many(conn: Connection, jobs: Iterable[Any], opts: InsertOpts | None = None) -> list[InsertedJob]:
    """Insert many jobs, all or none and in their order, as :func:`insert` does one.

    Args:
        conn: as there.
        jobs: instances of args classes, not necessarily of one.
        opts: options of every one of them.
    """
    return _insert(_sync(conn, "insert_many"), admit_many(jobs, opts))


async def insert_async(conn: AsyncConnection, args: Any, opts: InsertOpts | None = None) -> InsertedJob:
    """Insert one job on an async connection, as :func:`insert` does on a sync one."""
    return (await _insert_async(_async(conn, "insert_async"), [admit(args, opts)]))[0]


async def insert_many_async(
    conn: AsyncConnection, jobs: Iterable[Any], opts: InsertOpts | None = None
) -> list[InsertedJob]:
    """Insert many jobs on an async connection, as :func:`insert_many` does on a sync one."""
    return await _insert_async(_async(conn, "insert_many_async"), admit_many(jobs, opts))


def resolve(
    conn: Connection, resolution: resolutions.Resolution, *, registry: Registry | None = None
) -> resolutions.Resolved:
    """Run a resolution of a callback, with its follow-ups, in the transaction of a connection.

    Args:
        conn: a connection, or a cursor on it.
        resolution: made by :mod:`awa_actors.store.resolve`, or by a web service that admitted a request.
        registry: whose follow-ups go into the same transaction; what the database declares goes there in any case.

    Raises:
        CallbackNotFound: there is no open callback of this id; the transaction stays usable.
        FollowUpError: a follow-up failed: the callback is open as before, and the transaction stays usable.
    """
    given = _sync(conn, "resolve")
    if not given.autocommit and given.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
        given.execute(resolutions.BEGINNING)  # begins the caller's transaction; else the block below would be all of it
    with given.transaction():
        made = resolutions.steps(resolution, registry or Registry())
        return run_steps(made, functools.partial(fetch_row, given))


def complete(conn: Connection, job: Any) -> FinalizationReceipt:
    """Complete the job whose handler this is, in the transaction of a connection; return the receipt.

    Args:
        conn: a connection, or a cursor on it.
        job: of a kind registered with ``completion=awa.Completion.CALLER_OWNED``.

    Raises:
        StaleAttempt: the attempt was taken away; let it out, so that this transaction is rolled back.
        UsageError: the runtime completes jobs of this kind.
    """
    fetch_row(_sync(conn, "complete"), COMPLETE_ATTEMPT, *completion(job))
    return receipt(job)


def complete_external(
    conn: Connection, callback_id: str, payload: Any = None, *, registry: Registry | None = None
) -> JobRow:
    """Complete the job of a callback with the payload as its result, as :func:`resolve` does it."""
    return resolve(conn, resolutions.complete(callback_id, payload), registry=registry).job


def fail_external(conn: Connection, callback_id: str, error: str, *, registry: Registry | None = None) -> JobRow:
    """Fail the job of a callback for good."""
    return resolve(conn, resolutions.fail(callback_id, error), registry=registry).job


def retry_external(conn: Connection, callback_id: str, *, registry: Registry | None = None) -> JobRow:
    """Run the waiting job of a callback again from the start."""
    return resolve(conn, resolutions.retry(callback_id), registry=registry).job


def resume_external(
    conn: Connection, callback_id: str, payload: Any = None, *, registry: Registry | None = None
) -> JobRow:
    """Let the job of a callback go on with the payload."""
    return resolve(conn, resolutions.resume(callback_id, payload), registry=registry).job


def resolve_external(
    conn: Connection,
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
    conn: Connection, callback_id: str, seconds: float = 3600.0, *, registry: Registry | None = None
) -> JobRow:
    """Let a callback expire this many seconds from now instead."""
    return resolve(conn, resolutions.heartbeat(callback_id, seconds), registry=registry).job


async def resolve_async(
    conn: AsyncConnection, resolution: resolutions.Resolution, *, registry: Registry | None = None
) -> resolutions.Resolved:
    """Run a resolution on an async connection, as :func:`resolve` does on a sync one."""
    given = _async(conn, "resolve_async")
    if not given.autocommit and given.info.transaction_status is psycopg.pq.TransactionStatus.IDLE:
        await given.execute(resolutions.BEGINNING)
    async with given.transaction():
        made = resolutions.steps(resolution, registry or Registry())
        return await run_steps_async(made, functools.partial(fetch_row_async, given))


async def complete_async(conn: AsyncConnection, job: Any) -> FinalizationReceipt:
    """Complete the job whose handler this is on an async connection, as :func:`complete` does on a sync one."""
    await fetch_row_async(_async(conn, "complete_async"), COMPLETE_ATTEMPT, *completion(job))
    return receipt(job)


async def complete_external_async(
    conn: AsyncConnection, callback_id: str, payload: Any = None, *, registry: Registry | None = None
) -> JobRow:
    """Complete the job of a callback with the payload as its result."""
    return (await resolve_async(conn, resolutions.complete(callback_id, payload), registry=registry)).job


async def fail_external_async(
    conn: AsyncConnection, callback_id: str, error: str, *, registry: Registry | None = None
) -> JobRow:
    """Fail the job of a callback for good."""
    return (await resolve_async(conn, resolutions.fail(callback_id, error), registry=registry)).job


async def retry_external_async(conn: AsyncConnection, callback_id: str, *, registry: Registry | None = None) -> JobRow:
    """Run the waiting job of a callback again from the start."""
    return (await resolve_async(conn, resolutions.retry(callback_id), registry=registry)).job


async def resume_external_async(
    conn: AsyncConnection, callback_id: str, payload: Any = None, *, registry: Registry | None = None
) -> JobRow:
    """Let the job of a callback go on with the payload."""
    return (await resolve_async(conn, resolutions.resume(callback_id, payload), registry=registry)).job


async def resolve_external_async(
    conn: AsyncConnection,
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
    conn: AsyncConnection, callback_id: str, seconds: float = 3600.0, *, registry: Registry | None = None
) -> JobRow:
    """Let a callback expire this many seconds from now instead."""
    return (await resolve_async(conn, resolutions.heartbeat(callback_id, seconds), registry=registry)).job


def fetch_row(conn: psycopg.Connection[Any], sql: str, *values: Any) -> Sequence[Any]:
    """Run one statement that gives one row, with a cursor of our own, so that the caller's factories do not matter.

    Raises:
        AwaError: translated from what the driver raises.
    """
    try:
        with psycopg.RawCursor(conn, row_factory=tuple_row) as cursor:
            return _row(cursor.execute(sql.encode(), values).fetchone())
    except psycopg.Error as error:
        raise translated(error, lost=conn.closed) from error


async def fetch_row_async(conn: psycopg.AsyncConnection[Any], sql: str, *values: Any) -> Sequence[Any]:
    """Run one statement on an async connection, as :func:`fetch_row` does on a sync one."""
    try:
        async with psycopg.AsyncRawCursor(conn, row_factory=tuple_row) as cursor:
            await cursor.execute(sql.encode(), values)
            return _row(await cursor.fetchone())
    except psycopg.Error as error:
        raise translated(error, lost=conn.closed) from error


def _insert(conn: psycopg.Connection[Any], jobs: Sequence[NewJob]) -> list[InsertedJob]:
    if not jobs:
        return []
    return inserted(jobs, fetch_row(conn, statement(jobs), *parameters(jobs)))


async def _insert_async(conn: psycopg.AsyncConnection[Any], jobs: Sequence[NewJob]) -> list[InsertedJob]:
    if not jobs:
        return []
    return inserted(jobs, await fetch_row_async(conn, statement(jobs), *parameters(jobs)))


def _row(row: tuple[Any, ...] | None) -> tuple[Any, ...]:
    assert row is not None  # a SELECT from a function that returns one row
    return row


def _sync(conn: object, function: str) -> psycopg.Connection[Any]:
    given = conn.connection if isinstance(conn, psycopg.Cursor) else conn
    if not isinstance(given, psycopg.Connection):
        takes = "a psycopg Connection or Cursor"
        raise wrong_connection(conn, bridge="psycopg", function=function, takes=takes)
    return given


def _async(conn: object, function: str) -> psycopg.AsyncConnection[Any]:
    given = conn.connection if isinstance(conn, psycopg.AsyncCursor) else conn
    if not isinstance(given, psycopg.AsyncConnection):
        takes = "a psycopg AsyncConnection or AsyncCursor"
        raise wrong_connection(conn, bridge="psycopg", function=function, takes=takes)
    return given
