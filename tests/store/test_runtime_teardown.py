"""Opening and leaving the whole runtime at any moment, and what a fork does to it."""

import os

import pytest
import trio
from at_work import LIMIT, Work, becomes, working

import awa_actors as awa
from awa_actors.jobs import JobState


@pytest.fixture
def registry() -> awa.Registry:
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None: ...

    return registry


async def leave_after(database: str, registry: awa.Registry, seconds: float) -> None:
    """Give the complete runtime this long; it ends in bounded time whatever it was doing."""
    with trio.fail_after(seconds + LIMIT), trio.move_on_after(seconds) as scope:
        async with awa.open_client(database, registry=registry) as client:
            await client.insert(Work())
            await client.run_worker()
    assert scope.cancelled_caught


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.03, 0.2])
async def test_the_runtime_can_be_left_at_a_moment(database: str, registry: awa.Registry, seconds: float) -> None:
    await leave_after(database, registry, seconds)


@pytest.mark.slow
async def test_the_runtime_can_be_left_at_any_moment(database: str, registry: awa.Registry) -> None:
    for hundredths in range(0, 30):
        await leave_after(database, registry, hundredths / 100)
    async with trio.open_nursery() as nursery:
        for hundredths in [*range(30, 200, 20), 200]:
            nursery.start_soon(leave_after, database, registry, hundredths / 100)
    async with working(database, registry) as (client, _):
        await becomes(client, (await client.insert(Work())).id, JobState.COMPLETED)


def said_in_a_child(client: awa.Client) -> str:
    """Fork, take the first step of borrowing a connection there, and return what that raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # nothing may return from here: the child has a copy of everything, pytest included
        said = "nothing"
        try:
            client.pool.acquire().__aenter__().send(None)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


async def test_a_forked_child_is_told_and_the_parents_connections_stay_whole(database: str) -> None:
    async with awa.open_client(database) as client:
        await client.insert(Work())
        assert client.pool._idle, "a connection that a child would inherit"
        said = said_in_a_child(client)
        assert said.startswith("UsageError: ")
        assert "after the fork" in said
        for _ in range(3):
            await client.insert(Work())
