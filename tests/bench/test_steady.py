"""At a steady rate: how soon a job is picked up, what that costs, and what a pinned horizon does to it."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, LiteralString

import attrs
import psycopg
import pytest
import trio
from bench_meters import Meters, Table, server_cpu
from bench_worker import Noop, worker_process

import awa_actors as awa

RATE, BATCH = 2_000, 40
"""Jobs a second while the horizon is pinned, and jobs in one insert."""
FREE = 60.0
"""Seconds at most of the run without a pin that one with it is held against."""


@attrs.define
class Steady:
    """What a steady load met; latencies in ms, CPU in ms per job."""

    p50: float
    p99: float
    rate: float
    worker: float
    server: float


async def _produce(url: str, rate: float, batch: int, seconds: float) -> int:
    """Insert at a steady rate, whatever the answers take."""
    sent = 0

    async def insert(client: awa.Client) -> None:
        now = time.time()
        await client.insert_many([Noop(i, now) for i in range(batch)])

    async with awa.open_client(url) as client, trio.open_nursery() as nursery:
        began = trio.current_time()
        while (ahead := sent / rate) < seconds:
            await trio.sleep_until(began + ahead)
            nursery.start_soon(insert, client)
            sent += batch
    return sent


def steady(
    url: str, pid: int, meters: Meters, *, rate: float, batch: int, seconds: float, wakes: str = "notify"
) -> Steady:
    with worker_process(url, 50 if batch == 1 else 512, wakes) as worker:
        trio.run(_produce, url, rate, batch, 1.0)  # warm
        meters.wait_done()
        before = meters.value("SELECT count(*) FROM awa_queue.done")
        cpu, server, began = worker.cpu, server_cpu(pid), time.perf_counter()
        sent = trio.run(_produce, url, rate, batch, seconds)
        meters.wait_done()
        took = time.perf_counter() - began
        cpu, server = worker.cpu - cpu, server_cpu(pid) - server
        assert meters.value("SELECT count(*) FROM awa_queue.done") - before == sent
    late = sorted(worker.seen["late"][-sent:])
    each = 1e3 / sent
    return Steady(
        statistics.median(late) * 1e3, late[int(len(late) * 0.99)] * 1e3, sent / took, cpu * each, server * each
    )


@pytest.mark.parametrize("wakes", ["notify", "poll"])
def test_pickup_latency(
    meters: Meters, durable_server: tuple[str, int], pytestconfig: pytest.Config, table: Table, wakes: str
) -> None:
    runs = [
        steady(*durable_server, meters, rate=200, batch=1, seconds=pytestconfig.getoption("--seconds"), wakes=wakes)
        for _ in range(pytestconfig.getoption("--repeats"))
    ]
    values = {
        name: statistics.median(getattr(run, name) for run in runs) for name in ("p50", "p99", "worker", "server")
    }
    table.row(
        f"pickup at 200 jobs/s, {wakes}",
        "p50 {p50:.1f} ms, p99 {p99:.1f} ms; worker {worker:.2f} ms, server {server:.2f} ms of CPU per job".format(
            **values
        ),
        "≤ best peer (2.5 and 6.2 ms; 1.1 and 1.2 ms)" if wakes == "notify" else "stated",
    )


HOLDS: dict[str, tuple[LiteralString, ...]] = {
    "idle writer": (
        "CREATE TABLE IF NOT EXISTS pinned (n bigint)",
        "BEGIN",
        "INSERT INTO pinned VALUES (txid_current())",
    ),
    "long reader": ("BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT count(*) FROM awa_queue.done"),
}


@contextmanager
def pinned(url: str, by: str) -> Iterator[None]:
    """Hold the horizon for the block."""
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in HOLDS[by]:
            connection.execute(statement)
        yield


@pytest.mark.parametrize("by", sorted(HOLDS))
def test_a_pinned_horizon(
    meters: Meters, durable_server: tuple[str, int], pytestconfig: pytest.Config, table: Table, by: str
) -> None:
    seconds = pytestconfig.getoption("--pinned")
    runs: list[Steady] = []
    for hold, length in ((nullcontext(), min(seconds, FREE)), (pinned(durable_server[0], by), seconds)):
        entered: Any = hold
        with entered:
            runs.append(steady(*durable_server, meters, rate=RATE, batch=BATCH, seconds=length))
    free, held = runs
    table.row(
        f"horizon pinned {seconds:.0f} s by an {by} at {RATE:,} jobs/s".replace("an long", "a long"),
        f"throughput {held.rate / free.rate:.0%}, p99 {held.p99 / free.p99:.2f} × "
        f"({free.p99:.0f} to {held.p99:.0f} ms); server {free.server * 1e3:.0f} to {held.server * 1e3:.0f} µs per job",
        "≥ 95%, ≤ 2 ×, for 600 s",
    )
