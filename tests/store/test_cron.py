"""Schedules in the database: one job per nominal time, whoever evaluates and however often."""

import datetime as dt
import logging
from typing import Any

import attrs
import psycopg
import pytest
import trio
from schedules import (
    EVERY_SECOND,
    SECOND,
    Report,
    database_time,
    jobs_of,
    lane_of,
    nominal_times,
    one_pass,
    scheduled,
    set_mark,
    stored,
)

import awa_actors as awa
from awa_actors.actors.cron import Cron
from awa_actors.core.cron import CronExpression


@attrs.frozen
class Audit:
    queue = "audits"
    year: int


def hours_ago(now: dt.datetime, hours: int) -> dt.datetime:
    return now.replace(minute=0, second=0, microsecond=0) - dt.timedelta(hours=hours)


async def test_a_new_schedule_fires_for_the_minute_that_has_just_begun(database: str) -> None:
    registry = scheduled("minutely", "* * * * *")
    async with awa.open_client(database, registry=registry) as client:
        report = await one_pass(client, Cron(registry, 1e6))
        [fire] = await nominal_times(client, "minutely")
        now = await database_time(client)
        assert report.done == 1
        assert now - dt.timedelta(seconds=61) < fire <= now
        assert report.wait == pytest.approx((fire + 60 * SECOND - now).total_seconds(), abs=0.5), "until the next one"


async def test_a_fire_becomes_a_job_like_any_other(database: str) -> None:
    opts = awa.InsertOpts(
        queue="nights", priority=1, max_attempts=3, deadline=60, metadata={"why": "audit"}, tags=["a"], ordering_key="k"
    )
    registry = scheduled("nightly", "0 * * * *", Audit(2026), opts=opts)
    async with awa.open_client(database, registry=registry) as client:
        await one_pass(client, lane_of(registry))
        await set_mark(client, "nightly", hours_ago(await database_time(client), 1))
        await one_pass(client, lane_of(registry))
        job = (await jobs_of(client, "nightly"))[-1]
        twin = await client.admin.job((await client.insert(Audit(2026), opts)).id)
        for field in ("kind", "queue", "args", "priority", "max_attempts", "deadline", "tags", "unique_key", "state"):
            assert getattr(job, field) == getattr(twin, field)
        fire = hours_ago(await database_time(client), 0).isoformat()
        assert job.metadata == {"why": "audit", "cron_name": "nightly", "cron_fire_time": fire}


async def test_two_schedulers_without_a_leader_enqueue_every_nominal_second_once(database: str) -> None:
    registry = scheduled("seconds", EVERY_SECOND, missed_fire=awa.MissedFire.CATCH_UP)
    async with awa.open_client(database, registry=registry) as client:
        await one_pass(client, lane_of(registry))
        begin = (await database_time(client)).replace(microsecond=0) - 200 * SECOND
        async with client.transaction() as tx:
            await tx.execute("UPDATE awa.cron_schedules SET last_job_id = NULL")
        before = len(await nominal_times(client, "seconds"))
        await set_mark(client, "seconds", begin)

        async def evaluate() -> None:
            step = lane_of(registry)
            while (await stored(client, "seconds")).mark < begin + 200 * SECOND:  # type: ignore[operator]  # it has one
                await one_pass(client, step, rows=7)

        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(evaluate)
        times = await nominal_times(client, "seconds")
        fresh = [time for time in times if begin < time <= begin + 200 * SECOND]
        assert sorted(set(fresh)) == [begin + n * SECOND for n in range(1, 201)]
        assert len(fresh) - 200 == before == 1, "only the fire from before the mark was moved is there twice"


async def test_an_evaluation_that_comes_second_enqueues_nothing(database: str) -> None:
    registry = scheduled("hourly", "0 * * * *")
    async with awa.open_client(database, registry=registry) as client:
        await one_pass(client, lane_of(registry))
        await set_mark(client, "hourly", hours_ago(await database_time(client), 2))
        first = await one_pass(client, lane_of(registry))
        assert (first.done, (await one_pass(client, lane_of(registry))).done) == (1, 0)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(awa.MissedFire.COALESCE, [0]), (awa.MissedFire.CATCH_UP, [2, 1, 0]), (awa.MissedFire.SKIP, [])],
)
async def test_fires_that_nobody_was_there_for_follow_the_stored_policy(
    database: str, policy: awa.MissedFire, expected: list[int]
) -> None:
    # Half an hour away from now, so that no fire is on time.
    registry = awa.Registry()
    async with awa.open_client(database, registry=registry) as client:
        minute = ((await database_time(client)).minute + 30) % 60
        registry.cron("missed", f"{minute} * * * *", Report(), missed_fire=policy)
        step = lane_of(registry)
        await one_pass(client, step)
        now = await database_time(client)
        latest = CronExpression.parse(f"{minute} * * * *").latest_due(now - dt.timedelta(hours=2), now)
        assert latest is not None
        await set_mark(client, "missed", latest - dt.timedelta(hours=3))
        await one_pass(client, step)
        assert await nominal_times(client, "missed") == [latest - dt.timedelta(hours=n) for n in expected]
        assert (await stored(client, "missed")).mark == latest


async def test_catching_up_is_bounded_per_pass_and_says_so(database: str, caplog: pytest.LogCaptureFixture) -> None:
    registry = scheduled("seconds", EVERY_SECOND, missed_fire=awa.MissedFire.CATCH_UP)
    async with awa.open_client(database, registry=registry) as client:
        step = lane_of(registry)
        await one_pass(client, step)
        await set_mark(client, "seconds", await database_time(client) - 1_500 * SECOND)
        report = await one_pass(client, step)
        assert (report.done, report.more) == (1_000, True)
        assert "'seconds' has missed more than 1000 fires" in caplog.text
        report = await one_pass(client, step)
        assert report.done >= 499
        assert not report.more


@pytest.mark.parametrize(
    ("expression", "zone", "around", "expected"),
    [
        # 02:30 did not exist on 30 March 2025: the first instant after the gap.
        ("30 2 * * *", "Europe/Berlin", "2025-03-29T12:00+00:00", ["2025-03-30T01:00", "2025-03-31T00:30"]),
        # 02:30 existed twice on 26 October 2025: once, at the first.
        ("30 2 * * *", "Europe/Berlin", "2025-10-25T12:00+00:00", ["2025-10-26T00:30", "2025-10-27T01:30"]),
        # Every hour is every real hour, over a change of half an hour too.
        ("0 * * * *", "Australia/Lord_Howe", "2025-04-05T13:30+00:00", ["2025-04-05T14:00", "2025-04-05T15:30"]),
        # 30 December 2011 did not happen in Samoa: its noon is due as soon as the 31st begins.
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T12:00+00:00", ["2011-12-29T22:00", "2011-12-30T10:00"]),
    ],
)
async def test_fires_over_a_change_of_clocks_are_those_of_the_rule(
    database: str, expression: str, zone: str, around: str, expected: list[str]
) -> None:
    begin = dt.datetime.fromisoformat(around)
    registry = scheduled("zoned", expression, timezone=zone, missed_fire=awa.MissedFire.CATCH_UP)
    async with awa.open_client(database, registry=registry) as client:
        step = lane_of(registry)
        await one_pass(client, step)
        await set_mark(client, "zoned", begin)
        await one_pass(client, step, rows=2)
        fires = [fire for fire in await nominal_times(client, "zoned") if fire < begin + dt.timedelta(days=3)]
        assert [fire.isoformat()[:16] for fire in fires] == expected


async def test_the_session_zone_of_the_evaluator_does_not_matter(database: str) -> None:
    registry = scheduled("hourly", "0 * * * *", jitter=1e9)
    async with awa.open_client(database, registry=registry) as client, client.pool.acquire() as session:
        await session.execute("SET TimeZone = 'Asia/Kathmandu'")
        await session.execute("SET DateStyle = 'German, DMY'")
        step = lane_of(registry)
        await step.run(session, 10)
        await set_mark(client, "hourly", hours_ago(await database_time(client), 1))
        await step.run(session, 10)
        [fire] = await nominal_times(client, "hourly")
        assert fire == hours_ago(await database_time(client), 0)
        await session.execute("RESET ALL")


async def test_a_paused_schedule_fires_nothing_and_keeps_its_mark(database: str) -> None:
    registry = scheduled("hourly", "0 * * * *", missed_fire=awa.MissedFire.CATCH_UP)
    async with awa.open_client(database, registry=registry) as client:
        step = lane_of(registry)
        await one_pass(client, step)
        mark = hours_ago(await database_time(client), 3)
        await set_mark(client, "hourly", mark)
        await client.admin.cron_pause("hourly", by="ann")
        assert (await one_pass(client, step)).done == 0
        paused = await stored(client, "hourly")
        assert (paused.mark, paused.paused_by, paused.next_fire) == (mark, "ann", None)
        assert await client.admin.cron_resume("hourly")
        assert not await client.admin.cron_resume("hourly")
        assert (await one_pass(client, step)).done == 3


async def test_a_pause_that_comes_between_reading_and_firing_wins(database: str) -> None:
    registry = scheduled("hourly", "0 * * * *")
    async with awa.open_client(database, registry=registry) as client, client.pool.acquire() as session:
        from awa_actors.store import cron

        await one_pass(client, lane_of(registry))
        await set_mark(client, "hourly", hours_ago(await database_time(client), 2))
        [read] = await cron.read(session, ["hourly"])
        await client.admin.cron_pause("hourly")
        fired = await cron.fire(session, read, read.read_at, [read.read_at], [0.0])
        assert fired.outcome == "lost"
        assert len(await jobs_of(client, "hourly")) <= 1


async def test_the_mark_outlives_the_jobs(database: str) -> None:
    registry = scheduled("minutely", "* * * * *")
    async with awa.open_client(database, registry=registry) as client:
        await one_pass(client, lane_of(registry))
        await set_mark(client, "minutely", hours_ago(await database_time(client), 1))
        await one_pass(client, lane_of(registry))
        before = await stored(client, "minutely")
        async with client.transaction() as tx:
            for table in ("ready", "bodies"):
                await tx.execute(f"DELETE FROM awa_queue.{table}")
        await one_pass(client, lane_of(registry))
        assert all(fire > before.mark for fire in await nominal_times(client, "minutely") if before.mark)


async def test_jitter_delays_the_job_by_the_same_time_in_every_process(database: str) -> None:
    registry = scheduled("hourly", "0 * * * *", jitter=7_200.0, missed_fire=awa.MissedFire.CATCH_UP)
    async with awa.open_client(database, registry=registry) as client:
        from awa_actors.core.cron import jitter_seconds

        step = lane_of(registry)
        await one_pass(client, step)
        now = await database_time(client)
        await set_mark(client, "hourly", hours_ago(now, 6))
        await one_pass(client, step)
        jobs = await jobs_of(client, "hourly")
        assert len(jobs) == 6
        for job in jobs:
            fire = dt.datetime.fromisoformat(job.metadata["cron_fire_time"])
            due = fire + dt.timedelta(seconds=jitter_seconds("hourly", fire, 7_200.0))
            if job.state is awa.JobState.SCHEDULED:
                assert abs(job.run_at - due) < dt.timedelta(milliseconds=1)
            else:
                assert due <= await database_time(client)


async def test_a_delay_among_the_options_counts_from_the_nominal_time(database: str) -> None:
    registry = scheduled("hourly", "0 * * * *", opts=awa.InsertOpts(run_at=dt.timedelta(hours=5)))
    async with awa.open_client(database, registry=registry) as client:
        step = lane_of(registry)
        await one_pass(client, step)
        now = await database_time(client)
        await set_mark(client, "hourly", hours_ago(now, 1))
        await one_pass(client, step)
        job = (await jobs_of(client, "hourly"))[-1]
        assert job.state is awa.JobState.SCHEDULED
        assert job.run_at == hours_ago(now, -5)


async def test_a_fire_is_skipped_while_the_job_of_the_last_one_is_alive(database: str) -> None:
    registry = scheduled(
        "hourly", "0 * * * *", overlap=awa.Overlap.SKIP_IF_RUNNING, missed_fire=awa.MissedFire.CATCH_UP
    )
    async with awa.open_client(database, registry=registry) as client:
        step = lane_of(registry)
        await one_pass(client, step)
        now = await database_time(client)
        await set_mark(client, "hourly", hours_ago(now, 3))
        await one_pass(client, step)
        before = await stored(client, "hourly")
        assert (await one_pass(client, step)).done == 0
        await set_mark(client, "hourly", hours_ago(now, 1))
        assert (await one_pass(client, step)).done == 0
        after = await stored(client, "hourly")
        assert (after.skipped, after.enqueued, after.mark) == (before.skipped + 1, before.enqueued, hours_ago(now, 0))
        assert after.last_job_id is not None
        await client.admin.cancel(after.last_job_id)
        await set_mark(client, "hourly", hours_ago(now, 1))
        assert (await one_pass(client, step)).done == 1


async def test_a_unique_key_that_is_taken_is_counted_and_floods_no_log(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "awa_actors")
    registry = awa.Registry()
    registry.cron("taken", EVERY_SECOND, Audit(1), awa.InsertOpts(unique=awa.UniqueOpts()))
    registry.cron("healthy", EVERY_SECOND, Report())
    async with awa.open_client(database, registry=registry) as client:
        await client.insert(Audit(1), awa.InsertOpts(unique=awa.UniqueOpts()))
        step = lane_of(registry)
        await one_pass(client, step)
        for _ in range(3):
            now = await database_time(client)
            await set_mark(client, "taken", now - 5 * SECOND)
            await set_mark(client, "healthy", now - 5 * SECOND)
            report = await one_pass(client, step)
            assert (report.done, report.blocked) == (1, None)
        taken = await stored(client, "taken")
        assert (taken.enqueued, taken.taken, taken.last_error) == (0, 4, None)
        assert (await stored(client, "healthy")).enqueued == 4
        assert "taken" not in caplog.text


async def test_a_schedule_whose_job_cannot_be_stored_stops_no_other(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = awa.Registry()
    for name in ("a", "poison", "z"):
        registry.cron(name, EVERY_SECOND, Report())
    async with awa.open_client(database, registry=registry) as client:
        step = lane_of(registry)
        await one_pass(client, step)
        async with client.transaction() as tx:
            await tx.execute("UPDATE awa.cron_schedules SET priority = 9 WHERE name = 'poison'")
            await tx.execute("UPDATE awa.cron_schedules SET mark = mark - interval '5 seconds'")
        caplog.clear()
        assert (await one_pass(client, step)).done == 2
        poison = await stored(client, "poison")
        assert poison.refused == 1
        assert poison.last_error is not None
        for _ in range(3):
            report = await one_pass(client, step)
        assert report.blocked is not None
        assert report.blocked.startswith("schedule 'poison' its last fire was refused: ")
        assert [record.levelname for record in caplog.records] == ["WARNING"], "once, not each pass"


@pytest.mark.parametrize("harm", ["expression = 'never'", "timezone = 'Mars/Olympus'", "expression = '0 0 30 2 *'"])
async def test_a_stored_schedule_that_means_nothing_is_named_and_stops_no_other(
    database: str, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = awa.Registry()
    registry.cron("broken", EVERY_SECOND, Report())
    registry.cron("healthy", EVERY_SECOND, Report())
    async with awa.open_client(database, registry=registry) as client:
        step = lane_of(registry)
        await one_pass(client, step)
        async with client.transaction() as tx:
            await tx.execute(f"UPDATE awa.cron_schedules SET {harm}, digest = 'x' WHERE name = 'broken'")
            await tx.execute("UPDATE awa.cron_schedules SET mark = mark - interval '5 seconds'")
        for _ in range(3):
            report = await one_pass(client, step)
        assert report.blocked is not None
        assert "schedule 'broken' $." in report.blocked
        assert sum("'broken'" in record.getMessage() for record in caplog.records) == 1
        assert (await stored(client, "healthy")).enqueued >= 2
        broken = await stored(client, "broken")
        assert broken.next_fire is None
        assert broken.last_error is not None


async def test_a_schedule_that_waits_for_somebodys_transaction_holds_up_no_other(database: str) -> None:
    registry = awa.Registry()
    registry.cron("healthy", EVERY_SECOND, Report())
    registry.cron("waits", EVERY_SECOND, Audit(1), awa.InsertOpts(unique=awa.UniqueOpts()))
    async with awa.open_client(database, registry=registry) as client:
        step = lane_of(registry)
        await one_pass(client, step)
        async with client.transaction() as tx:
            await tx.execute("DELETE FROM awa.job_unique_claims")
        async with client.transaction() as tx:
            await tx.insert(Audit(1), awa.InsertOpts(unique=awa.UniqueOpts()))
            mark = (await database_time(client)).replace(microsecond=0) - 5 * SECOND
            await set_mark(client, "waits", mark)
            await set_mark(client, "healthy", mark)
            with trio.fail_after(2):
                assert (await one_pass(client, step)).done == 1
            assert (await stored(client, "waits")).mark == mark, "undecided: it is asked again"
        await one_pass(client, step)
        waits = await stored(client, "waits")
        assert (waits.taken, waits.enqueued) == (1, 1)


def blocked_by(url: str, statement: Any) -> psycopg.Connection[Any]:
    """A transaction that holds what a statement locks until its connection is closed."""
    connection = psycopg.connect(url)
    connection.execute(statement)
    return connection


async def test_a_row_that_an_operator_holds_locked_delays_only_its_schedule(database: str) -> None:
    registry = awa.Registry()
    registry.cron("locked", EVERY_SECOND, Report())
    registry.cron("healthy", EVERY_SECOND, Report())
    async with awa.open_client(database, registry=registry) as client:
        step: Cron = lane_of(registry)
        await one_pass(client, step)
        async with client.transaction() as tx:
            await tx.execute("UPDATE awa.cron_schedules SET mark = mark - interval '5 seconds'")
        holder = blocked_by(database, "SELECT FROM awa.cron_schedules WHERE name = 'locked' FOR UPDATE")
        with trio.fail_after(2):
            assert (await one_pass(client, step)).done == 1
        holder.close()
        assert (await one_pass(client, step)).done >= 1
