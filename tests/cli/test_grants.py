import subprocess
from collections.abc import Iterator

import pytest
from command_line import awa, one_line
from database_roles import Granted, granted_roles
from postgres_servers import Server


@pytest.fixture
def granted(database: str, server: Server) -> Iterator[Granted]:
    with granted_roles(database, server) as granted:
        yield granted


def test_without_a_name_the_grants_of_every_role_are_printed_and_no_database_is_needed() -> None:
    answer = awa("migrate", "--grants")
    assert answer.status == 0
    for role in ("producer", "worker", "maintenance", "callbacks", "reader", "admin"):
        assert f'GRANT USAGE ON SCHEMA awa, awa_queue TO "awa_{role}";' in answer.out


def test_what_is_printed_is_what_psql_runs(granted: Granted, server: Server) -> None:
    name = granted.names["nobody"]
    printed = awa("migrate", "--grants", "--role", f"reader={name}")
    psql = [str(server.bin_dir / "psql"), "-q", "-v", "ON_ERROR_STOP=1", granted.url]
    subprocess.run(psql, input=printed.out, text=True, check=True)
    assert awa("queue", "stats", url=granted.url_of("nobody")).status == 0


def test_grants_are_applied_to_roles_that_exist(granted: Granted) -> None:
    name = granted.names["nobody"]
    answer = awa("migrate", "--grants", "--apply", "--role", f"reader={name}", url=granted.url)
    assert (answer.status, answer.out) == (0, f"granted: reader to {name}\n")
    assert awa("queue", "stats", url=granted.url_of("nobody")).status == 0
    one_line(awa("migrate", "--grants", "--apply", "--role", "reader=nobody here", url=granted.url).err, "nobody here")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--grants", "--apply"), "--apply needs --role"),
        (("--grants", "--role", "producer"), "ROLE=NAME"),
        (("--grants", "--role", "janitor=x"), "no role 'janitor'"),
        (("--grants", "--role", "reader=" + "x" * 64), "cannot be the name"),
        (("--grants", "--check"), "--grants leaves the schema as it is"),
        (("--role", "reader=x"), "go with --grants"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(args: tuple[str, ...], said: str) -> None:
    answer = awa("migrate", *args)
    assert answer.status == 2
    one_line(answer.err, said)
