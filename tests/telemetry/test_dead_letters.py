"""Dead letters are counted by whoever makes them, runs them again, or deletes them."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
import trio
from at_work import LIMIT, becomes
from callback_jobs import dying
from failing_jobs import Payment, failed, failing

import awa_actors as awa
from awa_actors.config import MaintenanceSettings
from awa_actors.jobs import JobState
from awa_actors.testing import abandon_one

EVERY_QUEUE = "INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('default', true), ('other', true)"


@pytest.fixture
def registry() -> awa.Registry:
    registry = awa.Registry()
    failing(registry)
    return registry


@pytest.fixture
async def client(database: str, registry: awa.Registry, observatory: Any) -> AsyncIterator[awa.Client]:
    async with awa.open_client(database, registry=registry, telemetry=observatory.telemetry) as opened:
        async with opened.transaction() as tx:
            await tx.execute(EVERY_QUEUE)
        yield opened


async def test_a_worker_counts_what_it_buries(client: awa.Client, observatory: Any) -> None:
    async with trio.open_nursery() as nursery:
        worker = await nursery.start(client.run_worker, awa.QueueConfig("default", poll_interval=0.02))
        first = await client.insert(Payment())
        last = await client.insert(Payment(), awa.InsertOpts(queue="unkept"))
        await becomes_dead(client, first.id)
        with trio.fail_after(LIMIT):
            await worker.drain()
    assert (await client.admin.job(last.id)).state is JobState.AVAILABLE
    assert observatory.values("awa.job.dlq_moved") == {("terminal_error", "payment", "default"): 1}
    assert client.meters.describe()["dlq_moved"] == 1


async def becomes_dead(client: awa.Client, job_id: int) -> None:
    row = await becomes(client, job_id, JobState.FAILED)
    assert row.dlq_reason == "terminal_error"


async def test_a_rescue_counts_what_it_buries(client: awa.Client, observatory: Any) -> None:
    await client.insert(Payment())
    for _ in range(2):
        await abandon_one(client)
        await expire_instances(client)
        await client.tick(settings=MaintenanceSettings(rescue_bound=1))
    assert observatory.values("awa.job.dlq_moved") == {("rescue_bound", "payment", "default"): 1}


async def expire_instances(client: awa.Client) -> None:
    async with client.transaction() as tx:
        await tx.execute("UPDATE awa.instances SET dead_at = clock_timestamp()")


async def test_operators_are_counted_by_the_queue_that_held_the_letters(client: awa.Client, observatory: Any) -> None:
    other = awa.InsertOpts(queue="other")
    one, two = await failed(client), await failed(client)
    three, _ = await failed(client, opts=other), await failed(client, opts=other)
    unkept = await failed(client, opts=awa.InsertOpts(queue="unkept"))
    letters = client.admin.dead_letters
    await letters.retry(one, queue="slow")
    await client.admin.retry(two)
    async with client.transaction() as tx:
        await tx.retry(three)
    assert (await letters.retry_bulk(all=True, to_queue="slow")).retried == 1
    assert observatory.values("awa.job.dlq_retried") == {("default",): 2, ("other",): 2}
    assert await letters.move(unkept) == 1
    assert observatory.values("awa.job.dlq_moved") == {("manual", "payment", "unkept"): 1}
    assert await letters.purge(queue="unkept") == 1
    assert observatory.values("awa.job.dlq_purged") == {("unkept",): 1}


async def test_discarded_jobs_count_where_they_were_letters(client: awa.Client, observatory: Any) -> None:
    await failed(client)
    await client.admin.dead_letters.set_policy("default", enabled=False)
    await failed(client)
    assert await client.admin.discard("payment") == 2
    assert observatory.values("awa.job.dlq_purged") == {("default",): 1}


async def test_jobs_that_were_no_letters_are_not_counted(client: awa.Client, observatory: Any) -> None:
    await client.admin.dead_letters.set_policy("default", enabled=False)
    await client.admin.retry(await failed(client))
    assert observatory.values("awa.job.dlq_retried") == {}
    assert observatory.values("awa.job.dlq_moved") == {}


@pytest.mark.parametrize("by", ["client", "transaction"])
async def test_a_callback_that_fails_its_job_counts(
    client: awa.Client, database: str, observatory: Any, by: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        job = dying(connection)
    if by == "client":
        await client.fail_external(job.callback_id, "no")
    else:
        async with client.transaction() as tx:
            await tx.fail_external(job.callback_id, "no")
    ((reason, kind, _),) = observatory.values("awa.job.dlq_moved")
    assert (reason, kind) == ("external_fail", "errand")
