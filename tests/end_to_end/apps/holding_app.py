"""A worker whose handlers hold their jobs until the database says go; `finishing_app` has the same kind and lets go."""

import attrs
import trio

import awa_actors as awa


@attrs.frozen
class Hold:
    """A job that is held."""

    n: int


registry = awa.Registry()


@registry.worker(Hold)
async def hold(job: awa.Job[Hold]) -> None:
    """Leave a mark, then wait for the row that says go."""
    async with job.client.transaction() as tx:
        await tx.execute("INSERT INTO runs (job_id, run_lease) VALUES ($1, $2)", job.id, job.run_lease)
    while True:
        async with job.client.pool.acquire() as session:
            if await session.fetchval("SELECT EXISTS (SELECT FROM go)"):
                return
        await trio.sleep(0.1)
