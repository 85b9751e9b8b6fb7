"""Directories for private servers, and the check that none is left running."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_servers import FAST, MEMORY, version_under_test
from processes import ends

from awa_actors.private_postgres import PrivatePostgres


@pytest.fixture(scope="module")
def parent() -> Iterator[Path]:
    """A directory that is closed to everybody else, as root's and pytest's own are."""
    directory = Path(tempfile.mkdtemp(prefix="awa-closed-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    if version_under_test() < 16:
        directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def used_home(parent: Path) -> Path:
    """A directory with a cluster, since most tests can do with one and an initdb takes its time."""
    home = parent / "used"
    with PrivatePostgres(home, version=version_under_test(), settings=FAST).running():
        return home


@pytest.fixture
def home(used_home: Path) -> Iterator[Path]:
    """A directory whose cluster is down, which it is again after the test."""
    yield used_home
    left = used_home / "data" / "postmaster.pid"
    if left.exists():
        # It was killed; the next start gives the machine back the shared memory that it had.
        assert ends(int(left.read_text().split()[0]))
        with PrivatePostgres(used_home, version=version_under_test(), settings=FAST).running():
            pass


@pytest.fixture
def private(home: Path) -> PrivatePostgres:
    return PrivatePostgres(home, version=version_under_test(), settings=FAST)


@pytest.fixture
def new_home(parent: Path) -> Iterator[Path]:
    """A directory that does not exist yet."""
    yield parent / "new"
    shutil.rmtree(parent / "new", ignore_errors=True)


@pytest.fixture
def new_private(new_home: Path) -> PrivatePostgres:
    return PrivatePostgres(new_home, version=version_under_test(), settings=FAST)
