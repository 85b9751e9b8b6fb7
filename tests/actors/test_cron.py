"""The cron lane in running processes: it wakes for its fires, survives outages, and is only where schedules are."""

import datetime as dt
import os
import subprocess
import sys
from functools import partial

import attrs
import pytest
import trio
from at_work import LIMIT, until
from postgres_servers import Server
from schedules import EVERY_SECOND, SECOND, Report, nominal_times, scheduled, stored

import awa_actors as awa
from awa_actors.actors.maintenance import steps
from awa_actors.config import DatabaseSettings

SHORT = awa.MaintenanceSettings(lease=awa.LeaseTiming(lease=2.0, trust=1.5, renew=0.4, margin=0.3))


async def fires(client: awa.Client, name: str, more_than: int) -> list[dt.datetime]:
    """Wait until a schedule has fired more often than that."""

    async def enough() -> bool:
        return len(await nominal_times(client, name)) > more_than

    await until(enough, limit=3 * LIMIT)
    return await nominal_times(client, name)


def test_a_process_that_declares_no_schedule_has_no_cron_lane() -> None:
    class Listens:
        settings = DatabaseSettings()

    declared, bare = scheduled("nightly", "0 3 * * *"), awa.Registry()
    names = [
        [step.name for step in steps(Listens(), awa.MaintenanceSettings(), registry)]  # type: ignore[arg-type]  # all it reads
        for registry in (declared, bare)
    ]
    assert "cron" in names[0]
    assert "cron" not in names[1]
    assert names[0][0] == names[1][0] == "promote"


async def test_a_schedule_fires_and_a_worker_runs_its_job(database: str) -> None:
    registry = scheduled("seconds", EVERY_SECOND)
    ran: list[awa.Job[Report]] = []

    @registry.worker(Report)
    async def report(job: awa.Job[Report]) -> None:
        ran.append(job)

    async with awa.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
        worker: awa.Worker = await nursery.start(client.run_worker)
        await until(partial(enough, ran))
        assert ran[0].metadata["cron_name"] == "seconds"
        with trio.fail_after(LIMIT):
            await worker.drain()


async def enough(ran: list[awa.Job[Report]]) -> bool:
    return bool(ran)


@pytest.mark.slow
async def test_the_lane_wakes_for_each_fire_rather_than_at_its_interval(database: str) -> None:
    registry = scheduled("seconds", EVERY_SECOND)
    settings = attrs.evolve(SHORT, cron_interval=30.0)
    async with awa.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
        await nursery.start(partial(client.run_maintenance, settings=settings))
        times = await fires(client, "seconds", 3)
        assert times == [times[0] + n * SECOND for n in range(len(times))]
        late = [
            job.created_at - dt.datetime.fromisoformat(job.metadata["cron_fire_time"])
            for job in await client.admin.jobs()
        ]
        # The first fire may be of the minute before the schedule was there; the others are on time.
        assert max(sorted(late)[:-1]) < dt.timedelta(seconds=0.5)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_after_an_outage_every_missed_fire_is_caught_up_and_later_ones_are_on_time(
    server: Server, database: str
) -> None:
    registry = scheduled("seconds", EVERY_SECOND, missed_fire=awa.MissedFire.CATCH_UP)
    async with awa.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
        await nursery.start(partial(client.run_maintenance, settings=SHORT))
        before = await fires(client, "seconds", 1)
        await trio.to_thread.run_sync(server.restart)
        after = await fires(client, "seconds", len(before) + 2)
        assert after == [after[0] + n * SECOND for n in range(len(after))], "none is missing, none is there twice"
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_leader_that_goes_leaves_no_fire_out_and_none_is_doubled(database: str) -> None:
    registry = scheduled("seconds", EVERY_SECOND, missed_fire=awa.MissedFire.CATCH_UP)
    async with awa.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
        candidates: list[awa.Maintenance] = [
            await nursery.start(partial(client.run_maintenance, settings=SHORT)) for _ in range(3)
        ]
        for _ in range(4):
            seen = len(await nominal_times(client, "seconds"))
            await fires(client, "seconds", seen)
            for one in candidates:
                one.resign()
        times = await nominal_times(client, "seconds")
        assert times == [times[0] + n * SECOND for n in range(len(times))]
        assert sum(one.leader.terms for one in candidates) >= 4
        assert (await stored(client, "seconds")).enqueued == len(times)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_an_application_that_does_not_lead_the_lanes_still_has_its_schedules_decided(database: str) -> None:
    one, two = (scheduled(name, EVERY_SECOND, application=name) for name in ("one", "two"))
    async with (
        awa.open_client(database, registry=one) as first,
        awa.open_client(database, registry=two) as second,
        trio.open_nursery() as nursery,
    ):
        candidates: list[awa.Maintenance] = [
            await nursery.start(partial(client.run_maintenance, settings=SHORT)) for client in (first, second)
        ]
        await fires(first, "one", 2)
        await fires(first, "two", 2)
        assert sum(one.is_leader for one in candidates) == 1
        nursery.cancel_scope.cancel()


STABLE = """
import sys
sys.path[:0] = [".", "tests"]
import awa_actors as awa, datetime as dt
from awa_actors.core.cron import jitter_seconds
from awa_actors.store.cron import digest
from schedules import scheduled
registry = scheduled("nightly", "0 3 * * *", opts=awa.InsertOpts(unique=awa.UniqueOpts(), tags=["a"]), jitter=60.0)
spec = registry.schedules["nightly"]
print(digest("shop", spec), spec.job, jitter_seconds("nightly", dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 60.0))
"""


@pytest.mark.slow
def test_two_processes_mean_the_same_schedule_whatever_their_hash_seed() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", STABLE],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
