"""The two endings of a worker: a drain loses nothing and takes its time, a stop is quick and gives everything back."""

import threading
from functools import partial

import pytest
import trio
from at_work import LIMIT, Work, ask, becomes, until, working
from freezing_proxy import freezing_proxy
from postgres_servers import Server

import awa_actors as awa
from awa_actors.actors import worker as worker_module
from awa_actors.config import QueueConfig, WorkerSettings
from awa_actors.core.liveness import Liveness
from awa_actors.jobs import JobState

AVAILABLE, COMPLETED, RUNNING = JobState.AVAILABLE, JobState.COMPLETED, JobState.RUNNING
ALIVE = "SELECT count(*) FROM awa.instances WHERE dead_at IS NULL"


def gated(began: trio.Event, gate: trio.Event) -> awa.Registry:
    """A handler that says when it runs and ends when it may."""
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        began.set()
        await gate.wait()

    return registry


async def test_a_drain_lets_handlers_finish_and_claims_nothing_more(database: str) -> None:
    began, gate = trio.Event(), trio.Event()
    async with awa.open_client(database) as operator:
        first = await operator.insert(Work())
        async with working(database, gated(began, gate)) as (_, worker), trio.open_nursery() as nursery:
            await began.wait()
            nursery.start_soon(worker.drain)
            await trio.testing.wait_all_tasks_blocked(0.01)
            second = await operator.insert(Work())
            assert worker.running_jobs == [first.id]
            gate.set()
        assert (await operator.admin.job(first.id)).state is COMPLETED
        assert (await operator.admin.job(second.id)).state is AVAILABLE
        assert await ask(operator, ALIVE) == 0, "the instance signs off as its last act"


async def test_an_idle_worker_drains_at_once(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with working(database, gated(trio.Event(), trio.Event())) as (_, worker):
        began = trio.current_time()
        await worker.drain()
        took = trio.current_time() - began
    with capsys.disabled():
        print(f"\ndrain of an idle worker: {took:.3f} s")
    assert took < 2.0


async def idle_dispatcher(operator: awa.Client) -> None:
    """Wait until the dispatcher has looked for work in vain, so that its next claim is one round trip."""
    pid = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '%dispatcher%' AND state = 'idle'"

    async def has_marked() -> bool:
        return bool(await ask(operator, "SELECT count(*) FROM awa.sleepers WHERE name = 'default'"))

    async def is_idle() -> bool:
        return await ask(operator, pid + " AND query LIKE 'CALL%'") is not None

    await until(has_marked)
    await until(is_idle)


async def _is(client: awa.Client, job_id: int, state: JobState) -> bool:
    return (await client.admin.job(job_id)).state is state


async def test_a_claim_that_is_answered_after_the_drain_began_goes_back_uncounted(database: str) -> None:
    began, gate = trio.Event(), trio.Event()
    async with freezing_proxy(database) as proxy, awa.open_client(database) as operator:
        async with working(proxy.url, gated(began, gate), QueueConfig("default", 5)) as (_, worker):
            running = await operator.insert(Work())
            await began.wait()
            await idle_dispatcher(operator)
            proxy.freeze_answers("dispatcher")
            claimed = await operator.insert(Work())
            await until(partial(_is, operator, claimed.id, RUNNING))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.drain)
                await trio.testing.wait_all_tasks_blocked(0.01)
                proxy.thaw()
                await until(partial(_is, operator, claimed.id, AVAILABLE))
                assert worker.running_jobs == [running.id], "it does not wait for the handlers that run"
                gate.set()
        row = await operator.admin.job(claimed.id)
        assert (row.state, row.attempt, row.interrupted, row.errors) == (AVAILABLE, 0, 0, ())


async def test_a_claim_that_is_never_answered_goes_back_in_the_last_step(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LAST_CLAIM", 0.1)
    async with freezing_proxy(database) as proxy, awa.open_client(database) as operator:
        async with working(proxy.url, gated(trio.Event(), trio.Event())) as (_, worker):
            await idle_dispatcher(operator)
            proxy.freeze_answers("dispatcher")
            claimed = await operator.insert(Work())
            await until(partial(_is, operator, claimed.id, RUNNING))
            await worker.drain()
        row = await operator.admin.job(claimed.id)
        assert (row.state, row.attempt) == (AVAILABLE, 0)


async def test_a_claim_whose_answer_was_lost_is_given_back_and_run(database: str) -> None:
    began, gate = trio.Event(), trio.Event()
    gate.set()
    async with (
        freezing_proxy(database) as proxy,
        awa.open_client(database) as operator,
        working(proxy.url, gated(began, gate)) as (client, _),
    ):
        await idle_dispatcher(operator)
        proxy.freeze_answers("dispatcher")
        job = await operator.insert(Work())
        await until(partial(_is, operator, job.id, RUNNING))
        assert not began.is_set()
        await proxy.cut("dispatcher")
        proxy.thaw()
        row = await becomes(client, job.id, COMPLETED)
    assert (row.attempt, row.run_lease) == (1, 2)


async def test_a_stop_gives_a_hundred_running_attempts_back_quickly(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    registry, begun = awa.Registry(), list[int]()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        begun.append(job.id)
        await trio.sleep_forever()

    async with awa.open_client(database, registry=registry) as client:
        jobs = await client.insert_many([Work(n) for n in range(100)])
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run_worker, QueueConfig("default", 100))

            async def all_run() -> bool:
                return len(begun) == 100

            await until(all_run)
            began = trio.current_time()
            nursery.cancel_scope.cancel()
        took = trio.current_time() - began
        rows = [await client.admin.job(job.id) for job in jobs]
        assert {(row.state, row.attempt, row.interrupted) for row in rows} == {(AVAILABLE, 0, 1)}
        assert await ask(client, ALIVE) == 0
    with capsys.disabled():
        print(f"\nstop with 100 running attempts: {took:.3f} s")
    assert took < WorkerSettings().shutdown_write


async def test_a_job_that_is_interrupted_too_often_counts_its_interruptions(database: str) -> None:
    began, gate = trio.Event(), trio.Event()
    registry = gated(began, gate)
    async with awa.open_client(database, registry=registry) as client:
        job = await client.insert(Work(), awa.InsertOpts(max_attempts=1))
        await ask(client, "UPDATE awa_queue.bodies SET interrupted = 3 RETURNING job_id")
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(client.run_worker, settings=WorkerSettings(interrupted_bound=3)))
            await began.wait()
            nursery.cancel_scope.cancel()
        row = await client.admin.job(job.id)
    assert row.state is JobState.FAILED
    assert "interrupted by 3 stops" in row.errors[-1]["error"]


async def test_a_stop_ends_in_bounded_time_when_the_database_is_gone(server: Server, database: str) -> None:
    began, settings = trio.Event(), WorkerSettings(shutdown_write=1.0)
    async with awa.open_client(database, registry=gated(began, trio.Event())) as client:
        await client.insert(Work())
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(client.run_worker, settings=settings))
            await began.wait()
            await trio.to_thread.run_sync(server.stop)
            asked = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - asked < settings.shutdown_write + 3.0


@pytest.mark.slow
async def test_a_stop_ends_in_bounded_time_when_the_database_is_frozen(database: str) -> None:
    began, settings = trio.Event(), WorkerSettings(shutdown_write=1.0)
    async with freezing_proxy(database) as proxy:
        async with awa.open_client(proxy.url, registry=gated(began, trio.Event())) as client:
            await client.insert(Work())
            async with trio.open_nursery() as nursery:
                await nursery.start(partial(client.run_worker, settings=settings))
                await began.wait()
                proxy.freeze("awa_actors")
                asked = trio.current_time()
                nursery.cancel_scope.cancel()
        assert trio.current_time() - asked < settings.shutdown_write + 6.0


@pytest.mark.slow
async def test_a_stop_keeps_beating_until_the_last_thread_has_ended(database: str) -> None:
    registry, began, gate = awa.Registry(), threading.Event(), threading.Event()

    @registry.worker(Work)
    def work(job: awa.Job[Work]) -> None:
        began.set()
        assert gate.wait(LIMIT)

    lives = WorkerSettings(liveness=Liveness(0.9))
    async with awa.open_client(database) as operator, awa.open_client(database, registry=registry) as client:
        job = await operator.insert(Work())
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(client.run_worker, settings=lives))
            assert await trio.to_thread.run_sync(began.wait, LIMIT)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await _outlives(operator, 2 * lives.liveness.stale_after)
            gate.set()
        row = await operator.admin.job(job.id)
    assert (row.state, row.rescues) == (COMPLETED, 0)


@pytest.mark.slow
async def test_a_drain_keeps_beating_until_the_last_handler_has_ended(database: str) -> None:
    began, gate = trio.Event(), trio.Event()
    lives = WorkerSettings(liveness=Liveness(0.9))
    async with awa.open_client(database) as operator:
        job = await operator.insert(Work())
        async with working(database, gated(began, gate), settings=lives) as (_, worker), trio.open_nursery() as nursery:
            await began.wait()
            nursery.start_soon(worker.drain)
            await _outlives(operator, 3 * lives.liveness.stale_after)
            gate.set()
        row = await operator.admin.job(job.id)
    assert (row.state, row.rescues) == (COMPLETED, 0)


async def _outlives(operator: awa.Client, seconds: float) -> None:
    """Try to take the attempts of dead instances for a while, as maintenance would."""
    begun = trio.current_time()

    async def long_enough() -> bool:
        assert await ask(operator, "SELECT count(*) FROM awa.bury_instances()") == 0, "a live instance looked dead"
        return trio.current_time() - begun > seconds

    await until(long_enough, seconds + LIMIT)
