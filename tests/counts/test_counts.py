"""What jobs cost, in counts that no machine changes: the guard against growing slower unnoticed.

Each bound is a tenth to a third above what was counted when it was set. One that is passed asks for a reason, not for a
larger bound: `pytest -s tests/counts` prints what is counted.
"""

from collections.abc import Iterator
from typing import ClassVar

import attrs
import pytest
import trio
from at_work import LIMIT, becomes
from bench_worker import Noop
from counting import ServerCounts, Steps, python_calls, statements

import awa_actors as awa
from awa_actors.config import Budget, MaintenanceSettings
from awa_actors.jobs import JobState

INSERT, CLAIM, COMPLETE = "awa.insert_one", "awa_queue.claim", "awa_queue.complete"
CALLS_PER_DRAINED_JOB = 75
"""From the claim to the record, with a handler that does nothing."""
CALLS_PER_FOLLOWED_JOB = 120
"""The same with one follow-up, planned and inserted in the transaction of the record."""
CALLS_PER_ENQUEUED_JOB = 25
"""In bulk."""
CALLS_PER_LONE_INSERT = 300
STEPS_PER_STATEMENT = 2
"""One of the task that turns the driver's loop, one of the task that waits for the answer."""
WAL_PER_JOB = 1_250
"""Bytes from the insert to the completion, with 200 bytes of args."""
DEAD_TUPLES_PER_JOB = 0.1


@attrs.frozen
class Follow:
    queue: ClassVar[str] = "after"
    i: int


@pytest.fixture
def counts(database: str) -> Iterator[ServerCounts]:
    counts = ServerCounts(database)
    yield counts
    counts.close()


async def drain(url: str, jobs: int, *, follow_ups: bool = False, settings: MaintenanceSettings | None = None) -> int:
    """Insert jobs, then run a worker until all are recorded; returns how many Python calls the worker's part took."""
    registry, ended, count = awa.Registry(), trio.Event(), 0

    @registry.worker(Noop)
    async def noop(job: awa.Job[Noop]) -> None:
        nonlocal count
        count += 1
        if count == jobs:
            ended.set()

    if follow_ups:
        registry.on_completed_enqueue(Noop)(lambda event: Follow(event.args.i))
    async with awa.open_client(url, registry=registry) as client, trio.open_nursery() as nursery:
        await client.insert_many([Noop(i) for i in range(jobs)])
        with python_calls() as calls, trio.fail_after(6 * LIMIT):
            worker = await nursery.start(
                lambda task_status: client.run_worker(
                    awa.QueueConfig("bench", 512), maintenance=False, task_status=task_status
                )
            )
            await ended.wait()
            await worker.drain()
    return calls.total


def per_job(name: str, small: int, large: int, jobs: int) -> float:
    """What one more job costs: what does not grow with the jobs is left out."""
    cost = (large - small) / jobs
    print(f"{name}: {cost:.1f} per job")
    return cost


async def test_calls_per_job_of_a_drain(database: str) -> None:
    small, large = await drain(database, 200), await drain(database, 1_200)
    assert per_job("calls of a drain", small, large, 1_000) <= CALLS_PER_DRAINED_JOB


async def test_calls_per_job_with_a_follow_up(database: str) -> None:
    small, large = await drain(database, 200, follow_ups=True), await drain(database, 800, follow_ups=True)
    assert per_job("calls with a follow-up", small, large, 600) <= CALLS_PER_FOLLOWED_JOB


async def test_calls_per_job_of_an_enqueue(database: str) -> None:
    async with awa.open_client(database) as client:
        totals = []
        for jobs in (200, 1_200):
            made = [Noop(i) for i in range(jobs)]
            with python_calls() as calls:
                await client.insert_many(made)
            totals.append(calls.total)
        assert per_job("calls of a bulk enqueue", totals[0], totals[1], 1_000) <= CALLS_PER_ENQUEUED_JOB
        totals = []
        for jobs in (1, 51):
            with python_calls() as calls:
                for i in range(jobs):
                    await client.insert(Noop(i))
            totals.append(calls.total)
        assert per_job("calls of a lone insert", totals[0], totals[1], 50) <= CALLS_PER_LONE_INSERT


async def test_a_lone_statement_wakes_two_tasks(database: str) -> None:
    steps = Steps()
    async with awa.open_client(database) as client, client.pool.acquire() as session:
        await session.fetchval("SELECT 1")
        trio.lowlevel.add_instrument(steps)
        for _ in range(50):
            await session.fetchval("SELECT 1")
        trio.lowlevel.remove_instrument(steps)
    assert steps.total <= 50 * STEPS_PER_STATEMENT + 2


async def test_a_lone_job_takes_three_statements(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = awa.Registry()

    @registry.worker(Noop)
    async def noop(job: awa.Job[Noop]) -> None: ...

    async with awa.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
        worker = await nursery.start(
            lambda task_status: client.run_worker(
                awa.QueueConfig("bench", 8, poll_interval=60.0), maintenance=False, task_status=task_status
            )
        )
        # The first one leaves everything as it is found by all that follow: prepared, asleep and marked so.
        await becomes(client, (await client.insert(Noop(0))).id, JobState.COMPLETED)
        with statements(monkeypatch) as counted:
            for i in range(5):
                await becomes(client, (await client.insert(Noop(i))).id, JobState.COMPLETED)
        await worker.drain()
    assert {sql: counted[sql] for sql in (INSERT, CLAIM, COMPLETE)} == {INSERT: 5, CLAIM: 5, COMPLETE: 5}


@pytest.mark.parametrize("follow_ups", [False, True], ids=["alone", "each with a follow-up"])
async def test_statements_are_per_batch(database: str, monkeypatch: pytest.MonkeyPatch, follow_ups: bool) -> None:
    with statements(monkeypatch) as counted:
        await drain(database, 2_048, follow_ups=follow_ups)
    batches = 2_048 // 512
    print(dict(counted))
    # The first ones are small: handlers begin before all permits are taken.
    assert batches <= counted[CLAIM] <= 5 * batches
    assert batches <= counted[COMPLETE] <= 5 * batches
    # The jobs themselves are inserted in two pieces of one transaction.
    assert counted["BEGIN ISOLATION LEVEL"] <= 1 + counted[COMPLETE] * follow_ups
    assert counted["awa.insert_jobs"] <= 2 + counted[COMPLETE] * follow_ups


async def test_wal_per_job(database: str, counts: ServerCounts) -> None:
    await drain(database, 100)
    counts.checkpoint()
    before = counts.wal()
    await drain(database, 2_000)
    each = (counts.wal() - before) / 2_000
    print(f"WAL: {each:.0f} bytes per job")
    assert each <= WAL_PER_JOB


@pytest.mark.slow
async def test_dead_tuples_per_job_once_hygiene_has_looked(database: str, counts: ServerCounts) -> None:
    jobs = 2_000
    await drain(database, jobs)
    settings = MaintenanceSettings(hygiene_interval=0.01, ring_turn=0.01)
    async with awa.open_client(database) as client:
        with trio.move_on_after(LIMIT):
            while (dead := counts.dead_tuples()) > DEAD_TUPLES_PER_JOB * jobs:
                await client.tick(Budget(seconds=5.0), settings)
    print(f"dead tuples: {dead / jobs:.3f} per job")
    assert dead <= DEAD_TUPLES_PER_JOB * jobs
