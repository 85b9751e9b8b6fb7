from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgres_servers import Server

from model.machines.leadership import Leadership
from model.profiles import chosen
from model.refinement.elections import ELECTIONS, Elections

PROFILE = chosen()


@contextmanager
def opened(url: str) -> Iterator[Elections]:
    elections = Elections(url, Leadership(n_nodes=2, lease=3, trust=2, mishaps=9))
    try:
        yield elections
    finally:
        elections.close()


@pytest.mark.parametrize("story", ELECTIONS.values(), ids=list(ELECTIONS))
def test_the_lease_row_follows_the_story(database: str, story: tuple[tuple[str, tuple[object, ...]], ...]) -> None:
    with opened(database) as elections:
        elections.follow(story)


def test_the_lease_row_does_what_the_machine_does(session_server: Server, migrated_template: str) -> None:
    @PROFILE.settings(PROFILE.refinements)
    @given(st.data())
    def walks(data: st.DataObject) -> None:
        with session_server.fresh_database(migrated_template) as url, opened(url) as elections:
            elections.walk(lambda below: data.draw(st.integers(0, below - 1)), 3 * PROFILE.refinement_length)

    walks()
