"""What a worker does with its queues: order, limits, retries, and what a job remembers from one attempt to the next."""

from functools import partial
from typing import Any, ClassVar

import attrs
import pytest
import trio
from at_work import LIMIT, Work, ask, becomes, counted, until, working

import awa_actors as awa
from awa_actors.config import QueueConfig, RateLimit
from awa_actors.errors import StaleAttempt
from awa_actors.jobs import JobRow, JobState

COMPLETED, FAILED, RETRYABLE, RUNNING = JobState.COMPLETED, JobState.FAILED, JobState.RETRYABLE, JobState.RUNNING


@attrs.frozen
class Elsewhere:
    """Args of a job of another queue."""

    queue: ClassVar[str] = "elsewhere"
    n: int = 0


async def all_completed(client: awa.Client, jobs: list[awa.InsertedJob]) -> None:
    async def are() -> bool:
        return await counted(client, COMPLETED) == len(jobs)

    await until(are)


async def test_completions_are_recorded_in_batches(database: str) -> None:
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None: ...

    async with working(database, registry) as (client, _):
        await all_completed(client, await client.insert_many([Work(n) for n in range(1000)]))
        batches = await ask(client, "SELECT count(DISTINCT finalized_at) FROM awa_queue.done")
    assert batches <= 200


async def test_a_failed_attempt_runs_again_after_its_backoff(database: str) -> None:
    registry, attempts = awa.Registry(), list[int]()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            raise ValueError("boom")
        assert [error["attempt"] for error in job.errors] == [1]

    async with working(database, registry) as (client, _):
        job = await client.insert(Work())
        row = await becomes(client, job.id, RETRYABLE)
        assert row.attempted_at is not None
        assert 1.9 < (row.run_at - row.attempted_at).total_seconds() < 3.0
        await ask(client, "UPDATE awa_queue.deferred_jobs SET run_at = clock_timestamp() RETURNING job_id")
        await client.tick()
        row = await becomes(client, job.id, COMPLETED)
    assert attempts == [1, 2]
    assert row.attempt == 2


async def test_snoozing_is_not_counted_but_visible(database: str) -> None:
    registry, seen = awa.Registry(), list[tuple[int, int]]()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> awa.Verdict:
        seen.append((job.attempt, job.snoozes))
        return awa.Snooze(0) if job.snoozes < 3 else None

    async with working(database, registry, maintenance=True) as (client, _):
        row = await becomes(client, (await client.insert(Work(), awa.InsertOpts(max_attempts=1))).id, COMPLETED)
    assert seen == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert (row.attempt, row.snoozes, row.errors) == (1, 3, ())


async def test_a_retry_after_counts_and_exhausts(database: str) -> None:
    registry, attempts = awa.Registry(), list[int]()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> awa.Verdict:
        attempts.append(job.attempt)
        return awa.RetryAfter(0, "not yet")

    async with working(database, registry, maintenance=True) as (client, _):
        row = await becomes(client, (await client.insert(Work(), awa.InsertOpts(max_attempts=3))).id, FAILED)
    assert attempts == [1, 2, 3]
    assert [error["attempt"] for error in row.errors] == [1, 2, 3]
    assert row.errors[-1]["terminal"] is True


async def test_the_last_attempt_that_raises_fails_the_job(database: str) -> None:
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        raise ValueError("boom")

    async with working(database, registry) as (client, _):
        row = await becomes(client, (await client.insert(Work(), awa.InsertOpts(max_attempts=1))).id, FAILED)
    assert (row.attempt, len(row.errors)) == (1, 1)


def in_order(order: list[int]) -> awa.Registry:
    """A handler that notes which job it was given."""
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        order.append(job.args.n)
        await trio.lowlevel.checkpoint()

    return registry


async def test_urgent_jobs_run_first_and_equal_ones_in_order_of_insert(database: str) -> None:
    order = list[int]()
    async with awa.open_client(database) as client:
        jobs = [await client.insert(Work(n), awa.InsertOpts(priority=4 - n // 5)) for n in range(20)]
    async with working(database, in_order(order), QueueConfig("default", 1)) as (client, _):
        await all_completed(client, jobs)
    assert order == [*range(15, 20), *range(10, 15), *range(5, 10), *range(5)]


async def test_a_job_that_waited_long_is_as_urgent_as_new_urgent_ones(database: str) -> None:
    order = list[int]()
    async with awa.open_client(database) as client:
        old = [await client.insert(Work(n), awa.InsertOpts(priority=4)) for n in range(20)]
        await ask(client, "UPDATE awa_queue.ready SET ready_at = ready_at - interval '10 min' RETURNING job_id")
        new = [await client.insert(Work(n), awa.InsertOpts(priority=1)) for n in range(20, 40)]
    async with working(database, in_order(order), QueueConfig("default", 1, priority_aging=60.0)) as (client, _):
        await all_completed(client, old + new)
    assert order == list(range(40))


async def test_ageing_can_be_turned_off(database: str) -> None:
    order = list[int]()
    async with awa.open_client(database) as client:
        old = await client.insert(Work(0), awa.InsertOpts(priority=4))
        await ask(client, "UPDATE awa_queue.ready SET ready_at = ready_at - interval '10 min' RETURNING job_id")
        new = await client.insert(Work(1), awa.InsertOpts(priority=3))
    async with working(database, in_order(order), QueueConfig("default", 1, priority_aging=0.0)) as (client, _):
        await all_completed(client, [old, new])
    assert order == [1, 0]


async def test_no_more_attempts_start_per_second_than_the_rate_limit_allows(database: str) -> None:
    registry, starts = awa.Registry(), list[float]()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        starts.append(trio.current_time())

    queue = QueueConfig("default", rate_limit=RateLimit(40, burst=5))
    async with working(database, registry, queue) as (client, _):
        await all_completed(client, await client.insert_many([Work(n) for n in range(20)]))
    # A bucket of 5, and 15 more at 40 a second from when it was emptied, which is a moment before the first start.
    assert starts[-1] - starts[0] >= 0.25


async def test_a_paused_queue_starts_nothing_until_it_is_resumed(database: str) -> None:
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None: ...

    @registry.worker(Elsewhere)
    async def elsewhere(job: awa.Job[Elsewhere]) -> None: ...

    queues = [QueueConfig(name, poll_interval=0.01) for name in ("default", "elsewhere")]
    async with working(database, registry, *queues) as (client, _):
        await client.admin.pause_queue("default", by="the test")
        paused = await client.insert(Work())
        for n in range(5):  # each takes at least as long as the paused queue's next look
            await becomes(client, (await client.insert(Elsewhere(n))).id, COMPLETED)
        assert (await client.admin.job(paused.id)).state is JobState.AVAILABLE
        assert await client.admin.resume_queue("default")
        await becomes(client, paused.id, COMPLETED)


async def test_each_queue_has_its_own_limit_of_attempts_at_once(database: str) -> None:
    registry, open_gate = awa.Registry(), trio.Event()
    running, most = {"default": 0, "elsewhere": 0}, {"default": 0, "elsewhere": 0}

    async def stand(queue: str) -> None:
        running[queue] += 1
        most[queue] = max(most[queue], running[queue])
        await open_gate.wait()
        await trio.lowlevel.checkpoint()
        running[queue] -= 1

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        await stand(job.queue)

    @registry.worker(Elsewhere)
    async def elsewhere(job: awa.Job[Elsewhere]) -> None:
        await stand(job.queue)

    async with working(database, registry, QueueConfig("default", 3), QueueConfig("elsewhere", 5)) as (client, worker):
        jobs = await client.insert_many([Work(n) for n in range(20)] + [Elsewhere(n) for n in range(20)])

        async def both_full() -> bool:
            return running == {"default": 3, "elsewhere": 5}

        await until(both_full)
        assert worker.running == 8
        open_gate.set()
        await all_completed(client, jobs)
    assert most == {"default": 3, "elsewhere": 5}


async def test_a_deadline_of_the_queue_holds_for_jobs_without_one(database: str) -> None:
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        if job.args.n == 0:
            await trio.sleep_forever()
        assert job.deadline_at is not None

    async with working(database, registry, QueueConfig("default", deadline=0.1)) as (client, _):
        slow, quick = await client.insert_many([Work(0), Work(1)], awa.InsertOpts(max_attempts=1))
        row = await becomes(client, slow.id, FAILED)
        assert row.errors[0]["error"] == "deadline exceeded"
        await becomes(client, quick.id, COMPLETED)


async def test_progress_metadata_and_checkpoint_reach_the_next_attempt(database: str) -> None:
    registry, seen = awa.Registry(), dict[int, tuple[Any, Any]]()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> awa.Verdict:
        seen[job.attempt] = dict(job.progress or {}), dict(job.metadata)
        if job.attempt == 3:
            return None
        job.set_checkpoint(cursor=job.attempt * 10)
        job.set_progress(job.attempt * 40, "going on")
        job.update_metadata(**{f"seen_{job.attempt}": True})
        if job.attempt == 1:
            return awa.RetryAfter(0)
        raise ValueError("the second attempt breaks")

    async with working(database, registry, maintenance=True) as (client, _):
        job = await client.insert(Work(), awa.InsertOpts(metadata={"origin": "test"}))
        await becomes(client, job.id, RETRYABLE, lambda row: row.attempt == 2)
        await ask(client, "UPDATE awa_queue.deferred_jobs SET run_at = clock_timestamp() RETURNING job_id")
        await client.tick()
        row = await becomes(client, job.id, COMPLETED)
    assert seen == {
        1: ({}, {"origin": "test"}),
        2: ({"percent": 40, "message": "going on", "metadata": {"cursor": 10}}, {"origin": "test", "seen_1": True}),
        3: (
            {"percent": 80, "message": "going on", "metadata": {"cursor": 20}},
            {"origin": "test", "seen_1": True, "seen_2": True},
        ),
    }
    assert row.metadata == {"origin": "test", "seen_1": True, "seen_2": True}


async def test_flushed_progress_is_visible_while_the_handler_runs(database: str) -> None:
    registry, may_end = awa.Registry(), trio.Event()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        job.set_progress(50, "half way")
        job.update_metadata(owner="ann")
        await job.flush_progress()
        await may_end.wait()

    def half_way(row: JobRow) -> bool:
        return row.progress == {"percent": 50, "message": "half way"} and row.metadata == {"owner": "ann"}

    async with working(database, registry) as (client, _):
        job = await client.insert(Work())
        with trio.fail_after(LIMIT):
            while not half_way(await client.admin.job(job.id)):
                await trio.lowlevel.checkpoint()
        may_end.set()
        assert (await becomes(client, job.id, COMPLETED)).metadata == {"owner": "ann"}


async def test_flushing_an_attempt_that_is_no_longer_ours_raises(database: str) -> None:
    registry, runs, refused = awa.Registry(), trio.Event(), trio.Event()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        try:
            runs.set()
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(LIMIT, shield=True):
                job.set_progress(99)
                with pytest.raises(StaleAttempt):
                    await job.flush_progress()
                refused.set()

    async with working(database, registry) as (client, _):
        job = await client.insert(Work())
        await runs.wait()
        await client.admin.cancel(job.id)
        with trio.fail_after(LIMIT):
            await refused.wait()


async def test_handlers_that_use_up_the_pool_starve_nothing_of_the_runtime(database: str) -> None:
    registry, holding, may_end = awa.Registry(), list[int](), trio.Event()
    settings = awa.DatabaseSettings(pool_size=2)

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        async with job.client.transaction() as tx:
            await tx.execute("SELECT 1")
            holding.append(job.id)
            if len(holding) == 2:
                may_end.set()
            await may_end.wait()
            job.set_progress(50)
            await job.flush_progress()  # needs a connection while every one of the pool is taken

    async with awa.open_client(database) as client:
        jobs = await client.insert_many([Work(0), Work(1)])
        async with working(database, registry, database=settings):
            await all_completed(client, jobs)


async def test_a_worker_without_handlers_or_with_a_queue_named_twice_is_refused(database: str) -> None:
    async with awa.open_client(database) as client:
        with pytest.raises(awa.UsageError, match="no handler"):
            await client.run_worker()
    registry = in_order([])
    async with awa.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
        run = partial(client.run_worker, QueueConfig("default"), QueueConfig("default"))
        with pytest.raises(awa.UsageError, match="named twice"):
            await nursery.start(run)
