"""The fixtures themselves: fresh databases are fresh, and what a test leaves behind is found."""

from contextlib import ExitStack

import postgres_servers
import psycopg
import pytest
from postgres_servers import Server, query
from processes import ends, kill


def test_a_server_that_was_killed_can_be_started_and_then_stopped(server: Server) -> None:
    kill(server.pid)
    server.start()
    pid = server.pid
    server.stop()
    assert ends(pid)


def test_every_test_has_a_database_of_its_own(session_server: Server) -> None:
    with session_server.fresh_database() as one, session_server.fresh_database() as other:
        query(one, "CREATE TABLE mine ()")
        assert query(other, "SELECT to_regclass('mine')") is None


def test_a_copied_database_holds_what_the_template_held(session_server: Server) -> None:
    template = session_server.template(lambda url: query(url, "CREATE TABLE filled AS SELECT 7 AS number"))
    with session_server.fresh_database(template) as url:
        assert query(url, "SELECT number FROM filled") == 7
    session_server.drop(template)


def test_a_session_that_a_test_leaves_open_fails_the_test(
    session_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_servers, "GOODBYE_LIMIT", 0.0)
    test = ExitStack()
    url = test.enter_context(session_server.fresh_database())
    connection = psycopg.connect(url, application_name="forgotten")
    connection.execute("SELECT 'here'")
    with pytest.raises(pytest.fail.Exception, match=r"left sessions open:\npid .*forgotten.*SELECT 'here'"):
        test.close()
    connection.close()


def test_the_server_comes_back_under_its_url_after_a_restart(server: Server, empty_database: str) -> None:
    query(empty_database, "CREATE TABLE kept ()")
    before = server.pid
    server.restart()
    assert server.pid != before
    assert query(empty_database, "SELECT to_regclass('kept')") == "kept"


@pytest.mark.parametrize("harm", ["stopped", "killed"])
def test_a_server_that_a_test_broke_is_mended_for_the_next_one(session_server: Server, harm: str) -> None:
    with session_server.fresh_database() as url:
        if harm == "stopped":
            session_server.stop()
        else:
            kill(session_server.pid)
        assert not session_server.is_running
    assert session_server.is_running
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        query(url, "SELECT 1")
