"""End-to-end figures, printed as a Markdown table beside the prototype's: to be read, not to pass."""

import statistics
import time
from typing import ClassVar

import attrs
import pytest
import trio
from bench_meters import Meters, Reading, Table

import awa_actors as awa

PROTOTYPE = {"server_us": 29.0, "wal_bytes": 966.0}
"""Insert, claim and complete in batches of 128, from the prototype that the queue plane was designed with."""

ARGS_PADDING = "x" * 150  # makes about 200 bytes of args


@attrs.frozen
class Noop:
    queue: ClassVar[str] = "bench"
    i: int
    t: float
    padding: str = ARGS_PADDING


def _median(readings: list[Reading], jobs: int) -> dict[str, float]:
    per_job = [reading.per_job(jobs) for reading in readings]
    return {name: statistics.median(one[name] for one in per_job) for name in per_job[0]}


def _print(title: str, rows: dict[str, dict[str, float]]) -> None:
    print(f"\n\n### {title}\n\n| | jobs/s | client µs/job | server µs/job | WAL bytes/job |\n|---|--:|--:|--:|--:|")
    for name, row in rows.items():
        columns = ("jobs_per_second", "client_us", "server_us", "wal_bytes")
        cells = [f"{row[key]:,.0f}" if key in row else "" for key in columns]
        print(f"| {name} | {' | '.join(cells)} |")


async def _insert(url: str, meters: Meters, jobs: int) -> Reading:
    async with awa.open_client(url) as client:
        await client.insert(Noop(0, 0.0), awa.InsertOpts(queue="warm"))
        with meters.measured(time.perf_counter) as reading:
            await client.insert_many([Noop(i, 0.0) for i in range(jobs)])
    return reading


async def _insert_one_by_one(url: str, meters: Meters, jobs: int) -> Reading:
    async with awa.open_client(url) as client:
        await client.insert(Noop(0, 0.0), awa.InsertOpts(queue="warm"))
        with meters.measured(time.perf_counter) as reading:
            for i in range(jobs):
                await client.insert(Noop(i, 0.0), awa.InsertOpts(queue="single"))
    return reading


async def _drain(url: str, meters: Meters, jobs: int) -> Reading:
    registry, ended, count = awa.Registry(), trio.Event(), 0

    @registry.worker(Noop)
    async def noop(job: awa.Job[Noop]) -> None:
        nonlocal count
        count += 1
        if count == jobs:
            ended.set()

    async with awa.open_client(url, registry=registry) as client, trio.open_nursery() as nursery:
        worker = await nursery.start(client.run_worker, awa.QueueConfig("idle", 1))
        await worker.drain()
        with meters.measured(time.perf_counter) as reading:
            worker = await nursery.start(client.run_worker, awa.QueueConfig("bench", 512))
            await ended.wait()
            while meters.value("SELECT count(*) FROM awa_queue.done") < jobs:  # noqa: ASYNC110 - the database says so
                await trio.sleep(0.005)
        await worker.drain()
    return reading


def test_drain_beside_the_prototype(
    meters: Meters, durable_server: tuple[str, int], request: pytest.FixtureRequest, table: Table
) -> None:
    url, jobs = durable_server[0], request.config.getoption("--jobs")
    inserts, drains = [], []
    for _ in range(request.config.getoption("--repeats")):
        meters._connection.execute("TRUNCATE awa_queue.bodies, awa_queue.ready, awa_queue.leases, awa_queue.done")
        inserts.append(trio.run(_insert, url, meters, jobs))
        drains.append(trio.run(_drain, url, meters, jobs))
    insert, drain = _median(inserts, jobs), _median(drains, jobs)
    whole = {name: insert[name] + drain[name] for name in ("client_us", "server_us", "wal_bytes")}
    singles = 1_000
    single = _median([trio.run(_insert_one_by_one, url, meters, singles)], singles)
    _print(
        f"{jobs:,} no-op jobs, one worker process with maintenance, 200 bytes of args",
        {
            "bulk enqueue": insert,
            "single enqueue": single,
            "drain (start of the worker to the last row)": drain,
            "enqueue + drain": whole,
            "prototype, enqueue + drain": PROTOTYPE,
        },
    )
    for name, row, target in (
        ("bulk enqueue", insert, "≥ 2 × the fastest peer's COPY"),
        ("single enqueue", single, "≥ the fastest peer"),
        ("drain", drain, "≥ 2 × the fastest peer; ≤ 25 / ≤ 25 µs"),
    ):
        figures = "{jobs_per_second:,.0f} jobs/s; client {client_us:.0f} µs, server {server_us:.0f} µs of CPU per job"
        table.row(name, figures.format(**row), target)
    table.row("WAL per job, insert to completion", f"{whole['wal_bytes']:,.0f} bytes", "≤ 1,000")
    assert drain["jobs_per_second"] > 0
