"""How long the canonical plane takes to empty after the flip, and what that costs the fleet. To be read."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import attrs
import trio
from bench_meters import Meters

import awa_actors as awa

DEFERRED = 100_000
"""Half of them due in a year, half tomorrow: none by itself before the drain is over."""
ROOM = 4_000
"""Jobs that producers keep waiting, so that workers never lack any."""
BATCH = 1_000
STEADY = 6.0
"""Seconds of a measurement of the fleet at rest."""
SEED = """
SELECT count(*) FROM (SELECT awa.insert_jobs(array_fill('{"i": 1, "padding": "%s"}'::text, ARRAY[1000]), ARRAY['noop'],
    ARRAY['later'], ARRAY[2::smallint], ARRAY[25::smallint],
    array_fill(jsonb_build_object('delay', CASE WHEN n %% 2 = 0 THEN 86400 ELSE 31536000 END)::text, ARRAY[1000]))
    FROM generate_series(1, %d) n) made
"""


@attrs.frozen
class Noop:
    queue: ClassVar[str] = "bench"
    i: int
    padding: str = "x" * 150


@attrs.define
class Fleet:
    """Jobs that its workers have run."""

    ran: int = 0


@asynccontextmanager
async def at_work(url: str) -> AsyncIterator[tuple[awa.Client, Fleet]]:
    """One worker process with maintenance, and a producer that always has more."""
    registry, fleet = awa.Registry(), Fleet()

    @registry.worker(Noop)
    async def noop(job: awa.Job[Noop]) -> None:
        fleet.ran += 1

    async with awa.open_client(url, registry=registry) as client, trio.open_nursery() as nursery:

        async def produce() -> None:
            made = 0
            while True:
                while made - fleet.ran < ROOM:
                    await client.insert_many([Noop(i) for i in range(BATCH)])
                    made += BATCH
                await trio.sleep(0.01)

        worker = await nursery.start(client.run_worker, awa.QueueConfig("bench", 512))
        nursery.start_soon(produce)
        yield client, fleet
        nursery.cancel_scope.cancel()
    assert worker is not None


async def rate(fleet: Fleet, seconds: float) -> float:
    """Jobs per second over some seconds."""
    began, ran = time.perf_counter(), fleet.ran
    await trio.sleep(seconds)
    return (fleet.ran - ran) / (time.perf_counter() - began)


async def move(url: str) -> dict[str, float]:
    """Flip with 100,000 deferred jobs; returns the figures."""
    async with at_work(url) as (client, fleet):
        storage = client.admin.storage
        await storage.prepare()
        before = await rate(fleet, STEADY / 2)
        await storage.enter_mixed_transition()
        began, ran = time.perf_counter(), fleet.ran
        while (await storage.status()).canonical_live_backlog:  # noqa: ASYNC110 - the database says so
            await trio.sleep(0.05)
        seconds = time.perf_counter() - began
        during = (fleet.ran - ran) / seconds
        await storage.finalize_when_ready(look_every=0.1)
        steady = await rate(fleet, STEADY)
    return {"seconds": seconds, "before": before, "during": during, "steady": steady}


def test_time_to_an_empty_canonical_plane(meters: Meters, durable_server: tuple[str, int]) -> None:
    url = durable_server[0]
    assert meters.value("SELECT awa.start_canonical()")
    meters.value(SEED % ("x" * 150, DEFERRED // 1000))
    assert meters.value("SELECT awa.canonical_live_backlog()") == DEFERRED
    found = trio.run(move, url)
    assert meters.value("SELECT count(*) FROM awa_queue.deferred_jobs") == DEFERRED
    print(
        f"\n\n### {DEFERRED:,} deferred jobs\n\n"
        f"| | |\n|---|--:|\n"
        f"| from the flip to an empty canonical plane | {found['seconds']:.1f} s |\n"
        f"| fleet before the flip, canonical | {found['before']:,.0f} jobs/s |\n"
        f"| fleet during the drain | {found['during']:,.0f} jobs/s |\n"
        f"| fleet afterwards, steady state | {found['steady']:,.0f} jobs/s |\n"
        f"| during / steady | {found['during'] / found['steady']:.0%} |\n"
    )
