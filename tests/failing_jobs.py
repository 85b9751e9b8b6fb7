"""Jobs that fail for good, for tests of what operators do then."""

import attrs

import awa_actors as awa
from awa_actors.testing import work_one


@attrs.frozen
class Payment:
    n: int = 0


@attrs.frozen
class Invoice:
    n: int = 0


def failing(registry: awa.Registry) -> None:
    """Give both kinds a handler that never succeeds."""

    @registry.worker(Payment)
    async def pay(job: awa.Job[Payment]) -> None:
        raise awa.errors.TerminalError("card refused")

    @registry.worker(Invoice)
    async def bill(job: awa.Job[Invoice]) -> None:
        raise ValueError("no address")


async def failed(client: awa.Client, args: Payment | Invoice | None = None, opts: awa.InsertOpts | None = None) -> int:
    """Insert a job and let it fail; returns its id."""
    job = await client.insert(args or Payment(), opts)
    row = (await work_one(client, type(args or Payment()))).job
    assert (row.id, row.state) == (job.id, awa.JobState.FAILED)
    return job.id
