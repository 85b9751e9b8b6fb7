"""What one follow-up per job costs: the same drain without and with one, in one run, printed with their ratio."""

import statistics
import time
from typing import ClassVar

import attrs
import pytest
import trio
from bench_meters import Meters, Reading, Table

import awa_actors as awa

LEAST = 0.6
"""Throughput with a follow-up per job, of that without."""


@attrs.frozen
class Trigger:
    queue: ClassVar[str] = "bench"
    i: int
    padding: str = "x" * 150


@attrs.frozen
class Follow:
    queue: ClassVar[str] = "after"
    i: int


async def _drain(url: str, meters: Meters, jobs: int, registry: awa.Registry) -> Reading:
    ended, count = trio.Event(), 0

    @registry.worker(Trigger)
    async def trigger(job: awa.Job[Trigger]) -> None:
        nonlocal count
        count += 1
        if count == jobs:
            ended.set()

    done = meters.value("SELECT count(*) FROM awa_queue.done")
    async with awa.open_client(url, registry=registry) as client, trio.open_nursery() as nursery:
        await client.insert_many([Trigger(i) for i in range(jobs)])
        # Paused while the worker starts: what is measured is the drain alone.
        await client.admin.pause_queue("bench")
        worker = await nursery.start(client.run_worker, awa.QueueConfig("bench", 512, poll_interval=0.01))
        with meters.measured(time.perf_counter) as reading:
            await client.admin.resume_queue("bench")
            await ended.wait()
            while meters.value("SELECT count(*) FROM awa_queue.done") < done + jobs:  # noqa: ASYNC110 - it says so
                await trio.sleep(0.005)
        await worker.drain()
    return reading


def test_one_follow_up_per_job_keeps_most_of_the_throughput(
    durable_server: tuple[str, int], meters: Meters, pytestconfig: pytest.Config, table: Table
) -> None:
    jobs, repeats = pytestconfig.getoption("--jobs"), pytestconfig.getoption("--repeats")
    without: list[Reading] = []
    following: list[Reading] = []
    for turn in range(repeats):
        plain, followed = awa.Registry(), awa.Registry()
        followed.on_completed_enqueue(Trigger)(lambda event: Follow(event.args.i))
        without.append(trio.run(_drain, durable_server[0], meters, jobs, plain))
        following.append(trio.run(_drain, durable_server[0], meters, jobs, followed))
        assert meters.value("SELECT count(*) FROM awa.jobs WHERE kind = 'follow'") == jobs * (turn + 1)
    print("\n\n| | jobs/s, best | median | client µs/job | server µs/job |\n|---|--:|--:|--:|--:|")
    speeds = []
    for name, readings in (("without", without), ("with one follow-up each", following)):
        row = [reading.per_job(jobs) for reading in readings]
        all_speeds = [one["jobs_per_second"] for one in row]
        # The best of each: what a busy machine takes away from some of them says nothing.
        speeds.append(max(all_speeds))
        client, server = (min(one[key] for one in row) for key in ("client_us", "server_us"))
        print(f"| {name} | {speeds[-1]:,.0f} | {statistics.median(all_speeds):,.0f} | {client:.1f} | {server:.1f} |")
    ratio = speeds[1] / speeds[0]
    table.row("drain with one follow-up per job", f"{ratio:.0%} of the drain without", f"≥ {LEAST:.0%}")
    assert ratio >= LEAST
