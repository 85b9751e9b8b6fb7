"""Enqueue on a psycopg connection (3.2 or newer): the job exists when the caller's transaction commits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from awa_actors.bridge.statements import translated, wrong_connection
from awa_actors.jobs import InsertedJob, InsertOpts
from awa_actors.store.insert import NewJob, admit, admit_many, inserted, parameters, statement

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
