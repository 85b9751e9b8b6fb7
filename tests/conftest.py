"""Fixtures of every ring: one Postgres per pytest session (and xdist worker), one fresh database per test."""

from pathlib import Path

import pytest
from database_fixtures import database, empty_database, migrated_template, server, session_server
from inner_rings import INNER_FILES, INNER_RINGS, is_asked_for, pytest_ignore_collect

__all__ = ["database", "empty_database", "migrated_template", "pytest_ignore_collect", "server", "session_server"]

BENCHMARKS = Path(__file__).parent / "bench"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark, before -m selects, benchmarks by where they are and what the development ring leaves out as wide.

    That is further cases of a test on a database and, where nobody named a path, what is not of the inner rings. So
    none is forgotten: a benchmark does not run among the tests, and the development ring stays as short as it is.
    """
    met: set[tuple[Path, str]] = set()
    for item in items:
        if not is_asked_for(config) and item.path.parent not in INNER_RINGS and item.path.name not in INNER_FILES:
            item.add_marker(pytest.mark.wide)
        if isinstance(item, pytest.Function) and "session_server" in item.fixturenames:
            test = item.path, item.originalname
            if test in met:
                item.add_marker(pytest.mark.wide)
            met.add(test)
        if item.path.is_relative_to(BENCHMARKS):
            item.add_marker(pytest.mark.bench)
