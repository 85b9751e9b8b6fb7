"""The numbers that dashboards read: complete at every instant, and cheap however much there is to count."""

import datetime as dt
import random

import attrs
import pytest
import trio
from small_load import COMPLETE, FAIL, NEVER_ENDING, RETRY, SNOOZE, again_and_again, end, new_instance, take, work

import awa_actors as awa
from awa_actors.actors.hygiene import Hygiene
from awa_actors.actors.refresh import Refresh
from awa_actors.config import MaintenanceSettings
from awa_actors.store.promote import promote
from awa_actors.store.refresh import refresh_kinds, refresh_queues

STATES = ("available", "running", "scheduled", "retryable", "waiting_external", "failed", "cancelled")
TOTAL = f"SELECT coalesce(sum({' + '.join(STATES)}), 0)::int FROM awa.queue_stats"


@attrs.frozen
class Mail:
    queue = "mail"
    n: int


@attrs.frozen
class Bill:
    queue = "bills"
    n: int


async def refreshed(client: awa.Client) -> tuple[dict[str, dict[str, object]], dict[str, dict[str, object]]]:
    """Count as the lane does; returns the rows of queues and of kinds."""
    async with client.pool.acquire() as session:
        await Refresh(1.0).run(session, 1)
    async with client.transaction() as tx:
        queues = {row["queue"]: dict(row) for row in await tx.fetch("SELECT * FROM awa.queue_stats")}
        kinds = {row["kind"]: dict(row) for row in await tx.fetch("SELECT * FROM awa.kind_stats")}
    return queues, kinds


async def test_every_state_is_counted_where_it_is(database: str) -> None:
    async with awa.open_client(database) as client:
        await client.insert_many([Mail(n) for n in range(20)])
        await client.insert_many([Bill(n) for n in range(3)])
        await client.insert(Mail(99), awa.InsertOpts(run_at=dt.timedelta(hours=1)))
        async with client.pool.acquire() as session:
            instance, dice = await new_instance(session), random.Random(1)
            attempts = await take(session, instance, "mail", 12)
            for ending, some in ((COMPLETE, attempts[:5]), (FAIL, attempts[5:7]), (RETRY, attempts[7:10])):
                await end(session, instance, some, [ending], dice)
        await client.admin.cancel((await client.admin.jobs(queue="bills"))[0].id)
        queues, kinds = await refreshed(client)
        assert [queues["mail"][state] for state in STATES] == [8, 2, 1, 3, 0, 2, 0]
        assert (queues["mail"]["completed_last_hour"], queues["mail"]["dead_letters"]) == (5, 0)
        assert (queues["bills"]["available"], queues["bills"]["cancelled"]) == (2, 1)
        oldest = min(job.run_at for job in await client.admin.jobs(queue="mail", state=awa.JobState.AVAILABLE))
        assert queues["mail"]["oldest_ready_at"] == oldest
        mail, bill = kinds["mail"], kinds["bill"]
        assert (mail["live"], mail["failed"], mail["completed_last_hour"], mail["queues"]) == (14, 2, 5, ["mail"])
        assert (bill["live"], bill["failed"], bill["queues"]) == (2, 0, ["bills"])


@pytest.mark.slow
async def test_counts_add_up_to_the_jobs_at_every_instant_of_a_busy_database(database: str) -> None:
    jobs = 300
    async with awa.open_client(database) as client:
        await client.insert_many([Mail(n) if n % 3 else Bill(n) for n in range(jobs)])
        hygiene = Hygiene(MaintenanceSettings(ring_turn=0.02))

        async def maintain() -> None:
            async with client.pool.acquire() as session:
                await promote(session, 50)
                await hygiene.run(session, 50)

        async with trio.open_nursery() as nursery, client.pool.acquire() as session:
            for seed in range(3):
                nursery.start_soon(work, client, ["mail", "bills"], NEVER_ENDING, seed)
            nursery.start_soon(again_and_again, maintain)
            seen: set[str] = set()
            for _ in range(60):
                await refresh_queues(session)
                await refresh_kinds(session)
                assert await session.fetchval(TOTAL) == jobs
                assert await session.fetchval("SELECT sum(live)::int FROM awa.kind_stats") == jobs
                for row in await session.fetch("SELECT * FROM awa.queue_stats"):
                    seen |= {state for state in STATES if row[state]}
            assert seen == {"available", "running", "scheduled", "retryable"}, "the load moved jobs about"
            nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_counts_and_rows_of_one_snapshot_agree_while_jobs_end(database: str) -> None:
    async with awa.open_client(database) as client:
        await client.insert_many([Mail(n) for n in range(3_000)])
        async with trio.open_nursery() as nursery, client.pool.acquire() as session:
            for seed in range(2):
                nursery.start_soon(work, client, ["mail"], (COMPLETE, SNOOZE, FAIL), seed)
            totals = set()
            for _ in range(15):
                await session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
                await session.execute("SELECT awa.refresh_queue_stats()")
                counted = await session.fetchval(TOTAL)
                assert counted == await session.fetchval("SELECT count(*) FROM awa.jobs WHERE state <> 'completed'")
                await session.execute("COMMIT")
                totals.add(counted)
            assert len(totals) > 1, "jobs completed meanwhile"
            nursery.cancel_scope.cancel()


async def test_a_queue_goes_from_the_numbers_with_its_last_job_and_its_last_completion(database: str) -> None:
    async with awa.open_client(database) as client:
        await client.insert(Mail(1))
        async with client.pool.acquire() as session:
            instance = await new_instance(session)
            await end(session, instance, await take(session, instance, "mail"), [COMPLETE], random.Random(1))
            queues, kinds = await refreshed(client)
            assert (queues["mail"]["completed_last_hour"], queues["mail"]["available"]) == (1, 0)
            assert (kinds["mail"]["completed_last_hour"], kinds["mail"]["live"]) == (1, 0)
            await session.execute("UPDATE awa_queue.done SET finalized_at = finalized_at - interval '61 minutes'")
        await refreshed(client)
        assert await refreshed(client) == ({}, {})


async def test_of_two_counts_at_once_one_is_made(database: str) -> None:
    async with awa.open_client(database) as client:
        await client.insert(Mail(1))
        async with client.pool.acquire() as one, client.pool.acquire() as other:
            async with one.transaction():
                assert await refresh_queues(one) == 1
                assert await refresh_queues(other) == 0
                assert await refresh_kinds(other) == 0
            assert await refresh_queues(other) == 1


@pytest.mark.slow
async def test_beyond_a_size_kinds_and_completions_are_estimated(database: str) -> None:
    async with awa.open_client(database) as client:
        jobs = 20_000
        await client.insert_many([Mail(n) for n in range(jobs)])
        async with client.pool.acquire() as session:
            instance = await new_instance(session)
            for _ in range(10):
                await end(session, instance, await take(session, instance, "mail", 1_000), [COMPLETE], random.Random(1))
            assert await refresh_kinds(session, exact_bytes=8192 * 40) == 1
            row = await session.fetchrow("SELECT live, completed_last_hour FROM awa.kind_stats")
            assert row["live"] == pytest.approx(jobs // 2, rel=0.6)
            assert row["completed_last_hour"] == pytest.approx(jobs // 2, rel=0.6)
            await refresh_kinds(session)
            assert tuple(await session.fetchrow("SELECT live, completed_last_hour FROM awa.kind_stats")) == (
                10_000,
                10_000,
            )
