"""Being alive: beats that no handler can stop, and what a process does when its own beats fail."""

import time
import uuid
from functools import partial
from typing import Any

import psycopg
import pytest
import trio
from at_work import LIMIT, Work, ask, becomes, until, working
from freezing_proxy import freezing_proxy

import awa_actors as awa
from awa_actors.config import MaintenanceSettings, QueueConfig, WorkerSettings
from awa_actors.core.liveness import Liveness
from awa_actors.jobs import JobState
from awa_actors.store.beat import Pulse

COMPLETED, RUNNING = JobState.COMPLETED, JobState.RUNNING
BEAT_AGE = """
SELECT extract(epoch FROM clock_timestamp() - last_beat_at)::float8 FROM awa.instances WHERE dead_at IS NULL
"""


def quick(stale_after: float, **settings: Any) -> WorkerSettings:
    """Settings of a worker that looks dead soon."""
    return WorkerSettings(liveness=Liveness(stale_after), **settings)


async def test_an_instance_that_was_declared_dead_goes_on_as_a_new_one(database: str) -> None:
    registry, began = awa.Registry(), list[tuple[int, uuid.UUID]]()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        began.append((job.id, job._control.instance))
        if job.args.n == 0 and len(began) == 1:
            await trio.sleep_forever()

    lanes = MaintenanceSettings(rescue_interval=0.1)
    async with working(database, registry, settings=quick(0.6), maintenance=lanes) as (client, worker):
        before = worker.instance
        lost = await client.insert(Work(0))
        await becomes(client, lost.id, RUNNING)
        await ask(client, "UPDATE awa.instances SET dead_at = clock_timestamp() RETURNING id")
        row = await becomes(client, lost.id, COMPLETED)
        assert (row.attempt, row.rescues) == (1, 1), "the rescue did not spend the attempt"
        assert worker.instance != before
        await becomes(client, (await client.insert(Work(1))).id, COMPLETED)
    assert [str(instance) for _, instance in began] == [before, worker.instance, worker.instance]


@pytest.mark.slow
async def test_a_handler_that_blocks_the_loop_for_longer_than_staleness_keeps_its_job(database: str) -> None:
    registry, buried = awa.Registry(), list[object]()

    @registry.worker(Work)
    async def block(job: awa.Job[Work]) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            for _ in range(15):
                time.sleep(0.1)  # noqa: ASYNC251 - what a careless application does
                buried.extend(connection.execute("SELECT * FROM awa.bury_instances()").fetchall())

    async with working(database, registry, settings=quick(0.6)) as (client, _):
        row = await becomes(client, (await client.insert(Work())).id, COMPLETED)
    assert buried == []
    assert (row.attempt, row.rescues, row.run_lease) == (1, 0, 1)


@pytest.mark.slow
async def test_a_process_whose_loop_is_wedged_stops_beating_and_goes_on_when_it_turns(database: str) -> None:
    registry, ages = awa.Registry(), list[float]()

    @registry.worker(Work)
    async def wedge(job: awa.Job[Work]) -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            deadline = time.monotonic() + LIMIT
            while (not ages or ages[-1] < 0.6) and time.monotonic() < deadline:
                time.sleep(0.05)  # noqa: ASYNC251 - what a careless application does
                row = connection.execute(BEAT_AGE).fetchone()
                assert row is not None
                ages.append(row[0])

    async with working(database, registry, settings=quick(1.2, loop_stall_limit=0.3)) as (client, worker):
        await becomes(client, (await client.insert(Work())).id, COMPLETED)
        assert ages[-1] >= 0.6

        async def beats_again() -> bool:
            return float(await ask(client, BEAT_AGE)) < 0.3

        await until(beats_again)
        assert worker.beating


@pytest.mark.slow
async def test_a_process_whose_beats_do_not_arrive_stops_claiming_before_it_looks_dead(database: str) -> None:
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None: ...

    queue = QueueConfig("default", poll_interval=0.02)
    async with (
        freezing_proxy(database) as proxy,
        awa.open_client(database) as operator,
        working(proxy.url, registry, queue, settings=quick(3.0)) as (_, worker),
    ):
        await becomes(operator, (await operator.insert(Work())).id, COMPLETED)
        proxy.freeze("beat")

        async def has_stopped() -> bool:
            return not worker.beating

        await until(has_stopped)
        age = float(await ask(operator, BEAT_AGE))
        assert age < 3.0, "others could have taken what it claims"
        kept = await operator.insert(Work())
        looks = trio.current_time() + 10 * queue.poll_interval

        async def many_polls_later() -> bool:
            assert (await operator.admin.job(kept.id)).state is JobState.AVAILABLE
            return trio.current_time() > looks

        await until(many_polls_later)
        proxy.thaw()
        await becomes(operator, kept.id, COMPLETED)


async def test_a_stale_beat_is_measured_from_when_it_was_sent(database: str) -> None:
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None: ...

    async with working(database, registry, settings=quick(30.0)) as (_, worker):
        assert worker.beating
        assert worker._crew is not None
        pulse: Pulse = worker._crew.liveness.pulse
        pulse.last_good -= 19.0
        assert worker.beating
        pulse.last_good -= 1.1
        assert not worker.beating, "at two thirds of the limit"
        pulse.last_good = time.monotonic()


async def test_beats_stay_well_inside_the_limit(database: str) -> None:
    """The largest gap between stored beats is what others judge by, so it is what is measured."""
    registry, ages = awa.Registry(), list[float]()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None: ...

    async with working(database, registry, settings=quick(0.9)) as (client, _):
        begun = trio.current_time()

        async def watched() -> bool:
            ages.append(float(await ask(client, BEAT_AGE)))
            return trio.current_time() - begun > 0.6

        await until(watched)
    assert max(ages) < 0.6


async def test_a_claim_under_an_instance_that_died_meanwhile_is_not_doubled(database: str) -> None:
    """The claim is sent under one instance and answered when the process is already another one."""
    registry, runs = awa.Registry(), list[uuid.UUID]()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        runs.append(job._control.instance)

    async with (
        freezing_proxy(database) as proxy,
        awa.open_client(database) as operator,
        working(proxy.url, registry, settings=quick(0.6)) as (_, worker),
    ):
        await becomes(operator, (await operator.insert(Work())).id, COMPLETED)
        before = worker.instance
        is_idle = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND query LIKE 'CALL%'"
        await until(partial(_true, operator, is_idle))
        proxy.freeze_answers("dispatcher")
        late = await operator.insert(Work())
        await until(partial(_true, operator, "SELECT count(*) FROM awa.jobs WHERE state = 'running'"))
        await ask(operator, "UPDATE awa.instances SET dead_at = clock_timestamp() RETURNING id")

        async def is_another() -> bool:
            return worker.instance != before

        await until(is_another)
        proxy.thaw()
        row = await becomes(operator, late.id, COMPLETED)
    assert [str(run) for run in runs] == [before, before]
    assert (row.attempt, row.rescues) == (1, 0)


async def _true(client: awa.Client, statement: Any) -> bool:
    return bool(await ask(client, statement))
