from hypothesis import given
from hypothesis import strategies as st
from postgres_servers import Server

from model.machines.leadership import Leadership
from model.profiles import chosen
from model.refinement.elections import Elections

PROFILE = chosen()


def test_the_lease_row_does_what_the_machine_does(session_server: Server, migrated_template: str) -> None:
    @PROFILE.settings(PROFILE.refinements)
    @given(st.data())
    def walks(data: st.DataObject) -> None:
        with session_server.fresh_database(migrated_template) as url:
            elections = Elections(url, Leadership(**{**Leadership.walk_sizes, "n_nodes": 2, "lease": 3, "trust": 2}))
            try:
                elections.walk(data, 3 * PROFILE.refinement_length)
            finally:
                elections.close()

    walks()
