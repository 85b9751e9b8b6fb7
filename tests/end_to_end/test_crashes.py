"""Workers that are killed, frozen or cut off, servers that crash or are copied: nothing is lost or done twice."""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import psycopg
import pytest
from postgres_servers import Server
from processes import ends
from psycopg.rows import dict_row
from queue_plane import Plane, open_plane

pytestmark = pytest.mark.slow

APP = Path(__file__).parent / "apps" / "worker_process.py"
LIMIT = 40.0
"""Seconds that anything waited for may take on a busy machine; it takes one or two."""
REFUSED = re.compile(r"job (\d+): its attempt \d+ has ended already or was taken away")


@attrs.define(eq=False)
class Worker:
    """A worker process and what it says."""

    process: subprocess.Popen[str]
    lines: queue.Queue[str]
    complaints: list[str]
    heard: list[str] = attrs.field(factory=list)
    threads: list[threading.Thread] = attrs.field(factory=list)

    def listen(self) -> None:
        """Read what it writes, in threads, until it has ended."""
        for read in (self._read_lines, self._read_complaints):
            thread = threading.Thread(target=read)
            thread.start()
            self.threads.append(thread)

    def _read_lines(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def _read_complaints(self) -> None:
        assert self.process.stderr is not None
        self.complaints.extend(self.process.stderr)

    def close(self) -> None:
        """Let go of a process that has ended."""
        for thread in self.threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def wait_for(self, wanted: Callable[[list[str]], bool]) -> None:
        """Wait until what it has said is what is wanted."""
        while not wanted(self.heard):
            try:
                self.heard.append(self.lines.get(timeout=LIMIT))
            except queue.Empty:
                pytest.fail(f"it says no more: {self.heard[-5:]} {self.complaints[-20:]}")

    def wait_started(self, count: int) -> list[tuple[int, int, int]]:
        """Wait until so many attempts have started; returns job, attempt and run_lease of each."""
        self.wait_for(lambda lines: sum(line.startswith("started") for line in lines) >= count)
        return self.started()

    def started(self) -> list[tuple[int, int, int]]:
        """Attempts that have started so far, those that nobody has waited for included."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.heard.append(self.lines.get_nowait())
        words = [line.split() for line in self.heard if line.startswith("started")]
        return [(int(job), int(attempt), int(lease)) for _, job, attempt, lease in words]

    def freeze(self) -> None:
        """Stop it as a swapped-out or suspended process is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        self.wait_frozen()

    def wait_frozen(self) -> None:
        """Wait until it is stopped."""
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), (status, self.complaints)

    def thaw(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a chance to say anything."""
        self.process.kill()
        assert ends(self.process.pid)

    def drain(self) -> None:
        """Let it finish what it has, and end."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.wait_for(lambda lines: "stopped" in lines)
        assert self.process.wait(LIMIT) == 0, self.complaints


@pytest.fixture
def start(database: str) -> Iterator[Callable[..., Worker]]:
    """Start worker processes; those that are left after the test are killed."""
    workers: list[Worker] = []

    def start_worker(*options: str, url: str = database) -> Worker:
        command: list[str | Path] = [sys.executable, APP, url, *options]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        worker = Worker(process, queue.Queue(), [])
        workers.append(worker)
        worker.listen()
        worker.wait_for(lambda lines: "ready" in lines)
        return worker

    yield start_worker
    for worker in workers:
        worker.process.kill()
        worker.process.wait()
        worker.close()


@pytest.fixture
def plane(database: str) -> Iterator[Plane]:
    plane = open_plane(database)
    yield plane
    plane.close()


def insert(plane: Plane, count: int, args: str = "{}") -> list[int]:
    ids: list[int] = plane.value(
        "SELECT ids FROM awa.insert_jobs(array_fill(%s::text, ARRAY[%s]), ARRAY['errand'], ARRAY['default'],"
        " ARRAY[2]::smallint[], ARRAY[25]::smallint[])",
        args,
        count,
    )
    return ids


def wait_completed(plane: Plane, ids: list[int]) -> None:
    """Wait until every one of these jobs is completed; the server does the waiting."""
    count = "SELECT count(*) FROM awa_queue.done WHERE job_id = ANY (%s)"
    for _ in range(int(LIMIT / 0.05)):
        if plane.value(count, ids) >= len(ids):
            return
        plane.rows("SELECT pg_sleep(0.05)")
    pytest.fail(f"not completed: {plane.rows('SELECT state, count(*) FROM awa.jobs GROUP BY state')}")


def assert_each_done_once(plane: Plane, ids: list[int]) -> None:
    done = plane.rows("SELECT job_id, count(*) AS times FROM awa_queue.done GROUP BY job_id")
    assert {row["job_id"]: row["times"] for row in done if row["job_id"] in set(ids)} == dict.fromkeys(ids, 1)
    shown = plane.rows("SELECT id, state FROM awa.jobs WHERE id = ANY (%s)", ids)
    assert sorted((row["id"], row["state"]) for row in shown) == [(job_id, "completed") for job_id in sorted(ids)]


def test_a_hundred_attempts_of_a_killed_worker_are_run_by_another(plane: Plane, start: Callable[..., Worker]) -> None:
    victim = start("--hold", "3600")
    ids = insert(plane, 100)
    victim.wait_started(100)
    victim.kill()
    start()
    wait_completed(plane, ids)
    assert_each_done_once(plane, ids)
    rows = plane.rows("SELECT attempt, run_lease, rescues, jsonb_array_length(errors) AS errors FROM awa.jobs")
    assert Counter(tuple(row.values()) for row in rows) == {(1, 2, 1, 1): 100}


def test_a_thawed_worker_comes_too_late_with_everything(plane: Plane, start: Callable[..., Worker]) -> None:
    sleeper = start("--hold", "1")
    ids = insert(plane, 50)
    sleeper.wait_started(50)
    sleeper.freeze()
    other = start()
    wait_completed(plane, ids)
    assert sorted(other.wait_started(50)) == [(job_id, 1, 2) for job_id in ids]
    sleeper.thaw()
    # It may find out that its attempts were taken before the last of its handlers is through: those are cancelled.
    sleeper.wait_for(lambda lines: sum(line.startswith("ended") for line in lines) == 50)
    late = {int(line.split()[1]) for line in sleeper.heard if line.startswith("finished")}
    assert late
    (again,) = insert(plane, 1)
    wait_completed(plane, [again])
    other.drain()
    (last,) = insert(plane, 1)
    wait_completed(plane, [last])
    assert (last, 1, 1) in sleeper.wait_started(51)
    assert {int(job) for line in sleeper.complaints for job in REFUSED.findall(line)} >= late
    assert_each_done_once(plane, ids)


@pytest.mark.parametrize("statement", ["awa_queue.claim(", "awa_queue.complete(", "awa_queue.settle(", "awa.sleepers"])
def test_a_worker_frozen_at_any_statement_blocks_nobody(
    plane: Plane, start: Callable[..., Worker], statement: str
) -> None:
    frozen = start("--freeze-at", statement, "--workers", "10")
    ids = insert(plane, 40, '{"fails": 1}')
    frozen.wait_frozen()
    started = {job_id for job_id, _, _ in frozen.started()}
    other = start()
    more = insert(plane, 200)
    wait_completed(plane, more)
    emptied = [plane.current("ready"), plane.current("leases")]
    plane.turn("ready")
    plane.turn("leases")
    outcomes = [
        plane.value("SELECT outcome FROM awa_queue.truncate_slot(%s, %s, '0', '0')", ring, slot)
        for ring, slot in zip(("ready", "leases"), emptied, strict=True)
    ]
    assert "busy" not in outcomes
    wait_completed(plane, ids)
    assert_each_done_once(plane, [*ids, *more])
    attempts = [(job_id, lease) for job_id, _, lease in other.started()]
    assert len(attempts) == len(set(attempts))
    assert started <= set(ids)


def test_losing_every_connection_changes_nothing_for_a_long_job(plane: Plane, start: Callable[..., Worker]) -> None:
    """Ownership is a row with a lease, not a session: field report 061."""
    worker = start("--hold", "3", "--stale", "20")
    (job_id,) = insert(plane, 1)
    worker.wait_started(1)
    cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'awa_actors%%'"
    assert plane.value(cut + " AND %s", True) > 3
    for _ in range(5):
        plane.rows("SELECT pg_sleep(0.3)")
        plane.value(cut + " AND %s", True)
    wait_completed(plane, [job_id])
    assert worker.started() == [(job_id, 1, 1)]
    stored = plane.stored(job_id)
    assert (stored["attempt"], stored["run_lease"], stored["rescues"]) == (1, 1, 0)
    (after,) = insert(plane, 1)
    wait_completed(plane, [after])


@attrs.define(eq=False)
class Producer:
    """Inserts jobs in a thread until told to stop, through whatever happens to the server.

    Args:
        committed: jobs whose commit was answered.
    """

    url: str
    committed: list[int] = attrs.field(factory=list)
    enough: threading.Event = attrs.field(factory=threading.Event)

    def run(self) -> None:
        """Insert a few at a time; an insert without an answer may or may not have happened."""
        while not self.enough.wait(0.01):
            with contextlib.suppress(psycopg.OperationalError):
                plane = Plane(psycopg.connect(self.url, autocommit=True, row_factory=dict_row))
                try:
                    while not self.enough.wait(0.01):
                        self.committed += insert(plane, 5)
                finally:
                    plane.close()


@pytest.fixture
def producer(database: str) -> Iterator[Producer]:
    """A producer at work."""
    producer = Producer(database)
    thread = threading.Thread(target=producer.run)
    thread.start()
    yield producer
    producer.enough.set()
    thread.join()


def wait_produced(producer: Producer, more: int) -> None:
    goal = len(producer.committed) + more
    for _ in range(int(LIMIT / 0.05)):
        if len(producer.committed) >= goal:
            return
        threading.Event().wait(0.05)
    pytest.fail("the producer does not get on")


def test_a_crash_of_the_server_loses_nothing(
    server: Server, database: str, start: Callable[..., Worker], producer: Producer
) -> None:
    worker = start("--stale", "10")
    wait_produced(producer, 300)
    os.kill(server.pid, signal.SIGQUIT)
    assert ends(server.pid)
    server.start()
    wait_produced(producer, 300)
    producer.enough.set()
    plane = open_plane(database)
    try:
        wait_completed(plane, producer.committed)
        worker.drain()
        assert_each_done_once(plane, producer.committed)
        assert plane.value("SELECT count(*) FROM awa.jobs WHERE state <> 'completed'") == 0
    finally:
        plane.close()


@pytest.mark.partial_log  # what is restored has a life that the log of its new database does not know
def test_a_dump_under_load_is_a_queue_of_its_own(
    session_server: Server, database: str, tmp_path: Path, start: Callable[..., Worker], producer: Producer
) -> None:
    """P8: what was there when the dump began is in it, each job once, and runs elsewhere without a special step."""
    # What it runs when the dump is taken is rescued in the copy, so long after its last sign of life.
    loaded = start("--hold", "0.05", "--workers", "20", "--stale", "5")
    wait_produced(producer, 300)
    before = list(producer.committed)
    dump = tmp_path / "dump"
    subprocess.run([session_server.bin_dir / "pg_dump", "-Fc", "-f", dump, database], check=True)
    wait_produced(producer, 50)
    producer.enough.set()
    loaded.kill()
    with session_server.fresh_database() as copy:
        subprocess.run([session_server.bin_dir / "pg_restore", "-d", copy, dump], check=True)
        plane = open_plane(copy)
        try:
            ids = [row["id"] for row in plane.rows("SELECT id FROM awa.jobs")]
            assert len(ids) == len(set(ids))
            assert set(before) <= set(ids)
            worker = start(url=copy)
            wait_completed(plane, ids)
            worker.drain()
            assert_each_done_once(plane, ids)
            assert insert(plane, 1)[0] > max(ids)
        finally:
            plane.close()
