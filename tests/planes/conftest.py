"""Sessions on an installation that has not moved yet; closed after the test, whatever they were doing."""

from collections.abc import Callable, Iterator

import pytest
from canonical_plane import CanonicalPlane, open_canonical


@pytest.fixture
def sort_of_plane() -> type[CanonicalPlane]:
    """What a session is."""
    return CanonicalPlane


@pytest.fixture
def sessions(database: str, sort_of_plane: type[CanonicalPlane]) -> Iterator[Callable[[], CanonicalPlane]]:
    """Open sessions."""
    opened: list[CanonicalPlane] = []

    def open_session() -> CanonicalPlane:
        opened.append(open_canonical(database, sort_of_plane))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


@pytest.fixture
def plane(sessions: Callable[[], CanonicalPlane]) -> CanonicalPlane:
    """The session of most tests."""
    return sessions()


@pytest.fixture
def other(plane: CanonicalPlane, sessions: Callable[[], CanonicalPlane]) -> CanonicalPlane:
    """A second session, for what happens meanwhile."""
    return sessions()


@pytest.fixture
def watcher(plane: CanonicalPlane, sessions: Callable[[], CanonicalPlane]) -> CanonicalPlane:
    """A third session, which only looks."""
    return sessions()
