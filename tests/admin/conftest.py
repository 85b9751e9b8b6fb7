"""A client on a database of the test's own."""

from collections.abc import AsyncIterator

import pytest

import awa_actors as awa


@pytest.fixture
def registry() -> awa.Registry:
    return awa.Registry()


@pytest.fixture
async def client(database: str, registry: awa.Registry) -> AsyncIterator[awa.Client]:
    async with awa.open_client(database, registry=registry) as opened:
        yield opened
