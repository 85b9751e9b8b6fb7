"""A private Postgres that several hold, and that is killed, frozen or pulled away."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import psycopg
import pytest
from postgres_servers import query, version_under_test
from processes import ends, kill

from awa_actors import private_cluster
from awa_actors.private_postgres import PrivatePostgres

VERSION = version_under_test()

HOLDER = """
import sys
from awa_actors.private_postgres import PrivatePostgres
server = PrivatePostgres(sys.argv[1], version=int(sys.argv[2]), settings={"fsync": "off"}).start()
print(server.pid, server.url, flush=True)
sys.stdin.readline()
server.stop()
print("stopped", flush=True)
"""


class Holder:
    """Another process that holds the server of a directory."""

    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-c", HOLDER, str(home), str(VERSION)]
        repository = Path(private_cluster.__file__).parents[1]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=repository, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout
        pid, self.url = self.process.stdout.readline().split()
        self.pid = int(pid)

    def leave(self) -> None:
        assert self.process.communicate("\n", timeout=30)[0] == "stopped\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


def test_a_second_stop_does_nothing(private: PrivatePostgres) -> None:
    first, second = private.start(), private.start()
    first.stop()
    first.stop()
    assert query(second.url, "SELECT 1") == 1
    second.stop()


def test_holders_of_one_process_share_the_server(private: PrivatePostgres) -> None:
    with private.running() as outer:
        with private.running() as inner:
            assert inner == outer
        assert query(outer, "SELECT 1") == 1


def test_many_threads_may_start_and_stop_at_once(private: PrivatePostgres) -> None:
    together = threading.Barrier(4)

    def hold(_: int) -> object:
        together.wait()
        with private.running() as url:
            return query(url, "SELECT 1")

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(hold, range(4))) == [1, 1, 1, 1]


def test_the_last_process_to_leave_stops_the_server(private: PrivatePostgres, home: Path) -> None:
    starter = Holder(home)
    joined = private.start()
    assert (joined.pid, joined.url) == (starter.pid, starter.url)
    starter.leave()
    assert query(joined.url, "SELECT 1") == 1
    joined.stop()
    assert ends(joined.pid)


def test_a_process_that_joined_leaves_the_server_to_the_others(private: PrivatePostgres, home: Path) -> None:
    server = private.start()
    Holder(home).leave()
    assert query(server.url, "SELECT 1") == 1
    server.stop()


def test_what_a_killed_holder_left_running_is_joined_and_then_stopped(private: PrivatePostgres, home: Path) -> None:
    killed = Holder(home)
    killed.kill()
    server = private.start()
    assert server.pid == killed.pid
    server.stop()
    assert ends(server.pid)


def test_a_killed_server_starts_again_on_its_data_and_its_url(private: PrivatePostgres) -> None:
    first = private.start()
    query(first.url, "CREATE TABLE kept AS SELECT 42 AS number")
    kill(first.pid)
    second = private.start()
    assert query(second.url, "SELECT number FROM kept") == 42
    assert second.url == first.url
    first.stop()
    assert query(second.url, "SELECT 1") == 1
    second.stop()
    assert ends(second.pid)


def test_a_start_waits_for_what_a_killed_server_left_running(private: PrivatePostgres) -> None:
    first = private.start()
    with psycopg.connect(first.url) as connection, ThreadPoolExecutor() as threads:
        backend = connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        kill(first.pid)
        log = first.data_dir / "postgres.log"
        size = log.stat().st_size
        restart = threads.submit(private.start)
        while "is still in use" not in log.read_text()[size:]:
            assert not wait([restart], timeout=0.01).done
        kill(backend)
        second = restart.result()
        assert query(second.url, "SELECT 1") == 1
    first.stop()
    second.stop()


def test_a_stale_pid_that_was_given_to_another_process_is_survived(private: PrivatePostgres) -> None:
    server = private.start()
    kill(server.pid)
    server.stop()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=server.data_dir.stat().st_uid) as bystander:
        pid_file = server.data_dir / "postmaster.pid"
        pid_file.write_text(f"{bystander.pid}\n" + pid_file.read_text().split("\n", 1)[1])
        with private.running() as url:
            assert query(url, "SELECT 1") == 1
        assert bystander.poll() is None


def test_a_frozen_server_is_stopped_all_the_same(private: PrivatePostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_cluster, "STOP_LIMIT", 0.1)
    server = private.start()
    os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert ends(server.pid)


def test_a_directory_removed_under_the_server_does_not_save_it(new_private: PrivatePostgres) -> None:
    server = new_private.start()
    shutil.rmtree(server.data_dir.parent)
    server.stop()
    assert ends(server.pid)
