"""Fixtures of every ring: one Postgres per pytest session (and xdist worker), one fresh database per test."""

from pathlib import Path

import pytest
from database_fixtures import database, empty_database, migrated_template, server, session_server

__all__ = ["database", "empty_database", "migrated_template", "server", "session_server"]

BENCHMARKS = Path(__file__).parent / "bench"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark, before -m selects, benchmarks by where they are and further cases on a database by what they use.

    So none is forgotten: a benchmark does not run among the tests, and the development ring stays as short as it is.
    """
    met: set[tuple[Path, str]] = set()
    for item in items:
        if isinstance(item, pytest.Function) and "session_server" in item.fixturenames:
            test = item.path, item.originalname
            if test in met:
                item.add_marker(pytest.mark.wide)
            met.add(test)
        if item.path.is_relative_to(BENCHMARKS):
            item.add_marker(pytest.mark.bench)
