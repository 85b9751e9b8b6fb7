"""Every test of a producer runs on every bridge and flavour of connection."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import Any

import psycopg
import pytest
from producers import PRODUCERS, Producer


@pytest.fixture(params=list(PRODUCERS))
def open_producer(request: pytest.FixtureRequest) -> Callable[[str], AbstractContextManager[Producer]]:
    """How to open a producer on a database."""
    return PRODUCERS[request.param]


@pytest.fixture
def producer(open_producer: Callable[[str], AbstractContextManager[Producer]], database: str) -> Iterator[Producer]:
    """A producer on a migrated database; what it did not commit is rolled back."""
    with open_producer(database) as opened:
        yield opened


@pytest.fixture
def observer(database: str) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else, who sees what is committed."""
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        yield connection
