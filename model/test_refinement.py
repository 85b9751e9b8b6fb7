import pytest
from hypothesis import given
from hypothesis import strategies as st
from postgres_servers import Server

from model.machines.queue import Queue
from model.profiles import chosen
from model.refinement.conductor import Conductor
from model.refinement.store import Store

PROFILE = chosen()


@pytest.mark.parametrize("n_sessions", [2, 3])
def test_the_store_does_what_the_machine_does(session_server: Server, migrated_template: str, n_sessions: int) -> None:
    @PROFILE.settings(PROFILE.refinements)
    @given(st.data())
    def walks(data: st.DataObject) -> None:
        machine = Queue(**{**Queue.walk_sizes, "n_sessions": n_sessions})
        with session_server.fresh_database(migrated_template) as url:
            store = Store(url, machine)
            try:
                Conductor(machine, store, data).walk(PROFILE.refinement_length)
            finally:
                store.close()

    walks()
