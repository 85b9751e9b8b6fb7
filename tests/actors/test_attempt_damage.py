"""Handlers that leave scopes or nurseries open: an error for their job, and where the tree is broken, a drain."""

import contextlib
import sys

import pytest
import trio
from at_work import LIMIT, Work, ask, becomes, working

import awa_actors as awa
from awa_actors.jobs import JobRow, JobState

AVAILABLE, COMPLETED, RETRYABLE = JobState.AVAILABLE, JobState.COMPLETED, JobState.RETRYABLE


def error_of(row: JobRow) -> str:
    """The last error that a job carries."""
    return str(row.errors[-1]["error"])


async def test_a_leaked_cancel_scope_is_an_error_and_the_worker_goes_on(database: str) -> None:
    registry = awa.Registry()

    @registry.worker(Work)
    async def leak(job: awa.Job[Work]) -> None:
        if job.args.n == 0:
            trio.CancelScope().__enter__()

    async with working(database, registry) as (client, _):
        leaking, after = await client.insert_many([Work(0), Work(1)])
        assert "Cancel scope stack corrupted" in error_of(await becomes(client, leaking.id, RETRYABLE))
        await becomes(client, after.id, COMPLETED)
        await becomes(client, (await client.insert(Work(2))).id, COMPLETED)


async def test_a_leaked_nursery_is_an_error_after_which_the_worker_drains_and_fails(database: str) -> None:
    registry, may_end, leaked = awa.Registry(), trio.Event(), trio.Event()

    @registry.worker(Work)
    async def leak(job: awa.Job[Work]) -> None:
        if job.args.n == 0:
            nursery = await contextlib.AsyncExitStack().enter_async_context(trio.open_nursery())
            nursery.start_soon(trio.sleep_forever)
            leaked.set()
        else:
            await may_end.wait()

    async with awa.open_client(database, registry=registry) as client:
        bystander, leaking = await client.insert_many([Work(1), Work(0)])
        corrupted = pytest.RaisesExc(RuntimeError, match="Nursery stack corrupted")
        with pytest.RaisesGroup(corrupted, flatten_subgroups=True):
            async with trio.open_nursery() as nursery:
                await nursery.start(client.run_worker)
                await becomes(client, leaking.id, RETRYABLE)
                late = await client.insert(Work(2))
                may_end.set()
        assert "left a cancel scope or a nursery open" in error_of(await client.admin.job(leaking.id))
        assert (await client.admin.job(bystander.id)).state is COMPLETED
        assert (await client.admin.job(late.id)).state is AVAILABLE


LEAKING_PROGRAM = """
import contextlib, sys, attrs, trio
import awa_actors as awa

@attrs.frozen
class Work:
    n: int = 0

registry = awa.Registry()

@registry.worker(Work)
async def leak(job: awa.Job[Work]) -> None:
    await contextlib.AsyncExitStack().enter_async_context(trio.open_nursery())

async def main() -> None:
    async with awa.open_client(sys.argv[1], registry=registry) as client:
        await client.insert(Work())
        await client.run_worker(maintenance=False)

trio.run(main)
"""


@pytest.mark.slow
async def test_a_process_whose_tree_of_tasks_is_damaged_ends_with_an_error(database: str) -> None:
    command = [sys.executable, "-c", LEAKING_PROGRAM, database]
    with trio.fail_after(3 * LIMIT):
        ended = await trio.run_process(command, capture_stderr=True, check=False)
    assert ended.returncode == 1
    assert b"Nursery stack corrupted" in ended.stderr
    async with awa.open_client(database) as client:
        assert await ask(client, "SELECT state::text FROM awa.jobs") == "retryable"
