"""What a private Postgres promises to its holder and to the machine."""

import asyncio
import os
import re
import stat
import subprocess
from pathlib import Path

import asyncpg
import psycopg
import pytest
from postgres_servers import FAST, Server, query, socket_directory, version_under_test
from processes import ends

from awa_actors import private_postgres
from awa_actors.private_postgres import PrivatePostgres, PrivateServer

VERSION = version_under_test()


def test_both_drivers_connect_to_its_url(private: PrivatePostgres) -> None:
    async def ask(url: str) -> object:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval("SHOW server_version_num")
        finally:
            await connection.close()

    with private.running() as url:
        assert re.fullmatch(r"postgresql:///postgres\?host=/[^&]+&port=5432&user=postgres", url)
        assert str(query(url, "SHOW server_version_num")).startswith(str(VERSION))
        assert str(asyncio.run(ask(url))).startswith(str(VERSION))


def test_data_and_url_survive_stop_and_start(private: PrivatePostgres) -> None:
    with private.running() as first:
        query(first, "CREATE TABLE survivors AS SELECT 42 AS number")
    with private.running() as second:
        assert query(second, "SELECT number FROM survivors") == 42
    assert first == second


def test_after_the_stop_nothing_runs_and_nothing_lies_about(private: PrivatePostgres) -> None:
    server = private.start()
    query(server.url, "SELECT 1")
    server.stop()
    assert ends(server.pid)
    assert not socket_directory(server.url).exists()
    with pytest.raises(psycopg.OperationalError):
        query(server.url, "SELECT 1")


def test_sessions_that_are_still_open_do_not_delay_the_stop(private: PrivatePostgres) -> None:
    server = private.start()
    with psycopg.connect(server.url) as connection:
        connection.execute("SELECT 1")
        server.stop()
        assert ends(server.pid)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


def test_a_temporary_server_takes_its_directory_with_it() -> None:
    server = PrivatePostgres(version=VERSION).start()
    home = server.data_dir.parent
    assert home.is_dir()
    assert query(server.url, "SHOW fsync") == "off"
    server.stop()
    assert ends(server.pid)
    assert not home.exists()


def test_a_directory_is_durable_unless_settings_say_otherwise(home: Path) -> None:
    with PrivatePostgres(home, version=VERSION).running() as url:
        assert query(url, "SHOW fsync") == "on"
        assert query(url, "SHOW synchronous_commit") == "on"


def test_settings_hold_for_the_run_that_gave_them(home: Path) -> None:
    settings = {**FAST, "max_connections": "33", "search_path": 'one, "two words"'}
    with PrivatePostgres(home, version=VERSION, settings=settings).running() as url:
        assert query(url, "SHOW max_connections") == "33"
        assert query(url, "SHOW search_path") == 'one, "two words"'
    with PrivatePostgres(home, version=VERSION, settings=FAST).running() as url:
        assert query(url, "SHOW max_connections") == "100"


def test_it_listens_on_tcp_only_when_asked(private: PrivatePostgres) -> None:
    with private.running() as url:
        assert query(url, "SHOW listen_addresses") == ""


def test_another_port_is_in_the_url(home: Path) -> None:
    with PrivatePostgres(home, version=VERSION, settings={**FAST, "port": "6543"}).running() as url:
        assert "&port=6543&" in url
        assert query(url, "SHOW port") == "6543"


def test_other_accounts_cannot_open_its_socket(private: PrivatePostgres) -> None:
    with private.running() as url:
        assert stat.S_IMODE(socket_directory(url).stat().st_mode) == 0o700


def test_the_environment_of_other_servers_means_nothing_to_it(
    private: PrivatePostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("LC_ALL", "xx_XX.nonsense")
    with private.running() as url:
        assert query(url, "SHOW port") == "5432"


def test_a_deep_directory_is_no_trouble_for_the_socket(new_home: Path) -> None:
    deep = new_home / ("long and 'quoted' " * 10)
    with PrivatePostgres(deep, version=VERSION, settings=FAST).running() as url:
        assert len(str(socket_directory(url))) < 90
        assert query(url, "SELECT 1") == 1


def test_client_programs_come_with_the_server(server: Server) -> None:
    dumped = subprocess.run(
        [server.bin_dir / "pg_dump", "--schema-only", server.url], capture_output=True, text=True, check=True
    )
    assert "PostgreSQL database dump complete" in dumped.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs its server as somebody else")
def test_for_root_the_server_runs_as_the_owner_of_its_data(home: Path) -> None:
    def owner(server: PrivateServer) -> int:
        return Path(f"/proc/{server.pid}").stat().st_uid

    server = PrivatePostgres(home, version=VERSION, settings=FAST).start()
    try:
        assert owner(server) == server.data_dir.stat().st_uid != 0
    finally:
        server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs its server as somebody else")
def test_for_root_no_permission_outside_the_directory_changes(private: PrivatePostgres, home: Path) -> None:
    before = [(path, path.stat().st_mode) for path in home.parents]
    with private.running():
        assert [(path, path.stat().st_mode) for path in home.parents] == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs its server as somebody else")
@pytest.mark.skipif(VERSION < 16, reason="Debian's programs are where everybody gets to them")
def test_for_root_programs_that_others_cannot_reach_are_copied_for_the_run(
    private: PrivatePostgres, new_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = private_postgres.bin_dir(VERSION).parent
    new_home.mkdir(mode=0o700)
    for shipped in (install.parent, install.parent.with_name(f"{install.parent.name}.libs")):
        (new_home / shipped.name).symlink_to(shipped)
    closed = new_home / install.parent.name / install.name / "bin"
    monkeypatch.setattr(private_postgres, "bin_dir", lambda version: closed)
    with private.running() as url:
        assert query(url, "SELECT 'é' ILIKE 'é' AND now() AT TIME ZONE 'Pacific/Auckland' IS NOT NULL") is True
        copies = socket_directory(url) / "programs"
        assert (copies / install.parent.name / install.name / "bin" / "postgres").exists()
    assert not copies.exists()
