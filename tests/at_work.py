"""A worker on a database, and bounded looks at what became of its jobs: what the tests of actors share."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, LiteralString

import attrs
import trio

import awa_actors as awa
from awa_actors.config import DatabaseSettings, MaintenanceSettings, WorkerSettings
from awa_actors.jobs import TERMINAL_STATES, JobRow, JobState

LIMIT = 10.0
"""Seconds that anything a test waits for may take on a busy machine."""
LOOK = 0.005
"""Seconds between two looks at the database: most of what is looked for is there after a few of them."""


@attrs.frozen
class Work:
    """Args of a job that means nothing."""

    n: int = 0


@asynccontextmanager
async def working(
    url: str,
    registry: awa.Registry,
    *queues: awa.QueueConfig,
    database: DatabaseSettings | None = None,
    settings: WorkerSettings | None = None,
    maintenance: bool | MaintenanceSettings = False,
) -> AsyncIterator[tuple[awa.Client, awa.Worker]]:
    """Run a worker for the body, and drain it at its end; a body that raises stops it at once."""
    async with awa.open_client(url, registry=registry, settings=database) as client, trio.open_nursery() as nursery:
        run = partial(client.run_worker, *queues, settings=settings, maintenance=maintenance)
        worker: awa.Worker = await nursery.start(run)
        yield client, worker
        with trio.fail_after(LIMIT):
            await worker.drain()


async def becomes(
    client: awa.Client, job_id: int, state: JobState, also: Callable[[JobRow], bool] = lambda row: True
) -> JobRow:
    """Wait until a job is in a state (and more holds of its row); fails when it ends in another one."""
    with trio.move_on_after(LIMIT):
        while True:
            row = await client.admin.job(job_id)
            if row.state is state and also(row):
                return row
            assert row.state is state or row.state not in TERMINAL_STATES, row
            await trio.sleep(LOOK)
    raise AssertionError(f"not {state.value} within {LIMIT:.0f} s: {row}")


async def until(holds: Callable[[], Awaitable[Any]], limit: float = LIMIT) -> None:
    """Wait until a question is answered with something true; one that cannot be asked now is asked again."""
    last: object = None
    with trio.move_on_after(limit):
        while True:
            try:
                if last := await holds():
                    return
            except awa.errors.StoreError as error:
                last = error
            await trio.sleep(LOOK)
    raise AssertionError(f"did not hold within {limit:.0f} s; last answer: {last!r}")


async def ask(client: awa.Client, statement: LiteralString, *args: object) -> Any:
    """The first column of a query's first row."""
    async with client.transaction() as tx:
        return await tx.fetchval(statement, *args)


async def counted(client: awa.Client, state: JobState) -> int:
    """How many jobs are in a state."""
    return int(await ask(client, "SELECT count(*) FROM awa.jobs WHERE state = $1::text::awa.job_state", state.value))
