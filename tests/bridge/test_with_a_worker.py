"""A fast worker beside a producer: a handler never runs before the commit it belongs to, nor for a rolled-back one."""

from contextlib import closing

import attrs
import psycopg
import trio
from at_work import becomes, counted, working

import awa_actors as awa
import awa_actors.bridge.psycopg as awa_psycopg


@attrs.frozen
class Ship:
    order_id: int


async def test_a_handler_always_finds_the_rows_of_the_transaction_that_enqueued_it(database: str) -> None:
    registry, found = awa.Registry(), []

    @registry.worker(Ship)
    async def ship(job: awa.Job[Ship]) -> None:
        async with job.client.transaction() as tx:
            found.append(await tx.fetchval("SELECT count(*) FROM orders WHERE id = $1", job.args.order_id))

    def order(number: int) -> int:
        with closing(psycopg.connect(database)) as connection:
            job = awa_psycopg.insert(connection, Ship(order_id=number))
            # The row comes after the job, and the transaction stays open for longer than an idle worker's look takes.
            connection.execute("INSERT INTO orders VALUES (%s)", [number])
            connection.execute("SELECT pg_sleep(0.05)")
            if number % 2 == 0:
                connection.commit()
            return job.id

    queue = awa.QueueConfig("default", poll_interval=0.005)
    async with working(database, registry, queue) as (client, _):
        async with client.transaction() as tx:
            await tx.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        kept = []
        for number in range(6):
            job_id = await trio.to_thread.run_sync(order, number)
            kept += [job_id] if number % 2 == 0 else []
        for job_id in kept:
            await becomes(client, job_id, awa.JobState.COMPLETED)
        assert await counted(client, awa.JobState.COMPLETED) == 3
    assert found == [1, 1, 1]
