"""Memory does not grow with the number of jobs that were ever run."""

import gc
import time
from pathlib import Path

import pytest
import trio
from at_work import Work, working

import awa_actors as awa
from awa_actors.config import QueueConfig

BUDGET = 20.0
"""Seconds: on a slow machine fewer jobs are run, and what they leave behind is looked for all the same."""
WARM, MORE, BATCH = 40_000, 120_000, 5_000
LEAST = 20_000


def resident() -> int:
    """Bytes of this process in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.stress
async def test_memory_after_many_more_jobs_is_what_it_was(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    registry, done, batch_ended = awa.Registry(), 0, trio.Event()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        nonlocal done
        done += 1
        if done % BATCH == 0:
            batch_ended.set()

    began = time.monotonic()

    async def run(client: awa.Client, jobs: int, until: float) -> int:
        nonlocal batch_ended
        ran = 0
        while ran < jobs and time.monotonic() < until:
            batch_ended = trio.Event()
            await client.insert_many([Work(n) for n in range(BATCH)])
            await batch_ended.wait()
            ran += BATCH
        return ran

    async with working(database, registry, QueueConfig("default", 200)) as (client, worker):
        first = await run(client, WARM, began + BUDGET / 4)
        before, tasks = resident(), trio.lowlevel.current_statistics().tasks_living
        more = await run(client, MORE, began + BUDGET)
        after = resident()
        assert worker._crew is not None
        held = worker._crew.running, worker._crew._told, worker._crew.late
        assert abs(trio.lowlevel.current_statistics().tasks_living - tasks) < 20
    with capsys.disabled():
        took = time.monotonic() - began
        print(f"\n{first:,} and then {more:,} jobs in {took:.0f} s: {before / 1e6:.1f} MB, then {after / 1e6:.1f} MB")
    assert more >= LEAST, "too slow to say anything"
    assert after < before * 1.1
    assert sum(len(one) for one in held) < 2 * BATCH
