"""Starting a worker: what is refused before `started`, and that a stop at any moment of it ends and leaves nothing."""

import random
from functools import partial

import psycopg
import pytest
import trio
from at_work import LIMIT, Work, ask, becomes, working

import awa_actors as awa
from awa_actors.errors import SchemaNewerThanCode, SchemaNotMigrated, StoreError, TransientStoreError
from awa_actors.jobs import JobState


@pytest.fixture
def registry() -> awa.Registry:
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None: ...

    return registry


async def refused(url: str, registry: awa.Registry, error: type[Exception], match: str) -> None:
    """A start that raises this error, bare, before `started`."""
    async with awa.open_client(url, registry=registry) as client, trio.open_nursery() as nursery:
        with pytest.raises(error, match=match), trio.fail_after(LIMIT):
            await nursery.start(client.run_worker)


async def test_a_database_without_the_schema_is_refused(empty_database: str, registry: awa.Registry) -> None:
    await refused(empty_database, registry, SchemaNotMigrated, "run 'awa-actors migrate'")


async def test_a_database_of_a_newer_release_is_refused(database: str, registry: awa.Registry) -> None:
    async with awa.open_client(database) as client:
        await ask(
            client,
            "INSERT INTO awa.schema_migrations (version, name, checksum) VALUES (9999, 'later', '') RETURNING version",
        )
    await refused(database, registry, SchemaNewerThanCode, "upgrade awa-actors")


async def test_a_read_only_database_is_refused(database: str, registry: awa.Registry) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        name = psycopg.sql.Identifier(connection.info.dbname)
        connection.execute(psycopg.sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name))
    await refused(database, registry, TransientStoreError, "read-only")


async def test_a_database_that_cannot_be_reached_is_an_error_of_one_line(registry: awa.Registry) -> None:
    url = "postgresql://127.0.0.1:1/nowhere"
    await refused(url, registry, TransientStoreError, "cannot reach the database: [^\n]+$")


async def test_a_wrong_role_is_refused_at_once(database: str, registry: awa.Registry) -> None:
    url = database.replace("user=postgres", "user=nobody_we_know")
    await refused(url, registry, StoreError, "the database refused the connection: role")


async def test_a_worker_that_could_not_start_can_start_later(empty_database: str, registry: awa.Registry) -> None:
    async with awa.open_client(empty_database, registry=registry) as client, trio.open_nursery() as nursery:
        with pytest.raises(SchemaNotMigrated):
            await nursery.start(client.run_worker)
        await client.migrate()
        worker: awa.Worker = await nursery.start(client.run_worker)
        await becomes(client, (await client.insert(Work())).id, JobState.COMPLETED)
        await worker.drain()


class StopAfter(trio.abc.Instrument):
    """Cancels a scope when a number of steps of any task have been made."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self.scope, self.left = scope, steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self.scope.cancel()


async def steps_of_a_start(database: str, registry: awa.Registry) -> int:
    with trio.CancelScope() as scope:
        counter = StopAfter(scope, 10**9)
        trio.lowlevel.add_instrument(counter)
        async with working(database, registry, maintenance=True):
            trio.lowlevel.remove_instrument(counter)
    return 10**9 - counter.left


async def stop_after(database: str, registry: awa.Registry, steps: int) -> None:
    """Stop a worker at a moment of its start. It must end: the fixture sees to it that it leaves no session."""
    with trio.fail_after(LIMIT), trio.CancelScope() as scope:
        stop = StopAfter(scope, steps)
        trio.lowlevel.add_instrument(stop)
        try:
            async with awa.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
                await nursery.start(partial(client.run_worker, maintenance=True))
                await trio.sleep_forever()
        finally:
            trio.lowlevel.remove_instrument(stop)
    assert scope.cancelled_caught


async def test_a_stop_at_five_moments_of_the_start_ends_it(database: str, registry: awa.Registry) -> None:
    steps = await steps_of_a_start(database, registry)
    for step in random.Random(44).sample(range(1, steps), 5):
        await stop_after(database, registry, step)
    async with working(database, registry) as (client, _):
        await becomes(client, (await client.insert(Work())).id, JobState.COMPLETED)


@pytest.mark.slow
async def test_a_stop_at_fifty_moments_of_the_start_ends_it(database: str, registry: awa.Registry) -> None:
    steps = await steps_of_a_start(database, registry)
    for step in range(1, steps + 20, max(1, steps // 50)):
        await stop_after(database, registry, step)
    async with working(database, registry) as (client, _):
        await becomes(client, (await client.insert(Work())).id, JobState.COMPLETED)
