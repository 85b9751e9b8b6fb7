"""The fixtures that need a server: one Postgres per pytest session (and xdist worker), one fresh database per test."""

from collections.abc import Iterator

import pytest
import trio
from postgres_servers import Server, open_server


@pytest.fixture(scope="session")
def session_server() -> Iterator[Server]:
    """The Postgres of this session; tests ask for `server`, which mends what they break."""
    with open_server() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_template(session_server: Server) -> Iterator[str]:
    """The name of a migrated database that nobody uses but to copy it: migrating once per test would be slow."""
    name = session_server.template(lambda url: trio.run(_migrate, url))
    yield name
    session_server.drop(name)


@pytest.fixture
def server(session_server: Server) -> Iterator[Server]:
    """The server itself, for tests that stop, restart, kill or dump it; it is up again after the test."""
    yield session_server
    session_server.revive()


@pytest.fixture
def empty_database(session_server: Server) -> Iterator[str]:
    """The URL of a database with nothing in it."""
    with session_server.fresh_database() as url:
        yield url


@pytest.fixture
def database(session_server: Server, migrated_template: str) -> Iterator[str]:
    """The URL of a migrated database without rows."""
    with session_server.fresh_database(migrated_template) as url:
        yield url


async def _migrate(url: str) -> None:
    # Imported here: most rings never need it, and it brings trio_asyncio into the process.
    from awa_actors.client import open_client

    async with open_client(url) as client:
        await client.migrate()
