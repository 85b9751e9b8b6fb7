from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgres_servers import Server

from model.machines.queue import Queue
from model.profiles import chosen
from model.refinement.conductor import Conductor
from model.refinement.store import Store
from model.refinement.stories import STORIES

PROFILE = chosen()


@contextmanager
def opened(url: str, n_sessions: int) -> Iterator[Store]:
    store = Store(url, Queue(**{**Queue.walk_sizes, "n_sessions": n_sessions}))
    try:
        yield store
    finally:
        store.close()


@pytest.mark.parametrize("story", STORIES.values(), ids=list(STORIES))
def test_the_store_follows_the_story(database: str, story: tuple[tuple[str, tuple[object, ...]], ...]) -> None:
    with opened(database, 2) as store:
        Conductor(store.machine, store, lambda below: 0).follow(story)


@pytest.mark.parametrize("n_sessions", [2, 3])
def test_the_store_does_what_the_machine_does(session_server: Server, migrated_template: str, n_sessions: int) -> None:
    @PROFILE.settings(PROFILE.refinements)
    @given(st.data())
    def walks(data: st.DataObject) -> None:
        with session_server.fresh_database(migrated_template) as url, opened(url, n_sessions) as store:
            conductor = Conductor(store.machine, store, lambda below: data.draw(st.integers(0, below - 1)))
            conductor.walk(PROFILE.refinement_length)

    walks()
