"""What operators do to jobs they name by key, kind or queue."""

import datetime as dt
from contextlib import suppress
from typing import Any

import attrs
import pytest
from failing_jobs import Invoice, Payment, failed, failing

import awa_actors as awa
from awa_actors import bulk_admin
from awa_actors.errors import FollowUpError, UniqueConflict, UsageError
from awa_actors.jobs import JobState
from awa_actors.testing import abandon_one, work_one

BY_ARGS = awa.InsertOpts(unique=awa.UniqueOpts())
LATER = awa.InsertOpts(run_at=dt.timedelta(hours=1))


@attrs.frozen
class Refund:
    n: int


async def test_the_job_with_a_derived_key_is_cancelled_and_no_other(client: awa.Client) -> None:
    one = await client.insert(Payment(1), BY_ARGS)
    other = await client.insert(Payment(2), BY_ARGS)
    row = await client.admin.cancel_by_key("payment", args=Payment(1))
    assert row is not None
    assert (row.id, row.state) == (one.id, JobState.CANCELLED)
    assert (await client.admin.job(other.id)).state is JobState.AVAILABLE
    assert await client.admin.cancel_by_key("payment", args={"n": 1}) is None


async def test_an_explicit_key_and_a_queue_in_the_key_are_found_too(client: awa.Client) -> None:
    explicit = await client.insert(Payment(1), awa.InsertOpts(unique=awa.UniqueOpts(key="k")))
    by_queue = await client.insert(Payment(2), awa.InsertOpts(unique=awa.UniqueOpts(by_queue=True, by_period=7)))
    row = await client.admin.cancel_by_key(key="k")
    assert row is not None
    assert row.id == explicit.id
    row = await client.admin.cancel_by_key("payment", queue="default", args={"n": 2}, period=7)
    assert row is not None
    assert row.id == by_queue.id


async def test_a_running_job_that_holds_no_claim_is_found_by_its_key(client: awa.Client) -> None:
    only_waiting = frozenset({JobState.AVAILABLE})
    job = await client.insert(Payment(), awa.InsertOpts(unique=awa.UniqueOpts(key="k", states=only_waiting)))
    await abandon_one(client)
    row = await client.admin.cancel_by_key(key="k")
    assert row is not None
    assert row.id == job.id


async def test_a_key_is_cancelled_with_the_callers_transaction_or_not_at_all(client: awa.Client) -> None:
    job = await client.insert(Payment(1), BY_ARGS)
    with suppress(LookupError):
        async with client.transaction() as tx:
            assert await tx.cancel_by_key("payment", args=Payment(1)) is not None
            raise LookupError
    assert (await client.admin.job(job.id)).state is JobState.AVAILABLE
    async with client.transaction() as tx:
        assert await tx.cancel_by_key("payment", args=Payment(1), reason="sold out") is not None
        assert await tx.cancel_by_key("payment", args=Payment(1)) is None
    row = await client.admin.job(job.id)
    assert (row.state, row.errors[-1]["error"]) == (JobState.CANCELLED, "cancelled: sold out")


@pytest.mark.parametrize("wrong", [{}, {"kind": "payment", "key": "k"}])
async def test_a_key_is_either_derived_or_given(client: awa.Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="either the kind"):
        await client.admin.cancel_by_key(**wrong)


async def test_failed_jobs_of_a_kind_run_again_and_a_taken_key_stops_nobody(
    client: awa.Client, registry: awa.Registry
) -> None:
    failing(registry)
    key = awa.InsertOpts(unique=awa.UniqueOpts(key="one"))
    blocked, free = await failed(client, opts=key), await failed(client, Payment(1))
    other_kind = await failed(client, Invoice(), awa.InsertOpts(max_attempts=1))
    await client.insert(Payment(), key)
    done = await client.admin.retry_failed(kind="payment")
    assert (done.retried, list(done.reasons)) == (1, [blocked])
    states = {job: (await client.admin.job(job)).state for job in (blocked, free, other_kind)}
    assert states == {blocked: JobState.FAILED, free: JobState.AVAILABLE, other_kind: JobState.FAILED}
    with pytest.raises(UsageError, match="kind or a queue"):
        await client.admin.retry_failed()


async def test_discarding_takes_failed_jobs_and_dead_letters_of_one_kind(
    client: awa.Client, registry: awa.Registry
) -> None:
    failing(registry)
    await failed(client)
    dead = await failed(client, Payment(1))
    await client.admin.dead_letters.move(dead)
    kept = await failed(client, Invoice(), awa.InsertOpts(max_attempts=1))
    assert await client.admin.discard("payment") == 2
    assert await client.admin.discard("payment") == 0
    assert [job.id for job in await client.admin.jobs()] == [kept]


async def test_a_drain_cancels_all_that_waits_and_leaves_what_runs(client: awa.Client) -> None:
    running = await client.insert(Payment())
    await abandon_one(client)
    waiting = [await client.insert(Payment(n)) for n in range(3)]
    waiting.append(await client.insert(Payment(9), LATER))
    elsewhere = await client.insert(Payment(), awa.InsertOpts(queue="elsewhere"))
    done = await client.admin.drain_queue("default", "moving house")
    assert (done.cancelled, done.refused) == (4, {})
    rows = [await client.admin.job(job.id) for job in waiting]
    assert {row.state for row in rows} == {JobState.CANCELLED}
    assert rows[0].errors[-1]["error"] == "cancelled: moving house"
    assert (await client.admin.job(running.id)).state is JobState.RUNNING
    assert (await client.admin.job(elsewhere.id)).state is JobState.AVAILABLE
    assert (await client.admin.drain_queue("default")).cancelled == 0


async def test_a_drain_goes_on_from_page_to_page(client: awa.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_admin, "PAGE", 2)
    await client.insert_many([Payment(n) for n in range(5)])
    assert (await client.admin.drain_queue("default")).cancelled == 5


async def test_a_drained_job_has_its_follow_up_and_a_broken_one_stays_with_its_reason(
    client: awa.Client, registry: awa.Registry
) -> None:
    @registry.on_cancelled_enqueue(Payment)
    def refund(event: awa.events.Cancelled[Payment]) -> awa.Enqueue[Refund]:
        if event.args.n == 13:
            raise LookupError("no account")
        return awa.Enqueue(Refund(event.args.n), awa.InsertOpts(queue="refunds"))

    good = await client.insert(Payment(1))
    bad = await client.insert(Payment(13))
    done = await client.admin.drain_queue("default")
    assert done.cancelled == 1
    assert "no account" in done.refused[bad.id]
    assert (await client.admin.job(bad.id)).state is JobState.AVAILABLE
    assert (await client.admin.job(good.id)).state is JobState.CANCELLED
    assert [job.args for job in await client.admin.jobs(queue="refunds")] == [{"n": 1}]


async def test_a_cancel_in_a_transaction_happens_with_its_follow_up_or_not_at_all(
    client: awa.Client, registry: awa.Registry
) -> None:
    @registry.on_cancelled_enqueue(Payment)
    def refund(event: awa.events.Cancelled[Payment]) -> Refund:
        return Refund(event.args.n)

    job = await client.insert(Payment(1))
    with suppress(ZeroDivisionError):
        async with client.transaction() as tx:
            assert await tx.cancel(job.id) is not None
            raise ZeroDivisionError
    assert [row.state for row in await client.admin.jobs()] == [JobState.AVAILABLE]
    async with client.transaction() as tx:
        await tx.cancel(job.id, "changed my mind")
        assert await tx.cancel(job.id) is None
    assert {row.kind: row.state for row in await client.admin.jobs()} == {
        "payment": JobState.CANCELLED,
        "refund": JobState.AVAILABLE,
    }


async def test_a_broken_follow_up_undoes_a_cancel_in_a_transaction(client: awa.Client, registry: awa.Registry) -> None:
    @registry.on_cancelled_enqueue(Payment)
    def refund(event: awa.events.Cancelled[Payment]) -> Refund:
        raise LookupError("no account")

    job = await client.insert(Payment(1))
    with pytest.raises(FollowUpError, match="no account"):
        async with client.transaction() as tx:
            await tx.cancel(job.id)
    assert (await client.admin.job(job.id)).state is JobState.AVAILABLE


async def test_a_retry_in_a_transaction_is_undone_with_it(client: awa.Client, registry: awa.Registry) -> None:
    failing(registry)
    key = awa.InsertOpts(unique=awa.UniqueOpts(key="one"))
    job = await failed(client, opts=key)
    with suppress(ZeroDivisionError):
        async with client.transaction() as tx:
            assert await tx.retry(job) is not None
            raise ZeroDivisionError
    assert (await client.admin.job(job)).state is JobState.FAILED
    await client.insert(Payment(), key)
    with pytest.raises(UniqueConflict):
        async with client.transaction() as tx:
            await tx.retry(job)
    assert (await client.admin.job(job)).state is JobState.FAILED


async def test_a_page_is_full_while_jobs_match_whatever_lies_between(client: awa.Client) -> None:
    """A tag that one job in a hundred has must not give short pages."""
    tagged = []
    for n in range(4):
        tagged.append((await client.insert(Payment(n), awa.InsertOpts(tags=["rare"]))).id)
        await client.insert_many([Payment(n) for _ in range(100)])
    page = await client.admin.jobs(tag="rare", limit=3)
    assert [job.id for job in page] == tagged[:0:-1]
    assert [job.id for job in await client.admin.jobs(tag="rare", limit=3, before=page[-1].id)] == tagged[:1]


async def test_jobs_are_listed_by_the_time_they_were_inserted(client: awa.Client) -> None:
    first, second = await client.insert(Payment(1)), await client.insert(Payment(2))
    border = (await client.admin.job(second.id)).created_at
    assert [job.id for job in await client.admin.jobs(since=border)] == [second.id]
    assert [job.id for job in await client.admin.jobs(until=border)] == [first.id]
    with pytest.raises(UsageError, match="since"):
        await client.admin.jobs(since=dt.datetime(2030, 1, 1))  # noqa: DTZ001 - the naive one that is refused


async def test_a_worked_job_still_tells_its_story_after_a_rescue_and_a_retry(
    client: awa.Client, registry: awa.Registry
) -> None:
    failing(registry)
    job = await failed(client)
    await client.admin.retry(job)
    await work_one(client)
    records = await client.admin.history(job)
    assert [(one.attempt, one.outcome) for one in records] == [(1, "failed"), (1, "failed")]


async def test_a_job_that_moved_is_listed_once_and_where_it_is_now(client: awa.Client, registry: awa.Registry) -> None:
    failing(registry)
    job = await failed(client)
    await client.admin.dead_letters.move(job)
    await client.admin.dead_letters.retry(job, queue="again")
    assert [row.id for row in await client.admin.jobs()] == [job]
    assert [row.id for row in await client.admin.jobs(queue="again", kind="payment")] == [job]
    assert await client.admin.jobs(queue="default") == []


async def test_every_state_is_listed_and_only_that_state(client: awa.Client, registry: awa.Registry) -> None:
    failing(registry)
    await failed(client)
    await client.insert(Payment())
    await client.insert(Payment(), LATER)
    cancelled = await client.insert(Payment())
    await client.admin.cancel(cancelled.id)
    await abandon_one(client)
    await client.insert(Payment())
    counts = {state: len(await client.admin.jobs(state=state)) for state in JobState}
    expected = dict.fromkeys((JobState.FAILED, JobState.AVAILABLE, JobState.SCHEDULED), 1)
    expected |= dict.fromkeys((JobState.CANCELLED, JobState.RUNNING), 1)
    assert {state: count for state, count in counts.items() if count} == expected
