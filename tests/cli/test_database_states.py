"""What commands and roles do when the database is away, refuses them, or is not what they need."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest
from command_line import UNREACHABLE, awa, one_line
from postgres_servers import Server, query
from psycopg import sql

MAINTENANCE = ("--role", "maintenance", "--connect-timeout", "0.3")


@contextmanager
def server_that_hangs_up() -> Iterator[str]:
    """The URL of something that takes connections and closes them, as a proxy does whose server is away."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.recv(64)
                connection.close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        yield f"postgresql://nobody@127.0.0.1:{listener.getsockname()[1]}/shop?sslmode=disable"
        # Closing alone leaves the accept of the other thread waiting.
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("args", [("health",), ("migrate",), ("job", "list"), ("tick",), MAINTENANCE])
def test_an_unreachable_database_is_69(args: tuple[str, ...]) -> None:
    answer = awa(*args, url=UNREACHABLE)
    assert answer.status == 69
    assert "cannot reach the database" in answer.err.splitlines()[-1]


def test_a_question_about_an_unreachable_database_fails_in_one_line() -> None:
    one_line(awa("queue", "list", url=UNREACHABLE).err, "cannot reach the database")


def test_health_in_json_says_that_the_database_is_unreachable() -> None:
    answer = awa("health", "--json", url=UNREACHABLE)
    assert answer.status == 69
    assert answer.json["ready"] is False
    assert answer.json["database"]["reachable"] is False


@pytest.mark.parametrize("args", [("health",), MAINTENANCE])
def test_a_server_that_hangs_up_is_unreachable_for_now(args: tuple[str, ...]) -> None:
    with server_that_hangs_up() as url:
        answer = awa(*args, url=url)
    assert answer.status == 69
    assert "cannot reach the database" in answer.err.splitlines()[-1]


def test_a_refused_database_or_role_is_69_without_waiting(session_server: Server) -> None:
    """The time limit of a role's start is half a minute here, which would be noticed."""
    parts = urlsplit(session_server.url)
    stranger = session_server.url.replace(f"user={parts.query.partition('user=')[2]}", "user=stranger")
    for url in (session_server.database_url("no_such_database"), stranger):
        answer = awa("--role", "maintenance", url=url)
        assert answer.status == 69
        assert "refused the connection" in answer.err.splitlines()[-1]


@pytest.mark.parametrize(
    "args", [("health",), ("job", "list"), ("queue", "stats"), ("tick",), ("leader", "show"), MAINTENANCE]
)
def test_an_unmigrated_database_is_1_and_says_how_to_migrate(args: tuple[str, ...], empty_database: str) -> None:
    answer = awa(*args, url=empty_database)
    assert answer.status == 1
    assert "awa-actors migrate" in answer.out + answer.err
    assert "unexpected" not in answer.err


@pytest.mark.parametrize("args", [("health",), ("migrate",), ("migrate", "--check"), ("tick",), MAINTENANCE])
def test_a_newer_schema_is_1_and_says_to_upgrade(args: tuple[str, ...], database: str) -> None:
    query(database, "INSERT INTO awa.schema_migrations (version, name, checksum) VALUES (9999, 'later', '')")
    answer = awa(*args, url=database)
    assert answer.status == 1
    assert "upgrade awa-actors" in answer.out + answer.err


@pytest.fixture
def read_only(database: str) -> str:
    with psycopg.connect(database, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
    return database


@pytest.mark.parametrize("args", [("migrate",), ("tick",), ("job", "cancel", "1"), ("leader", "resign"), MAINTENANCE])
def test_a_read_only_database_will_not_do_for_what_writes(args: tuple[str, ...], read_only: str) -> None:
    answer = awa(*args, url=read_only)
    assert answer.status == 69
    assert "read-only" in answer.err.splitlines()[-1]
    assert "primary" in answer.err.splitlines()[-1]


def test_a_read_only_database_can_be_asked(read_only: str) -> None:
    assert awa("job", "list", url=read_only).status == 0
    answer = awa("health", "--json", url=read_only)
    assert answer.status == 1
    assert "read-only" in answer.json["reasons"][0]
