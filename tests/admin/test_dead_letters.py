"""Dead letters: who becomes one, and what operators do about them."""

import datetime as dt

import pytest
from failing_jobs import Invoice, Payment, failed, failing

import awa_actors as awa
from awa_actors.errors import JobNotFound, UniqueConflict, UsageError, ValidationError
from awa_actors.jobs import JobState
from awa_actors.store import dead_letters, hygiene
from awa_actors.testing import work_one

ONE_KEY = awa.InsertOpts(unique=awa.UniqueOpts(key="one"))


@pytest.fixture
async def dying(client: awa.Client, registry: awa.Registry) -> awa.Client:
    """A client whose jobs all fail, on a queue whose failures become dead letters."""
    failing(registry)
    await client.admin.dead_letters.set_policy("default", enabled=True)
    return client


async def test_failures_stay_where_they_are_unless_the_queue_says_otherwise(
    client: awa.Client, registry: awa.Registry
) -> None:
    failing(registry)
    job = await failed(client)
    assert (await client.admin.job(job)).dlq_reason is None
    with pytest.raises(JobNotFound, match="is no dead letter"):
        await client.admin.dead_letters.show(job)


async def test_the_reason_says_how_a_job_died(dying: awa.Client) -> None:
    terminal = await failed(dying, Payment())
    exhausted = await failed(dying, Invoice(), awa.InsertOpts(max_attempts=1))
    reasons = {one.job.id: one.reason for one in await dying.admin.dead_letters.list()}
    assert reasons == {terminal: "terminal_error", exhausted: "max_attempts_exhausted"}


async def test_a_policy_is_told_and_taken_back(dying: awa.Client) -> None:
    letters = dying.admin.dead_letters
    await letters.set_policy("default", enabled=False, retention=60)
    (policy,) = await letters.policies()
    assert (policy.queue, policy.enabled, policy.retention) == ("default", False, 60.0)
    await failed(dying)
    assert await letters.list() == []
    with pytest.raises(ValidationError, match="retention"):
        await letters.set_policy("default", enabled=True, retention=0)


async def test_pages_hold_every_letter_once_newest_first(dying: awa.Client) -> None:
    ids = [await failed(dying, Payment(n)) for n in range(5)]
    seen: list[int] = []
    before = None
    while page := await dying.admin.dead_letters.list(limit=2, before=before):
        seen += [one.job.id for one in page]
        before = (page[-1].at, page[-1].job.id)
    assert seen == ids[::-1]


async def test_letters_are_filtered_and_counted(dying: awa.Client) -> None:
    letters = dying.admin.dead_letters
    tagged = await failed(dying, Payment(), awa.InsertOpts(tags=["vip"]))
    bill = await failed(dying, Invoice(), awa.InsertOpts(max_attempts=1))
    assert [one.job.id for one in await letters.list(tag="vip")] == [tagged]
    assert [one.job.id for one in await letters.list(kind="invoice")] == [bill]
    assert await letters.list(queue="elsewhere") == []
    (depth,) = await letters.depth()
    assert (depth.queue, depth.letters) == ("default", 2)
    assert await letters.depth("elsewhere") == ()
    with pytest.raises(UsageError, match="limit"):
        await letters.list(limit=0)


async def test_a_retried_letter_is_the_same_job_whose_lease_number_grows_on(dying: awa.Client) -> None:
    job = await failed(dying)
    row = await dying.admin.dead_letters.retry(job)
    assert (row.id, row.state, row.attempt, row.run_lease) == (job, JobState.AVAILABLE, 0, 1)
    assert (await work_one(dying)).job.run_lease == 2
    assert [one.job.id for one in await dying.admin.dead_letters.list()] == [job]


async def test_a_letter_is_redriven_elsewhere_and_later(dying: awa.Client) -> None:
    job = await failed(dying)
    later = dt.datetime(2130, 1, 1, tzinfo=dt.UTC)
    row = await dying.admin.dead_letters.retry(job, queue="slow", priority=4, run_at=later)
    assert (row.queue, row.priority, row.run_at, row.state) == ("slow", 4, later, JobState.SCHEDULED)
    with pytest.raises(JobNotFound, match="is no dead letter"):
        await dying.admin.dead_letters.retry(job)


async def test_a_taken_unique_key_leaves_the_letter_and_says_who_holds_it(dying: awa.Client) -> None:
    job = await failed(dying, opts=ONE_KEY)
    newer = await dying.insert(Payment(), ONE_KEY)
    with pytest.raises(UniqueConflict, match=f"job {newer.id} holds the unique key") as refused:
        await dying.admin.dead_letters.retry(job)
    assert refused.value.existing_job_id == newer.id
    assert (await dying.admin.dead_letters.show(job)).job.run_lease == 1


async def test_one_letter_that_cannot_be_retried_keeps_no_other_from_it(dying: awa.Client) -> None:
    blocked = await failed(dying, opts=ONE_KEY)
    free = [await failed(dying, Payment(n)) for n in (1, 2)]
    newer = await dying.insert(Payment(), ONE_KEY)
    done = await dying.admin.dead_letters.retry_bulk(kind="payment", to_queue="again")
    assert (done.retried, done.refused) == (2, 1)
    assert done.reasons == {blocked: f"job {newer.id} holds the unique key of job {blocked}"}
    assert [one.job.id for one in await dying.admin.dead_letters.list()] == [blocked]
    assert {(await dying.admin.job(one)).queue for one in free} == {"again"}


async def test_bulk_forms_go_on_from_page_to_page_past_what_stays(
    dying: awa.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PAGE", 1)
    blocked = await failed(dying, opts=ONE_KEY)
    for n in range(3):
        await failed(dying, Payment(n))
    await dying.insert(Payment(), ONE_KEY)
    done = await dying.admin.dead_letters.retry_bulk(all=True)
    assert (done.retried, list(done.reasons)) == (3, [blocked])
    assert await dying.admin.dead_letters.purge(all=True) == 1


async def test_a_mutation_without_a_filter_must_say_that_all_are_meant(dying: awa.Client) -> None:
    letters = dying.admin.dead_letters
    await failed(dying)
    for change in (letters.retry_bulk, letters.move, letters.purge):
        with pytest.raises(UsageError, match="no filter"):
            await change()
    assert await letters.purge(all=True) == 1
    assert await letters.purge(all=True) == 0


async def test_a_purge_takes_what_matches_and_gives_keys_back(dying: awa.Client) -> None:
    always = frozenset({JobState.AVAILABLE, JobState.RUNNING, JobState.FAILED})
    held = awa.InsertOpts(unique=awa.UniqueOpts(key="kept", states=always))
    await failed(dying, opts=held)
    with pytest.raises(UniqueConflict):
        await dying.insert(Payment(), held)
    assert await dying.admin.dead_letters.purge(queue="elsewhere") == 0
    assert await dying.admin.dead_letters.purge(kind="payment") == 1
    assert (await dying.insert(Payment(), held)).inserted


async def test_failed_jobs_are_moved_by_hand_and_cancelled_ones_are_not(
    client: awa.Client, registry: awa.Registry
) -> None:
    failing(registry)
    letters = client.admin.dead_letters
    one, other = await failed(client), await failed(client, Payment(1))
    cancelled = await client.insert(Payment())
    await client.admin.cancel(cancelled.id)
    assert await letters.move(one) == 1
    assert (await letters.show(one)).reason == "manual"
    assert await letters.move(cancelled.id) == 0
    assert await letters.move(all=True) == 1
    assert {letter.job.id for letter in await letters.list()} == {one, other}


async def test_each_queue_keeps_its_letters_as_long_as_it_says(dying: awa.Client) -> None:
    await dying.admin.dead_letters.set_policy("default", enabled=True, retention=0.000001)
    await dying.admin.dead_letters.set_policy("kept", enabled=True)
    await failed(dying)
    kept = await failed(dying, opts=awa.InsertOpts(queue="kept"))
    async with dying.pool.acquire() as session:
        await session.fetchrow(hygiene.FORGET, 100, 3600.0, 3600.0)
    assert [one.job.id for one in await dying.admin.dead_letters.list()] == [kept]
