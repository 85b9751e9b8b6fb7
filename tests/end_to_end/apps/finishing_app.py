"""A worker that finishes the jobs of `holding_app` at once."""

import attrs

import awa_actors as awa


@attrs.frozen
class Hold:
    """The same kind as in `holding_app`."""

    n: int


registry = awa.Registry()


@registry.worker(Hold)
async def finish(job: awa.Job[Hold]) -> None:
    """Leave a mark and be done."""
    async with job.client.transaction() as tx:
        await tx.execute("INSERT INTO runs (job_id, run_lease) VALUES ($1, $2)", job.id, job.run_lease)
