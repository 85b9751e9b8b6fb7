"""What happened to a job, from its insertion to its end."""

import re

import pytest
import trio
from at_work import becomes, working
from failing_jobs import Payment, failed, failing
from storage_states import make_canonical

import awa_actors as awa
from awa_actors.config import MaintenanceSettings
from awa_actors.errors import JobNotFound, NotFound
from awa_actors.jobs import JobState
from awa_actors.testing import abandon_one, expire_instance_and_tick, work_one


async def test_every_attempt_is_told_with_its_end_its_error_and_its_process(
    client: awa.Client, registry: awa.Registry
) -> None:
    tries = 0

    @registry.worker(Payment)
    async def pay(job: awa.Job[Payment]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("bank is closed")

    job = await client.insert(Payment())
    await work_one(client)
    await client.admin.retry(job.id)
    await abandon_one(client)
    (retried, running) = await client.admin.history(job.id)
    assert (retried.outcome, running.outcome, running.ended_at) == ("retried", "running", None)
    assert running.instance is not None
    await expire_instance_and_tick(client)
    await work_one(client)
    first, second, third = await client.admin.history(job.id)
    assert "bank is closed" in str(first.error)
    assert (second.outcome, second.rescue, second.instance) == ("rescued", "stale_instance", running.instance)
    assert (third.outcome, third.error) == ("completed", None)
    assert None not in (third.instance, running.instance)
    assert third.instance != running.instance
    async with client.transaction() as tx:
        await tx.execute("DELETE FROM awa.instances")
    assert re.fullmatch("#[0-9]+", str((await client.admin.history(job.id))[-1].instance))
    starts = [one.started_at for one in (first, second, third)]
    assert None not in starts
    assert starts == sorted(starts, key=str)


async def test_a_job_cancelled_while_it_waited_has_an_end_without_a_start(client: awa.Client) -> None:
    job = await client.insert(Payment())
    await client.admin.cancel(job.id, "not needed")
    (end,) = await client.admin.history(job.id)
    assert (end.outcome, end.started_at, end.error) == ("cancelled", None, "cancelled: not needed")


async def test_a_dump_holds_the_row_a_summary_and_a_timeline(client: awa.Client, registry: awa.Registry) -> None:
    failing(registry)
    await client.admin.dead_letters.set_policy("default", enabled=True)
    job = await failed(client)
    dump = await client.admin.dump(job)
    assert dump["job"]["id"] == job
    assert (dump["summary"]["can_retry"], dump["summary"]["can_cancel"]) == (True, False)
    assert dump["dead_letter"]["reason"] == "terminal_error"
    whats = [entry["what"] for entry in dump["timeline"]]
    assert whats == ["inserted", "attempt 1 started", "attempt 1 failed", "dead letter: terminal_error"]


async def test_one_attempt_is_dumped_and_an_unknown_one_is_refused(client: awa.Client, registry: awa.Registry) -> None:
    failing(registry)
    job = await failed(client)
    assert (await client.admin.dump_run(job))["outcome"] == "failed"
    assert (await client.admin.dump_run(job, 1))["attempt"] == 1
    with pytest.raises(NotFound, match="attempt 2"):
        await client.admin.dump_run(job, 2)
    fresh = await client.insert(Payment())
    with pytest.raises(NotFound, match="any attempt"):
        await client.admin.dump_run(fresh.id)
    with pytest.raises(JobNotFound):
        await client.admin.dump(999_999)


SWIFT = MaintenanceSettings(promote_interval=0.02, rescue_interval=0.05)


class _Stop(Exception):
    """The worker is stopped at once."""


@pytest.mark.slow
@pytest.mark.parametrize("plane", ["queue", "canonical"])
async def test_a_long_life_is_told_from_insertion_to_end(database: str, plane: str) -> None:
    if plane == "canonical":
        make_canonical(database)
    registry, tries, may_end = awa.Registry(), 0, trio.Event()

    @registry.worker(Payment)
    async def pay(job: awa.Job[Payment]) -> awa.Verdict:
        nonlocal tries
        tries += 1
        match tries:
            case 1 | 2 | 3:
                return awa.Snooze(0.01)
            case 4:  # until its worker is stopped
                await trio.sleep_forever()
            case 5:  # until long after its worker is held for dead
                with trio.CancelScope(shield=True):
                    await may_end.wait()
            case 6:
                raise ValueError("bank is closed")
        return None

    queue = awa.QueueConfig("default", poll_interval=0.02)
    try:
        async with working(database, registry, queue, maintenance=SWIFT) as (client, _):
            job = await client.insert(Payment())
            stopped = await becomes(client, job.id, JobState.RUNNING, lambda row: tries == 4)
            raise _Stop
    except* _Stop:
        pass
    async with working(database, registry, queue) as (client, _):
        killed = await becomes(client, job.id, JobState.RUNNING, lambda row: tries == 5)
        async with client.transaction() as tx:
            await tx.execute("UPDATE awa.instances SET dead_at = clock_timestamp() WHERE id = $1", str(killed.instance))
        await client.tick()
        await becomes(client, job.id, JobState.RETRYABLE)
        may_end.set()
    async with working(database, registry, queue, maintenance=SWIFT) as (client, _):
        await becomes(client, job.id, JobState.RETRYABLE, lambda row: row.attempt == 1)
        await client.admin.retry(job.id)
        await becomes(client, job.id, JobState.COMPLETED)
        told = await client.admin.history(job.id)
        dump = await client.admin.dump(job.id)
    assert [(one.outcome, one.attempt, one.count) for one in told] == [
        ("snoozed", 1, 3), ("interrupted", 1, 1), ("rescued", 1, 1), ("retried", 1, 1), ("completed", 1, 1),
    ]  # fmt: skip
    assert [one.rescue for one in told] == [None, None, "stale_instance", None, None]
    assert [one.instance for one in told[:3]] == [stopped.instance, stopped.instance, killed.instance]
    assert told[3].instance == told[4].instance not in (None, stopped.instance, killed.instance)
    instants = [instant for one in told for instant in (one.started_at, one.ended_at)]
    assert instants == sorted(instants, key=str)
    assert told[0].first_ended_at is not None
    assert [entry["what"] for entry in dump["timeline"]] == [
        "inserted", "attempt 1 started", "attempt 1 snoozed 3 times", "attempt 1 started", "attempt 1 interrupted",
        "attempt 1 started", "attempt 1 rescued", "attempt 1 started", "attempt 1 retried", "attempt 1 started",
        "attempt 1 completed",
    ]  # fmt: skip


async def test_neither_handlers_nor_retries_see_an_uncounted_end(client: awa.Client, registry: awa.Registry) -> None:
    seen: list[object] = []

    @registry.worker(Payment)
    async def pay(job: awa.Job[Payment]) -> awa.Verdict:
        seen.append((job.attempt, job.errors))
        return awa.Snooze(0) if len(seen) == 1 else None

    job = await client.insert(Payment())
    await work_one(client)
    worked = await work_one(client)
    assert seen == [(1, ()), (1, ())]
    assert worked.job.errors == ()
    dump = await client.admin.dump(job.id)
    assert (dump["summary"]["error_count"], dump["summary"]["latest_error"]) == (0, None)
    assert (await client.admin.dump_run(job.id))["outcome"] == "completed"


async def test_a_kind_that_nobody_knew_is_told_with_the_reason(client: awa.Client, registry: awa.Registry) -> None:
    job = await client.insert(Payment())
    await work_one(client)
    (first,) = await client.admin.history(job.id)
    assert (first.outcome, first.reason) == ("given_back", "its worker has no handler for this kind")
    assert (await client.admin.dump(job.id))["timeline"][-2]["reason"] == first.reason
