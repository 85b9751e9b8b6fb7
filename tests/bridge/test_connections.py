"""Which connections a bridge takes, however they are set up, and what it says to others."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import asyncpg
import attrs
import psycopg
import psycopg.rows
import pytest
import sqlalchemy
from django.db import connections
from producers import django_database, django_settings, sqlalchemy_url, stock_loop
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import awa_actors as awa
import awa_actors.bridge.asyncpg as awa_asyncpg
import awa_actors.bridge.django as awa_django
import awa_actors.bridge.psycopg as awa_psycopg
import awa_actors.bridge.sqlalchemy as awa_sqlalchemy


@attrs.frozen
class Signup:
    user_id: int


UNIQUE = awa.InsertOpts(unique=awa.UniqueOpts())


@pytest.fixture
def observer(database: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        yield connection


def stored(observer: psycopg.Connection[Any]) -> int:
    row = observer.execute("SELECT count(*) FROM awa.jobs").fetchone()
    return int(row[0]) if row else 0


def instance_of(cls: type[Any]) -> Any:
    """An object of a class whose constructor would connect, and whose end would miss that."""
    unconnected: Any = type(cls.__name__, (cls,), {"__del__": lambda self: None})
    return unconnected.__new__(unconnected)


@pytest.mark.parametrize(
    ("function", "given", "advice"),
    [
        (awa_psycopg.insert, psycopg.AsyncConnection, "use await awa_actors.bridge.psycopg.insert_async"),
        (awa_psycopg.insert_many, psycopg.AsyncCursor, "use await awa_actors.bridge.psycopg.insert_many_async"),
        (awa_psycopg.insert, asyncpg.Connection, "use await awa_actors.bridge.asyncpg.insert"),
        (awa_psycopg.insert, Session, "use awa_actors.bridge.sqlalchemy.insert"),
        (awa_psycopg.insert, sqlite3.Connection, "pass the connection that your transaction is on"),
        (awa_psycopg.insert, psycopg.Transaction, "pass the connection that your transaction is on"),
        (awa_sqlalchemy.insert, AsyncSession, "use await awa_actors.bridge.sqlalchemy.insert_async"),
        (awa_sqlalchemy.insert_many, psycopg.Connection, "use awa_actors.bridge.psycopg.insert_many"),
        (awa_sqlalchemy.insert, sqlalchemy.Engine, "pass the connection that your transaction is on"),
    ],
)
def test_another_kind_of_connection_is_told_where_to_go(
    function: Callable[..., Any], given: type[Any], advice: str
) -> None:
    for args in (Signup(user_id=1), [Signup(user_id=1)], []):
        with pytest.raises(awa.UsageError) as raised:
            function(instance_of(given), args)
        assert str(raised.value).endswith(advice)
        assert given.__name__ in str(raised.value)


@pytest.mark.parametrize(
    ("function", "given", "advice"),
    [
        (awa_psycopg.insert_async, psycopg.Connection, "use awa_actors.bridge.psycopg.insert"),
        (awa_psycopg.insert_many_async, psycopg.Cursor, "use awa_actors.bridge.psycopg.insert_many"),
        (awa_psycopg.insert_async, asyncpg.Connection, "use await awa_actors.bridge.asyncpg.insert"),
        (awa_sqlalchemy.insert_async, Session, "use awa_actors.bridge.sqlalchemy.insert"),
        (awa_sqlalchemy.insert_many_async, sqlalchemy.Connection, "use awa_actors.bridge.sqlalchemy.insert_many"),
        (awa_asyncpg.insert, psycopg.Connection, "use awa_actors.bridge.psycopg.insert"),
        (awa_asyncpg.insert, psycopg.AsyncConnection, "use await awa_actors.bridge.psycopg.insert_async"),
        (awa_asyncpg.insert_many, AsyncSession, "use await awa_actors.bridge.sqlalchemy.insert_many_async"),
        (awa_asyncpg.insert, asyncpg.Pool, "pass the connection that your transaction is on"),
    ],
)
def test_another_kind_of_connection_is_told_where_to_go_by_async_functions_too(
    function: Callable[..., Any], given: type[Any], advice: str
) -> None:
    with stock_loop() as run:
        for args in (Signup(user_id=1), [Signup(user_id=1)], []):
            with pytest.raises(awa.UsageError) as raised:
                run(function(instance_of(given), args))
            assert str(raised.value).endswith(advice)


def test_a_class_of_the_users_own_is_recognised_by_what_it_is_made_of() -> None:
    class Mine(psycopg.AsyncConnection[Any]):
        pass

    with pytest.raises(awa.UsageError, match=r"Mine.*use await awa_actors\.bridge\.psycopg\.insert_async"):
        awa_psycopg.insert(instance_of(Mine), Signup(user_id=1))


def test_a_django_connection_is_told_that_django_takes_an_alias(database: str) -> None:
    with django_database(django_settings(database)) as alias:
        with pytest.raises(awa.UsageError, match="takes no connection, but its alias as using="):
            awa_psycopg.insert(connections.create_connection(alias), Signup(user_id=1))
        with pytest.raises(awa.UsageError, match="names no database of DATABASES"):
            awa_django.insert(Signup(user_id=1), using=connections[alias])
    with pytest.raises(awa.UsageError, match=r"names no database of DATABASES.*elsewhere"):
        awa_django.insert_many([Signup(user_id=1)], using="elsewhere")


def test_other_databases_than_postgres_are_refused() -> None:
    with (
        django_database({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}) as alias,
        pytest.raises(awa.UsageError, match=r"jobs are stored in PostgreSQL, and the database '.*' is sqlite"),
    ):
        awa_django.insert(Signup(user_id=1), using=alias)
    engine = sqlalchemy.create_engine("sqlite://")
    with Session(engine) as session, pytest.raises(awa.UsageError, match="this connection is to sqlite"):
        awa_sqlalchemy.insert(session, Signup(user_id=1))
    engine.dispose()


def test_without_a_transaction_each_call_is_committed_at_once(database: str, observer: psycopg.Connection[Any]) -> None:
    with stock_loop() as run:
        connection = run(asyncpg.connect(database))
        run(awa_asyncpg.insert(connection, Signup(user_id=1)))
        assert stored(observer) == 1
        with pytest.raises(awa.UniqueConflict):
            run(awa_asyncpg.insert_many(connection, [Signup(user_id=2), Signup(user_id=2)], UNIQUE))
        run(connection.close())
    awa_psycopg.insert_many(observer, [Signup(user_id=3), Signup(user_id=4)], UNIQUE)
    with pytest.raises(awa.UniqueConflict):
        awa_psycopg.insert_many(observer, [Signup(user_id=5), Signup(user_id=4)], UNIQUE)
    assert stored(observer) == 3
    with django_database(django_settings(database)) as alias:
        awa_django.insert(Signup(user_id=6), using=alias)
        assert stored(observer) == 4
    engine = sqlalchemy.create_engine(sqlalchemy_url(database, "psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as autocommit:
        awa_sqlalchemy.insert(autocommit, Signup(user_id=7))
        assert stored(observer) == 5
    engine.dispose()


def test_codecs_and_factories_of_the_caller_do_not_matter(database: str, observer: psycopg.Connection[Any]) -> None:
    async def with_asyncpg() -> None:
        def refuse(value: object) -> str:
            raise AssertionError(f"not ours to encode: {value!r}")

        connection = await asyncpg.connect(database, record_class=type("Record", (asyncpg.Record,), {}))
        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, schema="pg_catalog", encoder=refuse, decoder=refuse)
        await awa_asyncpg.insert_many(connection, [Signup(user_id=1), Signup(user_id=2)], UNIQUE)
        await connection.close()

    with stock_loop() as run:
        run(with_asyncpg())
    for factory in (psycopg.rows.dict_row, psycopg.rows.scalar_row, psycopg.rows.namedtuple_row):
        with psycopg.connect(database, row_factory=factory, cursor_factory=psycopg.ClientCursor) as connection:
            awa_psycopg.insert(connection, Signup(user_id=3))
            with connection.cursor("named") as named:
                awa_psycopg.insert(named, Signup(user_id=4))
    assert stored(observer) == 8


def test_a_cursor_keeps_what_it_has_yet_to_fetch(database: str, observer: psycopg.Connection[Any]) -> None:
    with psycopg.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT generate_series(1, 3)")
        assert cursor.fetchone() == (1,)
        awa_psycopg.insert(cursor, Signup(user_id=1))
        assert cursor.fetchall() == [(2,), (3,)]
    assert stored(observer) == 1


def test_a_pipeline_takes_jobs_too(database: str, observer: psycopg.Connection[Any]) -> None:
    with psycopg.connect(database) as connection, connection.pipeline():
        awa_psycopg.insert_many(connection, [Signup(user_id=n) for n in range(3)])
    assert stored(observer) == 3


def test_an_acquired_connection_of_a_pool_is_a_connection(database: str, observer: psycopg.Connection[Any]) -> None:
    async def pooled() -> None:
        async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool:
            async with pool.acquire() as connection, connection.transaction():
                await awa_asyncpg.insert(connection, Signup(user_id=1))
            with pytest.raises(awa.StoreError, match="released back to the pool"):
                await awa_asyncpg.insert(connection, Signup(user_id=2))

    with stock_loop() as run:
        run(pooled())
    assert stored(observer) == 1


def test_scoped_sessions_are_sessions(database: str, observer: psycopg.Connection[Any]) -> None:
    engine = sqlalchemy.create_engine(sqlalchemy_url(database, "psycopg"))
    scoped = scoped_session(sessionmaker(engine))
    awa_sqlalchemy.insert(scoped, Signup(user_id=1))
    scoped.commit()
    scoped.remove()
    engine.dispose()

    async def asynchronous() -> None:
        async_engine = create_async_engine(sqlalchemy_url(database, "asyncpg"))
        async_scoped = async_scoped_session(async_sessionmaker(async_engine), scopefunc=lambda: 1)
        await awa_sqlalchemy.insert_async(async_scoped, Signup(user_id=2))
        await async_scoped.commit()
        await async_scoped.remove()
        await async_engine.dispose()

    with stock_loop() as run:
        run(asynchronous())
    assert stored(observer) == 2


def test_a_closed_connection_is_a_transient_error(database: str) -> None:
    connection = psycopg.connect(database)
    connection.close()
    with pytest.raises(awa.TransientStoreError, match="connection to the database was lost: the connection is closed"):
        awa_psycopg.insert(connection, Signup(user_id=1))

    async def closed() -> None:
        connection = await asyncpg.connect(database)
        await connection.close()
        with pytest.raises(awa.TransientStoreError, match="connection is closed"):
            await awa_asyncpg.insert(connection, Signup(user_id=1))

    with stock_loop() as run:
        run(closed())


def test_an_error_in_an_atomic_block_that_is_caught_still_rolls_the_block_back(
    database: str, observer: psycopg.Connection[Any]
) -> None:
    from django.db import transaction

    observer.execute("ALTER TABLE awa_queue.bodies ADD CONSTRAINT no_five CHECK (args <> '{\"user_id\": 5}')")
    with django_database(django_settings(database)) as alias, transaction.atomic(using=alias):
        awa_django.insert(Signup(user_id=1), using=alias)
        with transaction.atomic(using=alias), pytest.raises(awa.UniqueConflict):
            awa_django.insert_many([Signup(user_id=2), Signup(user_id=2)], UNIQUE, using=alias)
        with pytest.raises(awa.ValidationError, match="no_five"):
            awa_django.insert(Signup(user_id=5), using=alias)
        with pytest.raises(awa.StoreError, match="until the end of the 'atomic' block"):
            awa_django.insert(Signup(user_id=6), using=alias)
    assert stored(observer) == 0
