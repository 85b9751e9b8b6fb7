"""Databases for tests: one server, one migrated template, one copy of it per test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio

from awa_actors.client import Client, open_client
from awa_actors.config import DatabaseSettings
from awa_actors.private_postgres import PrivatePostgres
from awa_actors.store import rehearsal

_numbers = itertools.count(1)


@attrs.frozen
class TestServer:
    """A server whose role may create databases. Everything here blocks: it belongs into fixtures that are not async.

    Args:
        url: of a database on it that is there already.
    """

    __test__ = False  # pytest: not a class of tests

    url: str

    @contextmanager
    def template(self) -> Iterator[str]:
        """Make a migrated database to copy; gives its name."""
        with self.database("template0", "template") as url:

            async def migrate(client: Client) -> None:
                await client.migrate()

            _run(url, migrate)
            yield urlsplit(url).path[1:]

    @contextmanager
    def database(self, template: str, purpose: str = "test") -> Iterator[str]:
        """Make a copy of a database, give its URL, and drop it, whoever is still connected."""
        name = f"awa_{purpose}_{os.getpid()}_{next(_numbers)}"
        self._ask(lambda session: rehearsal.create_database(session, name, template))
        try:
            yield self._url_of(name)
        finally:
            self._ask(lambda session: rehearsal.drop_database(session, name))

    def _url_of(self, name: str) -> str:
        parts = urlsplit(self.url)
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{parts.netloc}/{name}{query}"

    def _ask(self, question: Callable[[Any], Awaitable[None]]) -> None:
        async def ask(client: Client) -> None:
            async with client.pool.acquire() as session:
                await question(session)

        _run(self.url, ask)


def _run(url: str, work: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with open_client(url, settings=DatabaseSettings(pool_size=1)) as client:
            await work(client)

    trio.run(run)


@contextmanager
def private_server() -> Iterator[TestServer]:
    """Run a private Postgres (extra: embedded) that forgets everything at its end."""
    server = PrivatePostgres(settings={"fsync": "off"}).start()
    try:
        yield TestServer(server.url)
    finally:
        server.stop()
