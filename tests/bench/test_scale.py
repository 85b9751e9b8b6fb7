"""How the drain grows: a deep backlog beside it, more processes, large args; and what a long run does to memory."""

import datetime as dt
import statistics
import time
from typing import Any

import psycopg
import pytest
import trio
from bench_meters import Meters, Table
from bench_worker import Large, Noop, worker_process, worker_processes

import awa_actors as awa

STORED = {
    "ready": """SELECT count(*) FROM generate_series(1, {jobs} / 5000) n CROSS JOIN LATERAL awa.insert_jobs(
        ARRAY(SELECT '{{"i": 1, "t": 0}}' FROM generate_series(1, 5000)), ARRAY['stored'], ARRAY['elsewhere'],
        ARRAY[2]::smallint[], ARRAY[25]::smallint[])""",
    "future": """INSERT INTO awa_queue.deferred_jobs
        (job_id, kind, queue, state, args, priority, max_attempts, run_at, created_at)
        SELECT nextval('awa.job_id_seq'), 'stored', 'elsewhere', 'scheduled', '{{"i": 1}}', 2, 25,
               clock_timestamp() + interval '1 year', clock_timestamp() FROM generate_series(1, {jobs})""",
}

LEFT = """
SELECT EXISTS (SELECT FROM (SELECT r.pos FROM awa_queue.ready r WHERE r.queue = 'bench'
                            ORDER BY r.queue, r.priority, r.shard, r.pos LIMIT 1) r)
    OR EXISTS (SELECT FROM awa_queue.parked_ready p WHERE p.queue = 'bench') OR EXISTS (SELECT FROM awa_queue.leases)
"""
"""To count what is done, many times a second, would be more work than to do it."""


async def _insert(url: str, jobs: list[Any]) -> None:
    async with awa.open_client(url) as client:
        await client.insert_many(jobs)
        await client.admin.pause_queue("bench")


async def _resume(url: str) -> None:
    async with awa.open_client(url) as client:
        await client.admin.resume_queue("bench")


def drained(url: str, meters: Meters, jobs: list[Any], processes: int = 1) -> tuple[float, list[int]]:
    """Seconds from the resumption of a full queue until all is recorded, and how many jobs each process handled."""
    with psycopg.connect(url, autocommit=True) as connection:
        before = meters.value("SELECT count(*) FROM awa_queue.done")
        trio.run(_insert, url, jobs)
        connection.execute("ANALYZE")
        with worker_processes(url, processes) as workers:
            began = time.perf_counter()
            trio.run(_resume, url)
            while meters.value(LEFT):
                time.sleep(0.01)
            seconds = time.perf_counter() - began
        assert meters.value("SELECT count(*) FROM awa_queue.done") == before + len(jobs)
    return seconds, [worker.seen["handled"] for worker in workers]


def promoted(url: str, meters: Meters, jobs: int = 400) -> tuple[float, float]:
    """How late scheduled jobs reach their handlers, a hundred of them in a second: p50 and p99 in ms."""
    done = "SELECT count(*) FROM awa_queue.done"
    before = meters.value(done)
    with worker_process(url) as worker:
        trio.run(_defer, url, jobs)
        while meters.value(done) < before + jobs:
            time.sleep(0.2)
    late = sorted(worker.seen["late"])
    return statistics.median(late) * 1e3, late[int(len(late) * 0.99)] * 1e3


async def _defer(url: str, jobs: int) -> None:
    async with awa.open_client(url) as client:
        first = time.time() + 2.0
        for n in range(jobs):
            due = first + n * 0.01
            at = dt.datetime.fromtimestamp(due, dt.UTC)
            await client.insert(Noop(n, due), awa.InsertOpts(run_at=at))
        await trio.sleep_until(trio.current_time() + due - time.time())


@pytest.mark.parametrize("what", sorted(STORED))
def test_a_drain_beside_many_stored_jobs(
    meters: Meters, durable_server: tuple[str, int], pytestconfig: pytest.Config, table: Table, what: str
) -> None:
    jobs, stored = [Noop(i) for i in range(pytestconfig.getoption("--jobs"))], pytestconfig.getoption("--stored")
    empty = min(drained(durable_server[0], meters, jobs)[0] for _ in range(2))
    soon = promoted(durable_server[0], meters)
    with psycopg.connect(durable_server[0], autocommit=True) as connection:
        connection.execute(STORED[what].format(jobs=stored).encode())
    beside = min(drained(durable_server[0], meters, jobs)[0] for _ in range(2))
    late = promoted(durable_server[0], meters)
    table.row(f"drain beside {stored:,} {what} jobs", f"{empty / beside:.0%} of an empty store's rate", "≥ 90%")
    table.row(
        f"promotion beside {stored:,} {what} jobs",
        f"p50 {soon[0]:.1f} to {late[0]:.1f} ms, p99 {soon[1]:.1f} to {late[1]:.1f} ms",
        "within 10%",
    )


def test_more_processes_on_one_queue(
    meters: Meters, durable_server: tuple[str, int], pytestconfig: pytest.Config, table: Table
) -> None:
    jobs = [Noop(i) for i in range(pytestconfig.getoption("--jobs"))]
    alone, _ = drained(durable_server[0], meters, jobs)
    for processes, target in ((4, "≥ one process, no lane starves"), (16, "no collapse")):
        seconds, shares = drained(durable_server[0], meters, jobs, processes)
        table.row(
            f"{processes} worker processes on one queue",
            f"{len(jobs) / seconds:,.0f} jobs/s, {alone / seconds:.2f} × one process; "
            f"least share {min(shares) / len(jobs):.1%}",
            target,
        )


def test_large_args(meters: Meters, durable_server: tuple[str, int], table: Table) -> None:
    jobs = [Large("x" * 102_400) for _ in range(1_000)]
    began = time.perf_counter()
    trio.run(_insert, durable_server[0], jobs)
    inserted = time.perf_counter() - began
    trio.run(_resume, durable_server[0])
    with worker_process(durable_server[0]):
        while meters.value("SELECT count(*) FROM awa_queue.done") < len(jobs):
            time.sleep(0.005)
    seconds, _ = drained(durable_server[0], meters, jobs)
    rate = len(jobs) * 0.1024
    table.row("100 KiB args", f"in {rate / inserted:,.0f} MB/s, out {rate / seconds:,.0f} MB/s", "≥ the fastest peer")


def test_memory_of_a_long_run(
    meters: Meters, durable_server: tuple[str, int], pytestconfig: pytest.Config, table: Table
) -> None:
    few = pytestconfig.getoption("--memory")
    seen: list[int] = []
    with worker_process(durable_server[0]) as worker:
        for total in (few, 10 * few):
            while (done := meters.value("SELECT count(*) FROM awa_queue.done")) < total:
                trio.run(_more, durable_server[0], min(5_000, total - done))
                meters.wait_done()
            seen.append(worker.memory)
    table.row(
        f"memory after {10 * few:,} jobs",
        f"{seen[1] / 1e6:.0f} MB, {seen[1] / seen[0] - 1:+.0%} since {few:,}",
        "within 10% (1,000,000 since 100,000)",
    )


async def _more(url: str, jobs: int) -> None:
    async with awa.open_client(url) as client:
        await client.insert_many([Noop(i) for i in range(jobs)])
