"""A worker whose database goes away, restarts, cuts it off or turns read-only recovers by itself and loses nothing."""

import datetime as dt
from functools import partial

import psycopg
import pytest
import trio
from at_work import LIMIT, Work, ask, becomes, until, working
from freezing_proxy import freezing_proxy
from postgres_servers import Server

import awa_actors as awa
from awa_actors.config import DatabaseSettings, QueueConfig
from awa_actors.jobs import JobState

COMPLETED, RUNNING = JobState.COMPLETED, JobState.RUNNING
TERMINATE_ALL = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
OUTAGE = 5.0
"""Seconds that the long outage lasts."""


@pytest.fixture
def gates() -> dict[int, trio.Event]:
    """Handlers of odd jobs wait for the gate of their number; the others end at once."""
    return {n: trio.Event() for n in range(1, 100, 2)}


@pytest.fixture
def runs() -> list[int]:
    return []


@pytest.fixture
def registry(gates: dict[int, trio.Event], runs: list[int]) -> awa.Registry:
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        runs.append(job.args.n)
        if job.args.n in gates:
            await gates[job.args.n].wait()

    return registry


async def eventually_inserts(client: awa.Client, n: int) -> int:
    """Insert a job; the connection that the pool gives may be one that has just died."""
    found: list[int] = []

    async def inserts() -> bool:
        found.append((await client.insert(Work(n))).id)
        return True

    await until(inserts, 2 * LIMIT)
    return found[0]


async def eventually_completed(client: awa.Client, job_id: int) -> None:
    async def is_completed() -> bool:
        return (await client.admin.job(job_id)).state is COMPLETED

    await until(is_completed, 2 * LIMIT)


@pytest.mark.slow
async def test_a_restart_of_the_database_ends_nothing(
    server: Server, database: str, registry: awa.Registry, gates: dict[int, trio.Event], runs: list[int]
) -> None:
    async with working(database, registry, maintenance=True) as (client, worker):
        held = await client.insert(Work(1))
        await becomes(client, held.id, RUNNING)
        await trio.to_thread.run_sync(server.restart)
        gates[1].set()
        await eventually_completed(client, held.id)
        await eventually_completed(client, await eventually_inserts(client, 2))
        assert worker.running == 0
    assert runs == [1, 2]


@pytest.mark.slow
async def test_what_ends_during_an_outage_is_recorded_after_it(
    server: Server, database: str, registry: awa.Registry, gates: dict[int, trio.Event], runs: list[int]
) -> None:
    async with working(database, registry, maintenance=True) as (client, worker):
        jobs = [await client.insert(Work(n)) for n in (1, 3, 5)]
        for job in jobs:
            await becomes(client, job.id, RUNNING)
        await trio.to_thread.run_sync(server.stop)
        for n in (1, 3, 5):
            gates[n].set()
        with trio.fail_after(LIMIT):
            while worker.running:
                await trio.lowlevel.checkpoint()
        await trio.sleep(OUTAGE)  # an outage is a length of time: there is nothing else to wait for
        await trio.to_thread.run_sync(server.start)
        for job in jobs:
            await eventually_completed(client, job.id)
        await eventually_completed(client, await eventually_inserts(client, 2))
    assert sorted(runs) == [1, 2, 3, 5]


@pytest.mark.slow
async def test_a_drain_during_an_outage_waits_for_the_database(
    server: Server, database: str, registry: awa.Registry, gates: dict[int, trio.Event]
) -> None:
    async with working(database, registry) as (client, worker), trio.open_nursery() as nursery:
        job = await client.insert(Work(1))
        await becomes(client, job.id, RUNNING)
        await trio.to_thread.run_sync(server.stop)
        gates[1].set()
        nursery.start_soon(worker.drain)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await trio.to_thread.run_sync(server.start)
        await eventually_completed(client, job.id)


@pytest.mark.slow
async def test_killing_all_sessions_again_and_again_ends_nothing(
    database: str, registry: awa.Registry, gates: dict[int, trio.Event]
) -> None:
    async with working(database, registry, maintenance=True) as (client, worker):
        for n in (1, 3, 5):
            held = await eventually_inserts(client, n)
            await until(partial(_runs, worker, held))
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute(TERMINATE_ALL)
            gates[n].set()
            await eventually_completed(client, held)
            await eventually_completed(client, await eventually_inserts(client, n + 1))

        async def leads() -> bool:
            return worker.maintenance is not None and worker.maintenance.is_leader

        await until(leads)


async def _runs(worker: awa.Worker, job_id: int) -> bool:
    return job_id in worker.running_jobs


@pytest.mark.slow
async def test_connections_that_turned_read_only_are_thrown_away(
    database: str, registry: awa.Registry, gates: dict[int, trio.Event]
) -> None:
    """As after a failover: every session that the worker opens is read-only for a while."""
    with psycopg.connect(database, autocommit=True) as operator:
        alter = psycopg.sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}")
        name = psycopg.sql.Identifier(operator.info.dbname)
        async with working(database, registry, QueueConfig("default", poll_interval=0.05)) as (client, _):
            held = await client.insert(Work(1))
            await becomes(client, held.id, RUNNING)
            operator.execute(alter.format(name, psycopg.sql.SQL("on")))
            operator.execute(TERMINATE_ALL)
            gates[1].set()
            refused: list[str] = []

            async def is_refused() -> bool:
                try:
                    await client.insert(Work(2))
                except awa.errors.TransientStoreError as error:
                    refused.append(str(error))
                return any("read-only" in text for text in refused)

            await until(is_refused)
            operator.execute(alter.format(name, psycopg.sql.SQL("off")))
            await eventually_completed(client, held.id)
            await eventually_completed(client, await eventually_inserts(client, 4))


@pytest.mark.slow
async def test_a_claim_that_times_out_is_tried_again(database: str, registry: awa.Registry) -> None:
    settings = DatabaseSettings(statement_timeout=0.2, lock_timeout=0.1)
    queue = QueueConfig("default", poll_interval=0.05)
    async with awa.open_client(database) as operator:
        job = await operator.insert(Work(2))
        async with working(database, registry, queue, database=settings):
            await becomes(operator, job.id, COMPLETED)
            async with operator.transaction() as tx:
                await tx.execute("LOCK TABLE awa_queue.ready, awa_queue.leases IN ACCESS EXCLUSIVE MODE")
                late = await tx.insert(Work(4))
                waiting = (
                    "SELECT max(query_start) FROM pg_stat_activity"
                    " WHERE wait_event_type = 'Lock' AND application_name LIKE '%dispatcher%'"
                )
                tries = set[object]()

                async def tried_again() -> bool:
                    tries.add(await ask(operator, waiting))
                    return len(tries - {None}) >= 3

                await until(tried_again)
            await becomes(operator, late.id, COMPLETED)


@pytest.mark.parametrize("how", ["notify is off", "behind a pooler"])
async def test_a_worker_that_only_polls_does_all_its_work(
    database: str, registry: awa.Registry, gates: dict[int, trio.Event], how: str
) -> None:
    settings = DatabaseSettings(notify=False) if how == "notify is off" else DatabaseSettings(pooler=True)
    queue = QueueConfig("default", poll_interval=0.02)
    async with working(database, registry, queue, database=settings, maintenance=True) as (client, _):
        for opts in (None, awa.InsertOpts(run_at=dt.timedelta(seconds=0.05))):
            await becomes(client, (await client.insert(Work(2), opts)).id, COMPLETED)


@pytest.mark.slow
async def test_a_frozen_dispatcher_is_given_up_and_replaced(
    database: str, registry: awa.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = DatabaseSettings(statement_timeout=0.5)
    monkeypatch.setattr("awa_actors.store.pool.ANSWER_MARGIN", 0.2)
    async with freezing_proxy(database) as proxy, awa.open_client(database) as operator:
        queue = QueueConfig("default", poll_interval=0.05)
        async with working(proxy.url, registry, queue, database=settings) as (client, _):
            await becomes(client, (await operator.insert(Work(2))).id, COMPLETED)
            proxy.freeze_open("dispatcher")
            await becomes(client, (await operator.insert(Work(4))).id, COMPLETED)
