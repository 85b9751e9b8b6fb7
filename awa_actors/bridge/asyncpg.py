"""Enqueue on an asyncpg connection: the job exists when the caller's transaction commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import asyncpg
import asyncpg.pool

from awa_actors.bridge.statements import translated, wrong_connection
from awa_actors.jobs import InsertedJob, InsertOpts
from awa_actors.store.insert import NewJob, admit, admit_many, inserted, parameters, statement

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
    return inserted(jobs, await fetch_row(conn, statement(jobs), *parameters(jobs)))


def _check(conn: object, function: str) -> None:
    if not isinstance(conn, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy):
        takes = "an asyncpg connection (from a pool: an acquired one)"
        raise wrong_connection(conn, bridge="asyncpg", function=function, takes=takes)


def _is_closed(conn: Connection) -> bool:
    try:
        return conn.is_closed()
    except asyncpg.InterfaceError:  # given back to its pool, which is the caller's mistake and not an outage
        return False
