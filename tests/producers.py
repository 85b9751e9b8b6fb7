"""One producer per bridge and flavour of connection, all with one face: a test of producers runs on each of them."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import asyncpg
import attrs
import django
import django.conf
import psycopg
import pytest
import sqlalchemy
from django.db import connections, transaction
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import awa_actors as awa
import awa_actors.bridge.asyncpg as awa_asyncpg
import awa_actors.bridge.django as awa_django
import awa_actors.bridge.psycopg as awa_psycopg
import awa_actors.bridge.sqlalchemy as awa_sqlalchemy

Rows = list[tuple[Any, ...]]
_aliases = (f"database_{number}" for number in itertools.count(1))


class Producer(Protocol):
    """A connection of somebody's own, and the bridge to it. Its transaction begins with the first call."""

    def insert(self, args: Any, opts: awa.InsertOpts | None = None) -> awa.InsertedJob: ...

    def insert_many(self, jobs: Iterable[Any], opts: awa.InsertOpts | None = None) -> list[awa.InsertedJob]: ...

    def execute(self, statement: str) -> Rows: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def bridge(self, name: str, *args: Any, **options: Any) -> Any: ...


@attrs.frozen
class Calls:
    """A producer made of functions."""

    insert: Callable[..., awa.InsertedJob]
    insert_many: Callable[..., list[awa.InsertedJob]]
    execute: Callable[[str], Rows]
    commit: Callable[[], None]
    rollback: Callable[[], None]
    bridge: Callable[..., Any]
    """Calls any other function of the bridge, by the name it has without ``_async``."""


@contextmanager
def stock_loop() -> Iterator[Callable[[Awaitable[Any]], Any]]:
    """Run awaitables on the loop that plain asyncio has, although trio_asyncio may be in this process."""

    async def awaited(work: Awaitable[Any]) -> Any:
        return await work

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        yield lambda work: runner.run(awaited(work))


@contextmanager
def asyncpg_connection(url: str) -> Iterator[Producer]:
    with stock_loop() as run:
        connection = run(asyncpg.connect(url))
        begun: list[Any] = []

        def begin() -> None:
            if not begun:
                begun.append(connection.transaction())
                run(begun[0].start())

        def call(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
            def called(*args: Any, **options: Any) -> Any:
                begin()
                return run(function(connection, *args, **options))

            return called

        async def fetch(connection: Any, statement: str) -> Rows:
            return [tuple(row) for row in await connection.fetch(statement)]

        yield Calls(
            call(awa_asyncpg.insert),
            call(awa_asyncpg.insert_many),
            call(fetch),
            lambda: run(begun.pop().commit()) if begun else None,
            lambda: run(begun.pop().rollback()) if begun else None,
            lambda name, *args, **options: call(getattr(awa_asyncpg, name))(*args, **options),
        )
        connection.terminate()


def _fetched(cursor: Any) -> Rows:
    return [tuple(row) for row in cursor.fetchall()] if cursor.description else []


@contextmanager
def psycopg_connection(url: str) -> Iterator[Producer]:
    with closing(psycopg.connect(url)) as connection:
        yield Calls(
            lambda *args: awa_psycopg.insert(connection, *args),
            lambda *args: awa_psycopg.insert_many(connection, *args),
            lambda statement: _fetched(connection.execute(statement.encode())),
            connection.commit,
            connection.rollback,
            lambda name, *args, **options: getattr(awa_psycopg, name)(connection, *args, **options),
        )


@contextmanager
def psycopg_cursor(url: str) -> Iterator[Producer]:
    with closing(psycopg.connect(url)) as connection, connection.cursor() as cursor:
        yield Calls(
            lambda *args: awa_psycopg.insert(cursor, *args),
            lambda *args: awa_psycopg.insert_many(cursor, *args),
            lambda statement: _fetched(cursor.execute(statement.encode())),
            connection.commit,
            connection.rollback,
            lambda name, *args, **options: getattr(awa_psycopg, name)(cursor, *args, **options),
        )


@contextmanager
def psycopg_async_connection(url: str) -> Iterator[Producer]:
    with stock_loop() as run:
        connection = run(psycopg.AsyncConnection.connect(url))

        async def fetch(statement: str) -> Rows:
            cursor = await connection.execute(statement.encode())
            return list(await cursor.fetchall()) if cursor.description else []

        yield Calls(
            lambda *args: run(awa_psycopg.insert_async(connection, *args)),
            lambda *args: run(awa_psycopg.insert_many_async(connection, *args)),
            lambda statement: run(fetch(statement)),
            lambda: run(connection.commit()),
            lambda: run(connection.rollback()),
            lambda name, *args, **options: run(getattr(awa_psycopg, f"{name}_async")(connection, *args, **options)),
        )
        run(connection.close())


def sqlalchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


def _sqlalchemy_rows(result: Any) -> Rows:
    return [tuple(row) for row in result] if result.returns_rows else []


def sqlalchemy_with(driver: str, open_one: Callable[[Any], Any]) -> Callable[[str], AbstractContextManager[Producer]]:
    """A producer on a synchronous engine: `open_one` makes a session or a connection of it."""

    @contextmanager
    def opened(url: str) -> Iterator[Producer]:
        pytest.importorskip(driver)
        engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver))
        with open_one(engine) as one:
            yield Calls(
                lambda *args: awa_sqlalchemy.insert(one, *args),
                lambda *args: awa_sqlalchemy.insert_many(one, *args),
                lambda statement: _sqlalchemy_rows(one.execute(text(statement))),
                one.commit,
                one.rollback,
                lambda name, *args, **options: getattr(awa_sqlalchemy, name)(one, *args, **options),
            )
        engine.dispose()

    return opened


def sqlalchemy_async_with(
    driver: str, open_one: Callable[[Any], Any]
) -> Callable[[str], AbstractContextManager[Producer]]:
    """A producer on an asynchronous engine: `open_one` makes a session or a connection of it."""

    @contextmanager
    def opened(url: str) -> Iterator[Producer]:
        with stock_loop() as run:
            engine = create_async_engine(sqlalchemy_url(url, driver))
            entered = open_one(engine)
            one = run(entered.__aenter__())

            async def fetch(statement: str) -> Rows:
                return _sqlalchemy_rows(await one.execute(text(statement)))

            yield Calls(
                lambda *args: run(awa_sqlalchemy.insert_async(one, *args)),
                lambda *args: run(awa_sqlalchemy.insert_many_async(one, *args)),
                lambda statement: run(fetch(statement)),
                lambda: run(one.commit()),
                lambda: run(one.rollback()),
                lambda name, *args, **options: run(getattr(awa_sqlalchemy, f"{name}_async")(one, *args, **options)),
            )
            run(entered.__aexit__(None, None, None))
            run(engine.dispose())

    return opened


def django_settings(url: str) -> dict[str, Any]:
    """The entry of DATABASES for a URL."""
    parts = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username or query.get("user", ""),
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or query.get("host", ""),
        "PORT": str(parts.port or query.get("port", "")),
    }


@contextmanager
def django_database(settings: dict[str, Any]) -> Iterator[str]:
    """Configure one more database for a while; gives its alias."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(USE_TZ=True, DATABASES={}, LOGGING_CONFIG=None)
        django.setup()
    alias = next(_aliases)
    databases = {**connections.settings, alias: settings}
    connections.settings[alias] = connections.configure_settings(databases)[alias]
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]


@contextmanager
def django_connection(url: str) -> Iterator[Producer]:
    with django_database(django_settings(url)) as alias:
        blocks: list[Any] = []

        def begin() -> None:
            if not blocks:
                blocks.append(transaction.atomic(using=alias))
                blocks[0].__enter__()

        def call(function: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **options: Any) -> Any:
                begin()
                return function(*args, using=alias, **options)

            return called

        def execute(statement: str) -> Rows:
            begin()
            with connections[alias].cursor() as cursor:
                cursor.execute(statement)
                return _fetched(cursor)

        def rollback() -> None:
            if blocks:
                transaction.set_rollback(True, using=alias)
                blocks.pop().__exit__(None, None, None)

        def commit() -> None:
            if blocks:
                blocks.pop().__exit__(None, None, None)

        yield Calls(
            call(awa_django.insert),
            call(awa_django.insert_many),
            execute,
            commit,
            rollback,
            lambda name, *args, **options: call(getattr(awa_django, name))(*args, **options),
        )
        rollback()


PRODUCERS: dict[str, Callable[[str], AbstractContextManager[Producer]]] = {
    "asyncpg": asyncpg_connection,
    "psycopg": psycopg_connection,
    "psycopg cursor": psycopg_cursor,
    "psycopg async": psycopg_async_connection,
    "sqlalchemy session": sqlalchemy_with("psycopg", Session),
    "sqlalchemy connection": sqlalchemy_with("psycopg", lambda engine: engine.connect()),
    "sqlalchemy psycopg2": sqlalchemy_with("psycopg2", Session),
    "sqlalchemy async session": sqlalchemy_async_with("asyncpg", AsyncSession),
    "sqlalchemy async connection": sqlalchemy_async_with("psycopg", lambda engine: engine.connect()),
    "django": django_connection,
}
