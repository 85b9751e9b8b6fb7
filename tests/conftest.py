"""Fixtures of every ring: one Postgres per pytest session (and xdist worker), one fresh database per test."""

from pathlib import Path

import pytest
from database_fixtures import database, empty_database, migrated_template, server, session_server

__all__ = ["database", "empty_database", "migrated_template", "server", "session_server"]

BENCHMARKS = Path(__file__).parent / "bench"
INNER_RINGS = {Path(__file__).parent / ring for ring in ("core", "actors", "store")}
INNER_FILES = {"test_house_rules.py"}
"""What `pytest` alone runs, a case of each: what decides, remembers and acts, and the rules of the house."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark, before -m selects, benchmarks by where they are and what the development ring leaves out as wide.

    That is further cases of a test on a database and, where nobody named a path, what is not of the inner rings. So
    none is forgotten: a benchmark does not run among the tests, and the development ring stays as short as it is.
    """
    met: set[tuple[Path, str]] = set()
    asked = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    for item in items:
        if not asked and item.path.parent not in INNER_RINGS and item.path.name not in INNER_FILES:
            item.add_marker(pytest.mark.wide)
        if isinstance(item, pytest.Function) and "session_server" in item.fixturenames:
            test = item.path, item.originalname
            if test in met:
                item.add_marker(pytest.mark.wide)
            met.add(test)
        if item.path.is_relative_to(BENCHMARKS):
            item.add_marker(pytest.mark.bench)
