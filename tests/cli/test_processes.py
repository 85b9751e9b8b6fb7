"""Real processes: how a role starts, works and ends."""

import os
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path

import orjson
import pytest
import shop_at_work as shop
from command_line import UNREACHABLE, Process, running
from command_line import awa as asked
from jobs_at_hand import becomes, inserted_args, row
from postgres_servers import Server, query

from awa_actors.jobs import JobState

pytestmark = pytest.mark.slow

WORKER = ("--role", "worker", "--app", "shop_at_work:registry")
READY = "runs 5 kinds"

IMPATIENT = """
from awa_actors.cli import process
from shop_at_work import registry
process.FORCE_AFTER = 0.5
"""
"""The same application in a process whose watchdog waits for a moment only."""
STOPPING = """
import os, signal
from shop_at_work import registry
os.kill(os.getpid(), signal.SIGTERM)
"""
"""The same, asked to end while it is being imported: no event loop runs yet."""


PINGING = """
import awa_actors as awa
registry = awa.Registry()
registry.http_worker("ping", "http://127.0.0.1:{port}/", mode="sync")
"""
"""An application whose jobs are requests."""


@pytest.fixture
def variant(tmp_path: Path) -> Path:
    """A working directory with variants of the application in it."""
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    (tmp_path / "stopping.py").write_text(STOPPING)
    return tmp_path


def is_draining(process: Process) -> None:
    process.says("asked to end: draining")


def test_a_running_job_is_finished_before_the_process_ends(database: str) -> None:
    (job,) = inserted_args(database, shop.Wait())
    with running(*WORKER, url=database) as worker:
        worker.says(f"started {job}")
        worker.signal()
        is_draining(worker)
        (late,) = inserted_args(database, shop.Linger())
        worker.tell("go on")
        assert worker.ends() == 0
        assert worker.said(f"finished {job}")
    assert row(database, job).state is JobState.COMPLETED
    assert (row(database, late).state, row(database, late).run_lease) == (JobState.AVAILABLE, 0)


def test_a_drain_longer_than_staleness_loses_nothing(database: str) -> None:
    """Beats go on until the last handler has ended; rescue runs all the time, in the same process."""
    (job,) = inserted_args(database, shop.Sleep(3.0))
    life = ("--stale-after", "1", "--rescue-interval", "0.1")
    with running(*WORKER, *life, url=database) as worker:
        worker.says(f"started {job}")
        worker.signal()
        assert worker.ends() == 0
    found = row(database, job)
    assert (found.state, found.attempt, found.rescues) == (JobState.COMPLETED, 1, 0)


def test_a_job_can_be_cancelled_while_its_worker_drains(database: str) -> None:
    (job,) = inserted_args(database, shop.Linger())
    with running(*WORKER, url=database) as worker:
        worker.says(f"started {job}")
        worker.signal()
        is_draining(worker)
        assert asked("job", "cancel", str(job), url=database).status == 0
        assert worker.ends() == 0
    assert row(database, job).state is JobState.CANCELLED


@pytest.mark.parametrize("grace", ["0", "0.2"])
def test_a_drain_that_takes_too_long_ends_in_75_and_gives_the_job_back(database: str, grace: str) -> None:
    (job,) = inserted_args(database, shop.Linger())
    with running(*WORKER, "--grace", grace, url=database) as worker:
        worker.says(f"started {job}")
        worker.signal()
        worker.says("cancelling jobs", f"[{job}]")
        assert worker.ends() == 75
    is_given_back(database, job)


def is_given_back(database: str, job: int) -> None:
    found = row(database, job)
    assert (found.state, found.attempt, found.interrupted) == (JobState.AVAILABLE, 0, 1)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_now(database: str, second: int) -> None:
    (job,) = inserted_args(database, shop.Linger())
    with running(*WORKER, "--grace", "3600", url=database) as worker:
        worker.says(f"started {job}")
        worker.signal()
        is_draining(worker)
        worker.signal(second)
        assert worker.ends() == 75
    is_given_back(database, job)


@pytest.mark.parametrize("args", [shop.Block(), shop.Stubborn()])
def test_a_handler_that_will_not_end_is_ended_by_the_watchdog(database: str, args: object, variant: Path) -> None:
    (job,) = inserted_args(database, args)
    impatient = ("--role", "worker", "--app", "impatient:registry", "--grace", "0.2", "--log-format", "json")
    with running(*impatient, url=database, cwd=variant) as worker:
        worker.says(f"started {job}")
        worker.signal()
        last = worker.says("ending by force")
        assert worker.ends() == 75
    entry = orjson.loads(last)
    assert (entry["level"], entry["job_ids"]) == ("critical", [job])
    assert row(database, job).state is JobState.RUNNING  # until it is rescued


def test_a_second_signal_does_not_wait_for_the_grace_of_the_first(database: str, variant: Path) -> None:
    (job,) = inserted_args(database, shop.Stubborn())
    impatient = ("--role", "worker", "--app", "impatient:registry", "--grace", "3600")
    with running(*impatient, url=database, cwd=variant) as worker:
        worker.says(f"started {job}")
        worker.signal()
        is_draining(worker)
        worker.signal()
        assert worker.ends() == 75


def test_a_worker_whose_database_is_gone_for_good_ends_within_its_grace(server: Server, database: str) -> None:
    (job,) = inserted_args(database, shop.Wait())
    with running(*WORKER, "--grace", "1", url=database) as worker:
        worker.says(f"started {job}")
        server.stop()
        worker.tell("go on")
        worker.says(f"finished {job}")
        worker.signal()
        worker.says("could not be recorded")
        assert worker.ends() == 75


def test_a_worker_outlives_its_database(server: Server, database: str) -> None:
    with running(*WORKER, url=database) as worker:
        worker.says(READY)
        server.restart()
        (job,) = inserted_args(database, shop.Sleep(0.0))
        worker.says(f"started {job}")
        worker.signal()
        assert worker.ends() == 0


@pytest.mark.parametrize("mode", ["--poll-only", "--pooler"])
def test_a_worker_works_without_listening(database: str, mode: str) -> None:
    with running(*WORKER, mode, "--queue", "default=2", "--no-maintenance", url=database) as worker:
        worker.says(READY)
        (job,) = inserted_args(database, shop.Sleep(0.0))
        worker.says(f"started {job}")
        listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        assert query(database, listening) == 0
        worker.signal()
        assert worker.ends() == 0


def test_maintenance_says_first_that_it_never_runs_jobs(database: str) -> None:
    with running("--role", "maintenance", url=database) as maintenance:
        maintenance.says("elected")
        first = maintenance.lines[0]
        maintenance.signal()
        assert maintenance.ends() == 0
    for part in ("never claims or runs jobs", "pool-only", "no cron", "no descriptors", "no follow-ups"):
        assert part in first


def test_maintenance_with_an_app_is_not_pool_only_and_still_runs_nothing(database: str) -> None:
    ready, due = inserted_args(database, shop.Linger()) + inserted_args(database, shop.Linger(), seconds=0.1)
    args = ("maintenance", "run", "--app", "shop_at_work:registry")
    with running(*args, url=database) as maintenance:
        first = maintenance.says("never claims or runs jobs")
        assert "pool-only" not in first
        becomes(database, due, JobState.AVAILABLE)
        maintenance.signal(signal.SIGINT)
        assert maintenance.ends() == 0
    assert [row(database, job).run_lease for job in (ready, due)] == [0, 0]


def listening(pid: int) -> set[str]:
    """Addresses that a process listens at."""
    sockets = {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    rows = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()
    ]
    return {fields[1] for fields in rows if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets}


def test_maintenance_sends_no_requests_serves_none_and_declares_nothing(database: str, tmp_path: Path) -> None:
    pytest.importorskip("httpx2")
    with socket.create_server(("127.0.0.1", 0)) as function:
        (tmp_path / "pinging.py").write_text(PINGING.format(port=function.getsockname()[1]))
        due = int(str(query(database, "SELECT id FROM awa.insert_job('ping', '{}', '{\"delay\": 0.1}')")))
        with running("--role", "maintenance", "--app", "pinging:registry", url=database, cwd=tmp_path) as maintenance:
            maintenance.says("elected")
            becomes(database, due, JobState.AVAILABLE)
            assert listening(maintenance.pid) == set()
            maintenance.signal()
            assert maintenance.ends() == 0
        function.setblocking(False)
        with pytest.raises(BlockingIOError):
            function.accept()
    assert row(database, due).run_lease == 0
    declared = "SELECT (SELECT count(*) FROM awa.cron_schedules) + (SELECT count(*) FROM awa.descriptors)"
    assert query(database, declared) == 0


def test_a_leader_is_shown_and_asked_to_resign(database: str) -> None:
    with running("--role", "maintenance", url=database) as maintenance:
        maintenance.says("elected: term")
        shown = asked("leader", "show", "--json", url=database)
        assert shown.status == 0
        assert shown.json["process"]["pid"] == maintenance.pid
        assert asked("leader", "resign", "--json", url=database).json == {"term": shown.json["term"]}
        maintenance.says(f"term {shown.json['term']} is over")
        maintenance.signal()
        assert maintenance.ends() == 0


def test_a_stop_during_the_wait_for_the_database_is_not_lost() -> None:
    with running("--role", "maintenance", url=UNREACHABLE) as maintenance:
        maintenance.says("waiting up to 30 s for the database")
        maintenance.signal()
        assert maintenance.ends() == 0


def test_a_stop_before_anything_has_begun_is_not_lost(database: str, variant: Path) -> None:
    with running("--role", "worker", "--app", "stopping:registry", url=database, cwd=variant) as worker:
        assert worker.ends() == 0
    assert not worker.said("started")


def test_a_database_that_comes_late_is_waited_for(server: Server, database: str) -> None:
    server.stop()
    with running(*WORKER, url=database) as worker:
        worker.says("waiting up to 30 s for the database")
        server.start()
        worker.says(READY)
        worker.signal()
        assert worker.ends() == 0


def test_probes_are_answered_from_start_to_end(database: str) -> None:
    (job,) = inserted_args(database, shop.Wait())
    with running(*WORKER, "--health-addr", "127.0.0.1:0", url=database) as worker:
        base = worker.says("health listener on").partition("listener on ")[2].partition(",")[0]
        worker.says(f"started {job}")
        status, fields = probe(f"{base}/readyz")
        assert status == 200
        assert fields == {
            "ready": True,
            "postgres_connected": True,
            "schema_version": fields["expected_schema_version"],
            "expected_schema_version": fields["expected_schema_version"],
            "schema_compatible": True,
            "poll_loop_alive": True,
            "heartbeat_alive": True,
            "maintenance_alive": True,
            "shutting_down": False,
            "leader": fields["leader"],
        }
        worker.signal()
        is_draining(worker)
        status, fields = probe(f"{base}/readyz")
        assert (status, fields["ready"], fields["shutting_down"]) == (503, False, True)
        assert probe(f"{base}/healthz") == (200, {"status": "ok"})
        worker.tell("go on")
        assert worker.ends() == 0


def test_probes_are_answered_while_there_is_no_database() -> None:
    with running("--role", "maintenance", "--health-addr", "127.0.0.1:0", url=UNREACHABLE) as maintenance:
        base = maintenance.says("health listener on").partition("listener on ")[2].partition(",")[0]
        status, fields = probe(f"{base}/readyz")
        assert (status, fields["ready"], fields["postgres_connected"]) == (503, False, False)
        maintenance.signal()
        assert maintenance.ends() == 0


def test_the_callback_server_is_a_role_like_the_others(database: str) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("hypercorn")
    args = ("--role", "callbacks", "--with-maintenance", "--allow-unsigned", "--port", "0")
    with running(*args, "--health-addr", "127.0.0.1:0", url=database) as server:
        base = server.says("health listener on").partition("listener on ")[2].partition(",")[0]
        server.says("callbacks are taken at")
        assert probe(f"{base}/readyz")[0] == 200
        server.signal()
        assert server.ends() == 0


def probe(url: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, orjson.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, orjson.loads(error.read())


def test_a_health_address_that_is_taken_is_told_in_one_line(database: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with running("--role", "maintenance", "--health-addr", address, url=database) as maintenance:
            assert maintenance.ends() == 1
    assert f"awa-actors: --health-addr: cannot listen on {address}" in maintenance.lines[-1]


def test_log_lines_are_json_when_asked_for(database: str) -> None:
    with running("--role", "maintenance", "--log-format", "json", url=database) as maintenance:
        maintenance.says("elected")
        maintenance.signal()
        assert maintenance.ends() == 0
    for line in maintenance.lines:
        assert set(orjson.loads(line)) >= {"time", "level", "logger", "message"}
