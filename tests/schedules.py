"""Schedules on a database and what became of them: what the tests of cron share."""

import datetime as dt
from typing import Any

import attrs

import awa_actors as awa
from awa_actors.actors.cron import Cron
from awa_actors.actors.lane import StepReport
from awa_actors.store.cron import CronSchedule

SECOND = dt.timedelta(seconds=1)
EVERY_SECOND = "* * * * * *"
SELDOM = "0 0 29 2 *"
"""An expression that does not come due while a test runs, but on the 29th of February."""

FIRES = """
SELECT j.metadata ->> 'cron_fire_time' AS fire, j.run_at, j.id FROM awa.jobs j
WHERE j.metadata ->> 'cron_name' = $1 AND NOT j.metadata ? 'triggered_manually' ORDER BY 1, 3
"""


@attrs.frozen
class Report:
    """Args of a scheduled job."""

    full: bool = True


def scheduled(
    name: str, expression: str, args: Any = None, application: str = "default", **options: Any
) -> awa.Registry:
    """A registry with one schedule."""
    registry = awa.Registry(application)
    registry.cron(name, expression, args or Report(), **options)
    return registry


def lane_of(registry: awa.Registry) -> Cron:
    """The cron step of one process that declares these schedules."""
    return Cron(registry, 1.0)


async def one_pass(client: awa.Client, step: Cron, rows: int = 2_000) -> StepReport:
    """Run a step once, as a lane does."""
    async with client.pool.acquire() as session:
        return await step.run(session, rows)


async def stored(client: awa.Client, name: str) -> CronSchedule:
    """One schedule as an operator sees it."""
    return {schedule.name: schedule for schedule in await client.admin.cron_list()}[name]


async def set_mark(client: awa.Client, name: str, mark: dt.datetime) -> None:
    """Make everything after an instant undecided."""
    async with client.transaction() as tx:
        await tx.execute("UPDATE awa.cron_schedules SET mark = $2 WHERE name = $1", name, mark)


async def database_time(client: awa.Client) -> dt.datetime:
    """The database's clock."""
    async with client.transaction() as tx:
        now: dt.datetime = await tx.fetchval("SELECT clock_timestamp()")
    return now


async def nominal_times(client: awa.Client, name: str) -> list[dt.datetime]:
    """Nominal times of the fires that became jobs which are still there, in order, each as often as it did."""
    async with client.transaction() as tx:
        return [dt.datetime.fromisoformat(row["fire"]) for row in await tx.fetch(FIRES, name)]


async def jobs_of(client: awa.Client, name: str) -> list[awa.JobRow]:
    """Jobs of a schedule, oldest first."""
    found = [job for job in await client.admin.jobs(limit=5_000) if job.metadata.get("cron_name") == name]
    return sorted(found, key=lambda job: job.id)
