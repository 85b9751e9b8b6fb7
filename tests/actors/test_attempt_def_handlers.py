"""Plain `def` handlers: in threads, as many as their queue allows, stopped only where they ask, and never abandoned."""

import sys
import threading

import trio
from at_work import LIMIT, Work, becomes, until, working

import awa_actors as awa
from awa_actors.config import QueueConfig
from awa_actors.jobs import JobRow, JobState

AVAILABLE, CANCELLED, COMPLETED = JobState.AVAILABLE, JobState.CANCELLED, JobState.COMPLETED
RETRYABLE, RUNNING = JobState.RETRYABLE, JobState.RUNNING


def error_of(row: JobRow) -> str:
    """The last error that a job carries."""
    return str(row.errors[-1]["error"])


async def test_a_def_handler_runs_in_a_thread_and_may_raise_anything(database: str) -> None:
    registry, threads = awa.Registry(), set[int]()

    @registry.worker(Work)
    def work(job: awa.Job[Work]) -> None:
        threads.add(threading.get_ident())
        if job.args.n == 1:
            sys.exit(1)

    async with working(database, registry) as (client, _):
        good, bad = await client.insert_many([Work(0), Work(1)])
        await becomes(client, good.id, COMPLETED)
        assert error_of(await becomes(client, bad.id, RETRYABLE)).startswith("SystemExit: 1")
    assert threading.get_ident() not in threads


async def test_as_many_def_handlers_run_at_once_as_their_queue_allows(database: str) -> None:
    registry, barrier = awa.Registry(), threading.Barrier(60)

    @registry.worker(Work)
    def work(job: awa.Job[Work]) -> None:
        barrier.wait(LIMIT)  # more than Trio's own limiter would let run at once

    async with working(database, registry, QueueConfig("default", 60)) as (client, _):
        jobs = await client.insert_many([Work(n) for n in range(60)])
        for job in jobs:
            await becomes(client, job.id, COMPLETED)


def cooperative(started: threading.Event) -> awa.Registry:
    """A def handler that runs until it is asked to stop."""
    registry = awa.Registry()

    @registry.worker(Work)
    def work(job: awa.Job[Work]) -> None:
        started.set()
        for _ in range(int(LIMIT / 0.002)):
            job.check_cancelled()
            threading.Event().wait(0.002)

    return registry


async def in_a_thread(event: threading.Event) -> None:
    assert await trio.to_thread.run_sync(event.wait, LIMIT)


async def test_a_def_handler_learns_of_a_cancel_when_it_asks(database: str) -> None:
    started = threading.Event()
    async with working(database, cooperative(started)) as (client, worker):
        job = await client.insert(Work())
        await in_a_thread(started)
        await client.admin.cancel(job.id)

        async def nothing_runs() -> bool:
            return worker.running == 0

        await until(nothing_runs, 2.0)
        assert (await client.admin.job(job.id)).state is CANCELLED


async def test_a_def_handler_learns_of_its_deadline_when_it_asks(database: str) -> None:
    async with working(database, cooperative(threading.Event())) as (client, _):
        job = await client.insert(Work(), awa.InsertOpts(deadline=0.1))
        row = await becomes(client, job.id, RETRYABLE)
    assert (row.attempt, error_of(row)) == (1, "deadline exceeded")


async def test_a_def_handler_learns_of_a_stop_when_it_asks(database: str) -> None:
    started = threading.Event()
    async with awa.open_client(database, registry=cooperative(started)) as client:
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run_worker)
            job = await client.insert(Work())
            await in_a_thread(started)
            nursery.cancel_scope.cancel()
            nursery.cancel_scope.deadline = trio.current_time() + 2.0
        row = await client.admin.job(job.id)
        assert (row.state, row.attempt, row.interrupted, row.errors) == (AVAILABLE, 0, 1, ())


async def test_a_def_handler_is_never_abandoned_and_what_it_did_counts(database: str) -> None:
    registry, started, may_end = awa.Registry(), threading.Event(), threading.Event()

    @registry.worker(Work)
    def work(job: awa.Job[Work]) -> None:
        started.set()
        assert may_end.wait(LIMIT)

    async with awa.open_client(database, registry=registry) as client:
        job = await client.insert(Work())
        async with trio.open_nursery() as nursery:
            worker: awa.Worker = await nursery.start(client.run_worker)
            await in_a_thread(started)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert worker.running_jobs == [job.id]
                assert (await client.admin.job(job.id)).state is RUNNING
            may_end.set()
        assert (await client.admin.job(job.id)).state is COMPLETED
