"""Jobs in a database, for tests that stand outside of any event loop."""

import attrs
import trio

import awa_actors as awa


@attrs.frozen
class Errand:
    """Args of a job that means nothing."""

    n: int = 0


def inserted(url: str, count: int = 1, opts: awa.InsertOpts | None = None) -> list[int]:
    """Insert errands; returns their ids."""

    async def insert() -> list[int]:
        async with awa.open_client(url) as client:
            return [job.id for job in await client.insert_many([Errand(n) for n in range(count)], opts)]

    return trio.run(insert)


def row(url: str, job_id: int) -> awa.JobRow:
    """One job as it is now."""

    async def look() -> awa.JobRow:
        async with awa.open_client(url) as client:
            return await client.admin.job(job_id)

    return trio.run(look)
