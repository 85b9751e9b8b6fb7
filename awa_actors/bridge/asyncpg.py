"""Enqueue on an asyncpg connection: the job exists when the caller's transaction commits."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import asyncpg
import asyncpg.pool

from awa_actors.bridge.statements import translated, wrong_connection
from awa_actors.jobs import FinalizationReceipt, InsertedJob, InsertOpts, JobRow
from awa_actors.registry import Registry
from awa_actors.store import resolve as resolutions
from awa_actors.store.completion import COMPLETE_ATTEMPT, completion, receipt
from awa_actors.store.decided import ExternalOutcome, outcome_of
from awa_actors.store.insert import NewJob, admit, admit_many, call, inserted
from awa_actors.store.stepping import run_steps_async

if TYPE_CHECKING:
    # A connection of the caller's own, or one that was acquired from a pool.
    Connection = asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any]


async def insert(conn: Connection, args: Any, opts: InsertOpts | None = None) -> InsertedJob:
    """Insert one job in the transaction that is open on a connection; outside one it is committed at once.

    Args:
        conn: a connection, not a pool: the statement has to be in the caller's transaction.
        args: an instance of an args class.
        opts: how it differs from what the class declares.

    Raises:
        ValidationError: something in it cannot be stored; nothing was sent.
        UniqueConflict: another job holds its unique key; nothing was inserted, and the transaction stays usable.
        UsageError: `conn` is something else.
        StoreError: the database refused; the transaction is aborted, as after any failed statement.
    """
    _check(conn, "insert")
    return (await _insert(conn, [admit(args, opts)]))[0]


async def insert_many(conn: Connection, jobs: Iterable[Any], opts: InsertOpts | None = None) -> list[InsertedJob]:
    """Insert many jobs, all or none and in their order, as :func:`insert` does one.

    Args:
        conn: as there.
        jobs: instances of args classes, not necessarily of one.
        opts: options of every one of them.
    """
    _check(conn, "insert_many")
    return await _insert(conn, admit_many(jobs, opts))


async def resolve(
    conn: Connection, resolution: resolutions.Resolution, *, registry: Registry | None = None
) -> resolutions.Resolved:
    """Run a resolution of a callback, with its follow-ups, in the transaction that is open; outside one it commits.

    Args:
        conn: a connection, not a pool.
        resolution: made by :mod:`awa_actors.store.resolve`, or by a web service that admitted a request.
        registry: whose follow-ups go into the same transaction; what the database declares goes there in any case.

    Raises:
        CallbackNotFound: there is no open callback of this id; the transaction stays usable.
        FollowUpError: a follow-up failed: the callback is open as before, and the transaction stays usable.
    """
    _check(conn, "resolve")
    async with conn.transaction():
        made = resolutions.steps(resolution, registry or Registry())
        return await run_steps_async(made, functools.partial(fetch_row, conn))


async def complete(conn: Connection, job: Any) -> FinalizationReceipt:
    """Complete the job whose handler this is, in the transaction of a connection; return the receipt.

    Args:
        conn: a connection, not a pool.
        job: of a kind registered with ``completion=awa.Completion.CALLER_OWNED``.

    Raises:
        StaleAttempt: the attempt was taken away; let it out, so that this transaction is rolled back.
        UsageError: the runtime completes jobs of this kind.
    """
    _check(conn, "complete")
    await fetch_row(conn, COMPLETE_ATTEMPT, *completion(job))
    return receipt(job)


async def complete_external(
    conn: Connection, callback_id: str, payload: Any = None, *, registry: Registry | None = None
) -> JobRow:
    """Complete the job of a callback with the payload as its result, as :func:`resolve` does it."""
    return (await resolve(conn, resolutions.complete(callback_id, payload), registry=registry)).job


async def fail_external(conn: Connection, callback_id: str, error: str, *, registry: Registry | None = None) -> JobRow:
    """Fail the job of a callback for good."""
    return (await resolve(conn, resolutions.fail(callback_id, error), registry=registry)).job


async def retry_external(conn: Connection, callback_id: str, *, registry: Registry | None = None) -> JobRow:
    """Run the waiting job of a callback again from the start."""
    return (await resolve(conn, resolutions.retry(callback_id), registry=registry)).job


async def resume_external(
    conn: Connection, callback_id: str, payload: Any = None, *, registry: Registry | None = None
) -> JobRow:
    """Let the job of a callback go on with the payload."""
    return (await resolve(conn, resolutions.resume(callback_id, payload), registry=registry)).job


async def resolve_external(
    conn: Connection,
    callback_id: str,
    payload: Any = None,
    default_action: str = "ignore",
    *,
    registry: Registry | None = None,
) -> ExternalOutcome:
    """Let the callback's own expressions decide what the payload means; locked until the transaction ends."""
    return outcome_of(
        await resolve(conn, resolutions.by_expressions(callback_id, payload, default_action), registry=registry)
    )


async def heartbeat_callback(
    conn: Connection, callback_id: str, seconds: float = 3600.0, *, registry: Registry | None = None
) -> JobRow:
    """Let a callback expire this many seconds from now instead."""
    return (await resolve(conn, resolutions.heartbeat(callback_id, seconds), registry=registry)).job


async def fetch_row(conn: Connection, sql: str, *values: Any) -> Sequence[Any]:
    """Run one statement that gives one row.

    Raises:
        AwaError: translated from what the driver raises.
    """
    try:
        row: Sequence[Any] | None = await conn.fetchrow(sql, *values)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise translated(error, lost=_is_closed(conn)) from error
    assert row is not None  # a SELECT from a function that returns one row
    return row


async def _insert(conn: Connection, jobs: Sequence[NewJob]) -> list[InsertedJob]:
    if not jobs:
        return []
    sql, values = call(jobs)
    return inserted(jobs, await fetch_row(conn, sql, *values))


def _check(conn: object, function: str) -> None:
    if not isinstance(conn, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        takes = "an asyncpg connection (from a pool: an acquired one)"
        raise wrong_connection(conn, bridge="asyncpg", function=function, takes=takes)


def _is_closed(conn: Connection) -> bool:
    try:
        return conn.is_closed()
    except asyncpg.InterfaceError:  # given back to its pool, which is the caller's mistake and not an outage
        return False
