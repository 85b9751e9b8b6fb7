"""Fixtures of every ring: one Postgres per pytest session (and xdist worker), one fresh database per test."""

from pathlib import Path

import pytest
from database_fixtures import database, empty_database, migrated_template, server, session_server

__all__ = ["database", "empty_database", "migrated_template", "server", "session_server"]

BENCHMARKS = Path(__file__).parent / "bench"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark benchmarks by where they are, before -m selects, so that none is forgotten and runs among the tests."""
    for item in items:
        if item.path.is_relative_to(BENCHMARKS):
            item.add_marker(pytest.mark.bench)
