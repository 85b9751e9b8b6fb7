"""The lanes of a term on a real server: none delays another, a vital one that is down ends the term, ends are clean."""

import datetime as dt
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import psycopg
import pytest
import trio
from at_work import LIMIT, ask, becomes, until
from schedules import EVERY_SECOND, Report
from small_load import NEVER_ENDING, work

import awa_actors as awa
from awa_actors.actors.lane import Lane, StepReport
from awa_actors.config import DatabaseSettings
from awa_actors.errors import TransientStoreError

BUSY = awa.MaintenanceSettings(
    lease=awa.LeaseTiming(lease=60.0, trust=50.0, renew=1.0, margin=1.0),
    promote_interval=0.01,
    rescue_interval=0.01,
    hygiene_interval=0.01,
    refresh_interval=0.01,
    cron_interval=0.01,
    ring_turn=0.05,
)


STRANDED = """
WITH jobs AS MATERIALIZED (SELECT nextval('awa.job_id_seq') AS id FROM generate_series(1, $1)), bodied AS (
    INSERT INTO awa_queue.bodies (slot, priority, max_attempts, shard, job_id, created_at, kind, queue, args)
    SELECT awa_queue.current_slot('segments'), 2, 25, 0, id, clock_timestamp(), 'mail', 'mail', '{}' FROM jobs)
INSERT INTO awa_queue.leases (lslot, slot, attempt, frees_claim, job_id, run_lease, instance, claimed_at)
SELECT awa_queue.current_slot('leases'), awa_queue.current_slot('segments'), 1, false, id, 1, gen_random_uuid(), now()
FROM jobs
"""
"""Attempts of instances that nobody knows."""


@attrs.frozen
class Mail:
    queue = "mail"
    n: int = 0


@asynccontextmanager
async def leading(
    url: str,
    settings: awa.MaintenanceSettings = BUSY,
    registry: awa.Registry | None = None,
    database: DatabaseSettings | None = None,
) -> AsyncIterator[tuple[awa.Client, awa.Maintenance]]:
    """A process that leads, for the body."""
    async with awa.open_client(url, registry=registry, settings=database) as client, trio.open_nursery() as nursery:
        maintenance: awa.Maintenance = await nursery.start(partial(client.run_maintenance, settings=settings))
        with trio.fail_after(LIMIT):
            await maintenance.wait_leader()
        yield client, maintenance
        nursery.cancel_scope.cancel()


def lane(maintenance: awa.Maintenance, name: str) -> Lane:
    return next(one for one in maintenance.lanes if one.step.name == name)


async def happens(holds: Callable[[], bool]) -> None:
    async def asked() -> bool:
        return holds()

    await until(asked)


@pytest.mark.slow
async def test_a_lane_that_is_blocked_in_the_database_delays_no_other(database: str) -> None:
    registry = awa.Registry()
    registry.cron("seconds", EVERY_SECOND, Report())
    settings = attrs.evolve(BUSY, promote_interval=1.0, rescue_interval=0.2, hygiene_interval=0.2, cron_interval=1.0)
    patient = DatabaseSettings(lock_timeout=60.0, statement_timeout=60.0)
    async with leading(database, settings, registry, patient) as (client, maintenance):
        refresh = lane(maintenance, "refresh")
        with psycopg.connect(database) as blocker:
            blocker.execute("LOCK TABLE awa.queue_stats IN ACCESS EXCLUSIVE MODE")
            begun = trio.current_time()
            await happens(lambda: refresh.health.began is not None)
            passes = {one.step.name: one.health.passes for one in maintenance.lanes}
            job = await client.insert(Mail(), awa.InsertOpts(run_at=dt.timedelta(milliseconds=300)))
            due = (await client.admin.job(job.id)).run_at
            await becomes(client, job.id, awa.JobState.AVAILABLE)
            late = await ask(client, "SELECT ready_at - $1 FROM awa_queue.ready WHERE job_id = $2", due, job.id)
            assert late < dt.timedelta(milliseconds=250)
            before = lane(maintenance, "cron").health.done
            await happens(lambda: lane(maintenance, "cron").health.done >= before + 3)
            took = trio.current_time() - begun
            moved = {one.step.name: one.health.passes - passes[one.step.name] for one in maintenance.lanes}
            assert moved["refresh"] == 0
            for name in ("rescue", "hygiene"):
                assert moved[name] >= took / 0.2 / 2, moved
        await happens(lambda: refresh.health.passes > passes["refresh"])
        lateness = """
            SELECT max(b.created_at - (b.metadata ->> 'cron_fire_time')::timestamptz)
            FROM awa_queue.bodies b WHERE b.kind = 'report' AND b.created_at > clock_timestamp() - interval '3 seconds'
        """
        assert await ask(client, lateness) < dt.timedelta(seconds=1)


@attrs.define(eq=False)
class Broken:
    """A step that fails for as long as it is broken."""

    name: str
    interval: float = 0.1
    broken: bool = True

    async def run(self, session: Any, rows: int) -> StepReport:
        if self.broken:
            raise TransientStoreError("the disk is full")
        return StepReport()


@pytest.mark.slow
async def test_a_mass_failure_is_rescued_in_one_sweep_however_large(database: str) -> None:
    async with awa.open_client(database) as client, client.pool.acquire() as session:
        await session.execute(STRANDED, 5_000)
    # Far longer than anybody waits here: what comes back does so without a second sweep.
    settings = awa.MaintenanceSettings(rescue_interval=600.0, batch=500)
    async with leading(database, settings) as (client, _):
        await until(partial(ask, client, "SELECT NOT EXISTS (SELECT FROM awa_queue.leases)"), 3 * LIMIT)
        assert await ask(client, "SELECT count(*) FROM awa.jobs WHERE rescues = 1 AND attempt = 0") == 5_000


@pytest.mark.parametrize("name", ["promote", "rescue"])
async def test_a_vital_lane_that_stays_down_hands_the_term_to_another_process(database: str, name: str) -> None:
    settings = attrs.evolve(BUSY, lane_failures=2)
    async with leading(database, settings) as (_, sick):
        lane(sick, name).step = Broken(name)
        async with awa.open_client(database) as other, trio.open_nursery() as nursery:
            sound: awa.Maintenance = await nursery.start(partial(other.run_maintenance, settings=BUSY))
            with trio.fail_after(LIMIT):
                await sound.wait_leader()
            assert not sick.is_leader
            assert lane(sick, name).health.last_error == "the disk is full"
            nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_lane_that_is_not_vital_stays_down_alone_and_is_named(database: str) -> None:
    async with leading(database, attrs.evolve(BUSY, lane_failures=2)) as (_, maintenance):
        term, hygiene = maintenance.term, lane(maintenance, "hygiene")
        hygiene.step = broken = Broken("hygiene")
        await happens(lambda: hygiene.health.failures >= 4)
        lanes, details = maintenance.describe()
        assert [name for name, one in lanes.items() if not one["healthy"]] == ["hygiene"]
        assert lanes["hygiene"]["last_error"] == "the disk is full"
        assert (details["leader"], details["term"]) == (True, term)
        broken.broken = False
        await happens(lambda: hygiene.health.failures == 0)
        assert maintenance.describe()[0]["hygiene"]["healthy"]
        assert maintenance.term == term


OPEN_TRANSACTIONS = """
SELECT count(*) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.application_name LIKE 'awa_actors maintenance%' AND a.xact_start IS NOT NULL
"""


async def nothing_open(client: awa.Client) -> bool:
    return bool(await ask(client, OPEN_TRANSACTIONS) == 0)


def has_no_term(maintenance: awa.Maintenance) -> bool:
    return not maintenance.is_leader


async def whole(client: awa.Client) -> None:
    """Every connection of the pool can be had at once, and works."""

    async def one() -> None:
        async with client.pool.acquire() as session:
            assert await session.fetchval("SELECT 1") == 1
            arrived.append(None)
            await happens(lambda: len(arrived) == client.settings.pool_size)

    arrived: list[None] = []
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            for _ in range(client.settings.pool_size):
                nursery.start_soon(one)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["the term", "the process"])
async def test_lanes_end_within_a_second_wherever_they_are_and_leave_nothing_open(database: str, ending: str) -> None:
    dice = random.Random(ending)
    registry = awa.Registry()
    registry.cron("seconds", EVERY_SECOND, Report(), missed_fire=awa.MissedFire.CATCH_UP)
    async with awa.open_client(database, registry=registry) as client:
        await client.insert_many([Mail(n) for n in range(200)])
        for _ in range(12):
            async with trio.open_nursery() as load, trio.open_nursery() as nursery:
                load.start_soon(work, client, ["mail"], NEVER_ENDING, dice.randrange(1_000_000))
                maintenance: awa.Maintenance = await nursery.start(partial(client.run_maintenance, settings=BUSY))
                await maintenance.wait_leader()
                for _ in range(dice.randrange(400)):
                    await trio.lowlevel.checkpoint()
                began = trio.current_time()
                if ending == "the term":
                    maintenance.resign()
                    await happens(partial(has_no_term, maintenance))
                    assert trio.current_time() - began < 1.0
                nursery.cancel_scope.cancel()
                load.cancel_scope.cancel()
            assert trio.current_time() - began < 2.0
            async with awa.open_client(database) as watcher:
                # A server process needs a moment to notice that its client has cut the connection.
                await until(partial(nothing_open, watcher), limit=1.0)
        await whole(client)
