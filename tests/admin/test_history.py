"""What happened to a job, from its insertion to its end."""

import re

import pytest
from failing_jobs import Payment, failed, failing

import awa_actors as awa
from awa_actors.errors import JobNotFound, NotFound
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
