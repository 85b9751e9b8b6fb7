"""Sessions on one migrated database: the first, and as many others as a race needs."""

from collections.abc import Callable, Iterator

import pytest
from queue_plane import Plane, open_plane


@pytest.fixture
def sessions(database: str) -> Iterator[Callable[[], Plane]]:
    """Open sessions that are closed after the test, whatever they were doing."""
    opened: list[Plane] = []

    def open_session() -> Plane:
        opened.append(open_plane(database))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


@pytest.fixture
def plane(sessions: Callable[[], Plane]) -> Plane:
    """The session of most tests."""
    return sessions()


@pytest.fixture
def other(sessions: Callable[[], Plane]) -> Plane:
    """A second session, for what happens meanwhile."""
    return sessions()


@pytest.fixture
def watcher(sessions: Callable[[], Plane]) -> Plane:
    """A third session, which only looks."""
    return sessions()
