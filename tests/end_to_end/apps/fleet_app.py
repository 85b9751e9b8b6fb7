"""What the processes of the fleet test declare: jobs that leave a mark, and a schedule that fires every second."""

import attrs

import awa_actors as awa


@attrs.frozen
class Mark:
    """Leaves a row of its own behind."""

    n: int


@attrs.frozen
class Tick:
    """What the schedule enqueues."""


registry = awa.Registry("fleet")
registry.cron("every_second", "* * * * * *", Tick(), missed_fire=awa.MissedFire.CATCH_UP)


@registry.worker(Mark)
async def mark(job: awa.Job[Mark]) -> None:
    async with job.client.transaction() as tx:
        await tx.execute("INSERT INTO marks (job_id) VALUES ($1)", job.id)


@registry.worker(Tick)
async def tick(job: awa.Job[Tick]) -> None:
    """Does nothing: that it was enqueued is what counts."""
