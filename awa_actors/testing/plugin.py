"""The pytest plugin: ``pytest_plugins = ["awa_actors.testing.plugin"]`` in conftest.py, beside pytest-trio.

``awa_client`` is what tests ask for. Override ``awa_registry`` with the registry of your application.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from awa_actors.client import Client, open_client
from awa_actors.registry import Registry
from awa_actors.testing.databases import TestServer, private_server

INI = "awa_database_url"
ENVIRONMENT = "AWA_TESTING_DATABASE_URL"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare where the database comes from."""
    parser.addini(
        INI,
        help=f"URL of a Postgres whose role may create databases; {ENVIRONMENT} wins over it;"
        " without either, a private Postgres is started (extra: embedded)",
        default="",
    )


@pytest.fixture
def awa_registry() -> Registry:
    """What the application declares: override this."""
    return Registry()


@pytest.fixture(scope="session")
def awa_server(pytestconfig: pytest.Config) -> Iterator[TestServer]:
    """The server of this session: the one that a setting names, or a private one."""
    url = os.environ.get(ENVIRONMENT) or str(pytestconfig.getini(INI))
    if url:
        yield TestServer(url)
        return
    with private_server() as server:
        yield server


@pytest.fixture(scope="session")
def awa_template(awa_server: TestServer) -> Iterator[str]:
    """The name of a migrated database, made once, which nobody uses but to copy it."""
    with awa_server.template() as name:
        yield name


@pytest.fixture
def awa_database(awa_server: TestServer, awa_template: str) -> Iterator[str]:
    """The URL of this test's own database, migrated and without rows."""
    with awa_server.database(awa_template) as url:
        yield url


@pytest.fixture
async def awa_client(awa_database: str, awa_registry: Registry) -> AsyncIterator[Client]:
    """A client on this test's database, with the registry of `awa_registry`."""
    async with open_client(awa_database, registry=awa_registry) as client:
        yield client
