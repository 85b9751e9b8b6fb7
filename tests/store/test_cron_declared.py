"""Who owns a schedule, what a new release changes about it, and what operators do to it."""

import datetime as dt

import attrs
import pytest
from schedules import (
    EVERY_SECOND,
    SELDOM,
    Report,
    database_time,
    lane_of,
    nominal_times,
    one_pass,
    scheduled,
    set_mark,
    stored,
)

import awa_actors as awa


@attrs.frozen
class Audit:
    queue = "audits"
    year: int


async def test_another_applications_schedule_is_not_overwritten(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    owner = scheduled("nightly", SELDOM, Audit(1), application="billing")
    intruder = scheduled("nightly", EVERY_SECOND, application="shop")
    intruder.cron("own", EVERY_SECOND, Report())
    async with awa.open_client(database, registry=owner) as client:
        await one_pass(client, lane_of(owner))
        step = lane_of(intruder)
        for _ in range(3):
            report = await one_pass(client, step)
        assert report.blocked is not None
        assert "schedule 'nightly' belongs to application 'billing'" in report.blocked
        assert sum("'billing'" in record.getMessage() for record in caplog.records) == 1
        nightly = await stored(client, "nightly")
        assert (nightly.application, nightly.kind, nightly.enqueued) == ("billing", "audit", 0)
        assert (await stored(client, "own")).enqueued >= 1
        await client.admin.cron_remove("nightly")
        step._declared_at = -1e9  # the next sign of declaration is due
        assert (await one_pass(client, step)).blocked is None
        assert (await stored(client, "nightly")).application == "shop"


async def test_a_new_release_replaces_the_definition_and_an_old_process_does_not_put_it_back(database: str) -> None:
    old = lane_of(scheduled("nightly", "0 * * * *"))
    new = lane_of(scheduled("nightly", "30 * * * *"))
    async with awa.open_client(database) as client:
        await one_pass(client, old)
        first = await stored(client, "nightly")
        await one_pass(client, new)
        old._declared_at = -1e9  # its next sign of declaration is due
        await one_pass(client, old)
        now = await stored(client, "nightly")
        assert now.expression == "30 * * * *"
        assert now.updated_at > first.updated_at
        assert now.created_at == first.created_at


async def test_new_times_of_a_changed_expression_were_never_missed(database: str) -> None:
    async with awa.open_client(database) as client:
        await one_pass(client, lane_of(scheduled("changed", SELDOM, missed_fire=awa.MissedFire.CATCH_UP)))
        await set_mark(client, "changed", await database_time(client) - dt.timedelta(days=30))
        registry = scheduled("changed", "0 * * * *", missed_fire=awa.MissedFire.CATCH_UP)
        await one_pass(client, lane_of(registry))
        assert len(await nominal_times(client, "changed")) <= 1


async def test_a_schedule_that_no_code_declares_any_more_is_shown_as_stale_until_it_is_removed(database: str) -> None:
    async with awa.open_client(database) as client:
        await one_pass(client, lane_of(scheduled("gone", SELDOM)))
        assert not (await stored(client, "gone")).stale
        async with client.transaction() as tx:
            await tx.execute("UPDATE awa.cron_schedules SET declared_at = declared_at - interval '6 minutes'")
        assert (await stored(client, "gone")).stale
        await client.admin.cron_remove("gone")
        assert await client.admin.cron_list() == []


async def test_a_process_without_the_schedule_does_not_fire_it(database: str) -> None:
    async with awa.open_client(database) as client:
        await one_pass(client, lane_of(scheduled("one", SELDOM)))
        async with client.transaction() as tx:
            await tx.execute("UPDATE awa.cron_schedules SET expression = '* * * * * *'")
        assert (await one_pass(client, lane_of(scheduled("other", SELDOM)))).done == 0


async def test_a_trigger_works_while_paused_and_leaves_the_mark(database: str) -> None:
    async with awa.open_client(database) as client:
        registry = scheduled("nightly", SELDOM, Audit(7), opts=awa.InsertOpts(unique=awa.UniqueOpts()))
        await one_pass(client, lane_of(registry))
        await client.admin.cron_pause("nightly")
        before = await stored(client, "nightly")
        triggered = await client.admin.cron_trigger("nightly")
        job = await client.admin.job(triggered.id)
        assert (job.kind, job.queue, job.args) == ("audit", "audits", {"year": 7})
        assert (job.metadata["cron_name"], job.metadata["triggered_manually"]) == ("nightly", True)
        assert await stored(client, "nightly") == before
        with pytest.raises(awa.UniqueConflict) as conflict:
            await client.admin.cron_trigger("nightly")
        assert conflict.value.existing_job_id == triggered.id


@pytest.mark.parametrize("verb", ["cron_pause", "cron_resume", "cron_trigger", "cron_remove"])
async def test_a_verb_on_a_schedule_that_is_not_there_says_so(database: str, verb: str) -> None:
    async with awa.open_client(database) as client:
        with pytest.raises(awa.NotFound, match="there is no schedule 'nobody'"):
            await getattr(client.admin, verb)("nobody")


async def test_what_cannot_be_stored_is_refused_when_it_is_declared() -> None:
    registry = awa.Registry()
    with pytest.raises(awa.ValidationError, match=r"\$\.expression"):
        registry.cron("never", "0 0 30 2 *", Report())
    with pytest.raises(awa.ValidationError, match="priority"):
        registry.cron("urgent", "* * * * *", Report(), awa.InsertOpts(priority=9))
    with pytest.raises(awa.ValidationError, match="timedelta"):
        registry.cron("once", "* * * * *", Report(), awa.InsertOpts(run_at=dt.datetime.now(dt.UTC)))
    with pytest.raises(awa.ValidationError, match=r"\$\.jitter"):
        registry.cron("shaky", "* * * * *", Report(), jitter=-1.0)
    assert registry.schedules == {}
    registry.cron("good", "* * * * *", Report())
    with pytest.raises(awa.AlreadyRegistered):
        registry.cron("good", "* * * * *", Report())
