"""A worker of the storage rehearsal that holds its jobs until the database says go."""

import attrs
import trio

import awa_actors as awa


@attrs.frozen
class Errand:
    """The same kind as in `storage_rehearsal`."""

    what: str
    seconds: float = 0.0


registry = awa.Registry()


@registry.worker(Errand)
async def hold(job: awa.Job[Errand]) -> None:
    """Leave a mark, then wait for the row that says go."""
    job.set_progress(50)
    await job.flush_progress()
    async with job.client.transaction() as tx:
        await tx.execute("INSERT INTO runs (job_id, run_lease) VALUES ($1, $2)", job.id, job.run_lease)
    while True:
        async with job.client.pool.acquire() as session:
            if await session.fetchval("SELECT EXISTS (SELECT FROM go)"):
                return
        await trio.sleep(0.1)
