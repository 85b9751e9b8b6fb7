"""What `pytest` alone runs, and what it then need not even read: a hook of both `conftest.py`."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
INNER_RINGS = {HERE / ring for ring in ("core", "actors", "store")}
INNER_FILES = {"test_house_rules.py"}
"""What decides, remembers and acts, and the rules of the house."""


def is_asked_for(config: pytest.Config) -> bool:
    """Whether somebody named a path; else the inner rings are meant."""
    return config.args_source is not pytest.Config.ArgsSource.TESTPATHS


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave unread what the development ring leaves out: importing it all takes longer than most of its tests."""
    if is_asked_for(config) or f"-m={config.option.markexpr}" not in config.getini("addopts"):
        return None
    rings = INNER_RINGS.intersection((collection_path, *collection_path.parents))
    return None if rings or collection_path.name in {*INNER_FILES, HERE.name} else True
