"""How many connections each role holds: the formula of docs/reference/connections.md, counted on the server."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import attrs
import pytest
import trio
from at_work import Work, becomes, until, working

import awa_actors as awa
from awa_actors.config import MaintenanceSettings, QueueConfig
from awa_actors.jobs import JobState

CONTROL = """
SELECT array_agg(DISTINCT application_name), count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'awa_actors %' AND application_name <> 'awa_actors pool'
"""
WORKER = 7
MAINTENANCE = 6
ROLE = 4


@pytest.fixture
def registry() -> awa.Registry:
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        job.set_progress(50)
        await job.flush_progress()

    return registry


@pytest.fixture
def quick_lanes() -> MaintenanceSettings:
    return MaintenanceSettings(
        promote_interval=0.02, rescue_interval=0.02, hygiene_interval=0.02, refresh_interval=0.02
    )


async def reaches(operator: awa.Client, expected: int) -> None:
    """Connections are opened when they are first needed: wait until all are there, and see that none is too many."""

    async def all_open() -> bool:
        async with operator.transaction() as tx:
            row = await tx.fetchrow(CONTROL)
        assert row is not None
        assert row[1] <= expected, sorted(row[0])
        return bool(row[1] >= expected - 1)  # the one for rescued follow-ups waits for a rescue

    await until(all_open)


@attrs.frozen
class After: ...


@pytest.mark.parametrize("queues", [["default"], ["default", "two", "three"]], ids=["one queue", "three queues"])
@pytest.mark.parametrize("maintenance", [False, True], ids=["alone", "with maintenance"])
async def test_a_worker_holds_what_the_formula_says(
    database: str, registry: awa.Registry, quick_lanes: MaintenanceSettings, queues: Sequence[str], maintenance: bool
) -> None:
    configs = [QueueConfig(name, poll_interval=0.02) for name in queues]
    lanes = quick_lanes if maintenance else False
    expected = WORKER + len(queues) + (MAINTENANCE if maintenance else 0)
    async with (
        awa.open_client(database) as operator,
        working(database, registry, *configs, maintenance=lanes) as (client, _),
    ):
        await becomes(client, (await client.insert(Work())).id, JobState.COMPLETED)
        await reaches(operator, expected)


async def test_follow_ups_of_completions_take_one_more(database: str, registry: awa.Registry) -> None:
    registry.on_completed_enqueue(Work)(lambda event: After())
    async with (
        awa.open_client(database) as operator,
        working(database, registry, QueueConfig("default", poll_interval=0.02)) as (client, _),
    ):
        await becomes(client, (await client.insert(Work())).id, JobState.COMPLETED)
        await reaches(operator, WORKER + 2)


@pytest.mark.parametrize("schedules", [0, 1], ids=["without schedules", "with a schedule"])
async def test_the_maintenance_role_holds_what_the_formula_says(
    database: str, registry: awa.Registry, quick_lanes: MaintenanceSettings, schedules: int
) -> None:
    if schedules:
        registry.cron("yearly", "0 0 1 1 *", Work())
    async with AsyncExitStack() as stack:
        operator = await stack.enter_async_context(awa.open_client(database))
        client = await stack.enter_async_context(awa.open_client(database, registry=registry))
        nursery = await stack.enter_async_context(trio.open_nursery())
        await nursery.start(partial(client.run_maintenance, settings=quick_lanes))
        await reaches(operator, ROLE + MAINTENANCE + 2 * schedules)
        nursery.cancel_scope.cancel()
