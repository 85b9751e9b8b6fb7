"""The testing kit's executor records what a worker would."""

import datetime as dt

import attrs
import pytest
import trio

import awa_actors as awa
from awa_actors.jobs import Completion, JobState
from awa_actors.testing import (
    Outcome,
    abandon_one,
    assert_enqueued,
    expire_instance_and_tick,
    refute_enqueued,
    work_all,
    work_one,
)


@attrs.frozen
class Signup:
    user_id: int


@attrs.frozen
class Welcome:
    user_id: int


async def test_a_job_is_run_and_what_follows_from_it_is_enqueued(client: awa.Client, registry: awa.Registry) -> None:
    seen: list[int] = []

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        seen.append(job.args.user_id)

    @registry.on_completed_enqueue(Signup)
    def welcome(event: awa.events.Completed[Signup]) -> Welcome:
        return Welcome(event.args.user_id)

    await client.insert(Signup(7))
    worked = await work_one(client, Signup)
    assert (worked.outcome, worked.error, seen) == (Outcome.COMPLETED, None, [7])
    assert worked.job.state is JobState.COMPLETED
    assert (await assert_enqueued(client, Welcome, user_id=7)).queue == "default"


async def test_only_the_asked_kind_is_taken_and_its_neighbours_are_not_touched(
    client: awa.Client, registry: awa.Registry
) -> None:
    @registry.worker(Welcome)
    async def welcome(job: awa.Job[Welcome]) -> None: ...

    first = await client.insert(Signup(1))
    await client.insert(Welcome(1))
    assert (await work_one(client, Welcome)).job.kind == "welcome"
    neighbour = await client.admin.job(first.id)
    assert (neighbour.state, neighbour.run_lease) == (JobState.AVAILABLE, 0)


async def test_the_more_urgent_job_is_first(client: awa.Client, registry: awa.Registry) -> None:
    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None: ...

    await client.insert(Signup(1))
    await client.insert(Signup(2), awa.InsertOpts(priority=1, queue="elsewhere"))
    assert (await work_one(client)).job.args == {"user_id": 2}


async def test_an_error_is_told_with_its_traceback(client: awa.Client, registry: awa.Registry) -> None:
    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        raise ValueError("no such user")

    await client.insert(Signup(1), awa.InsertOpts(max_attempts=1))
    worked = await work_one(client)
    assert worked.outcome is Outcome.EXHAUSTED
    assert worked.error is not None
    assert "ValueError: no such user" in worked.error


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (awa.RetryAfter(60), Outcome.RETRIED),
        (awa.Snooze(60), Outcome.SNOOZED),
        (awa.Cancel("gone"), Outcome.CANCELLED),
    ],
)
async def test_a_verdict_is_recorded_as_a_worker_records_it(
    client: awa.Client, registry: awa.Registry, verdict: awa.Verdict, outcome: Outcome
) -> None:
    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> awa.Verdict:
        return verdict

    await client.insert(Signup(1))
    assert (await work_one(client)).outcome is outcome


async def test_a_kind_without_a_handler_is_given_back(client: awa.Client) -> None:
    await client.insert(Signup(1))
    assert (await work_one(client)).outcome is Outcome.GIVEN_BACK


async def test_a_parked_job_waits_for_its_callback(client: awa.Client, registry: awa.Registry) -> None:
    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> awa.Verdict:
        return awa.WaitForCallback(await job.register_callback(expires_in=60))

    await client.insert(Signup(1))
    worked = await work_one(client)
    assert worked.outcome is Outcome.WAITING
    assert worked.job.callback_id is not None
    assert (await client.complete_external(worked.job.callback_id)).state is JobState.COMPLETED


async def test_a_handler_that_completes_its_own_job_is_believed_when_it_committed(
    client: awa.Client, registry: awa.Registry
) -> None:
    @registry.worker(Signup, completion=Completion.CALLER_OWNED)
    async def sign_up(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
        async with job.client.transaction() as tx:
            return await tx.complete(job)

    await client.insert(Signup(1))
    assert (await work_one(client)).outcome is Outcome.COMPLETED


async def test_a_broken_follow_up_is_the_outcome(client: awa.Client, registry: awa.Registry) -> None:
    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None: ...

    @registry.on_completed_enqueue(Signup)
    def welcome(event: awa.events.Completed[Signup]) -> Welcome:
        raise LookupError("no template")

    await client.insert(Signup(1))
    worked = await work_one(client)
    assert worked.outcome is Outcome.RETRIED
    assert "no template" in str(worked.error)


async def test_observers_have_seen_everything_before_the_answer(client: awa.Client, registry: awa.Registry) -> None:
    seen: list[str] = []

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None: ...

    @registry.on_event(Signup)
    async def watch(event: awa.Event[Signup]) -> None:
        seen.append(type(event).__name__)

    await client.insert(Signup(1))
    await work_one(client)
    assert seen == ["Started", "Completed"]


async def test_nothing_available_says_what_waits_instead(client: awa.Client) -> None:
    with pytest.raises(AssertionError, match="no job is available; no job waits"):
        await work_one(client)
    await client.insert(Signup(1), awa.InsertOpts(run_at=dt.timedelta(hours=1)))
    with pytest.raises(AssertionError, match=r"no welcome is available; what waits: job \d+ 'signup' \(scheduled"):
        await work_one(client, Welcome)


async def test_a_paused_queue_is_not_worked(client: awa.Client) -> None:
    await client.insert(Signup(1))
    await client.admin.pause_queue("default")
    with pytest.raises(AssertionError, match="no signup is available"):
        await work_one(client, Signup)


async def test_all_jobs_are_worked_those_that_follow_included(client: awa.Client, registry: awa.Registry) -> None:
    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None: ...

    @registry.worker(Welcome)
    def welcome(job: awa.Job[Welcome]) -> None: ...

    @registry.on_completed_enqueue(Signup)
    def follow(event: awa.events.Completed[Signup]) -> Welcome:
        return Welcome(event.args.user_id)

    await client.insert_many([Signup(1), Signup(2)])
    assert [one.job.kind for one in await work_all(client)] == ["signup", "signup", "welcome", "welcome"]
    assert await work_all(client) == []


async def test_a_handler_that_enqueues_itself_does_not_go_on_for_ever(
    client: awa.Client, registry: awa.Registry
) -> None:
    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        await job.client.insert(job.args)

    await client.insert(Signup(1))
    with pytest.raises(AssertionError, match="jobs are left after 3 attempts, the last one was 'signup'"):
        await work_all(client, limit=3)


async def test_a_cancelled_test_gives_the_job_back(client: awa.Client, registry: awa.Registry) -> None:
    started = trio.Event()

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        started.set()
        await trio.sleep_forever()

    job = await client.insert(Signup(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work_one, client)
        await started.wait()
        nursery.cancel_scope.cancel()
    row = await client.admin.job(job.id)
    assert (row.state, row.attempt, row.interrupted) == (JobState.AVAILABLE, 0, 1)


async def test_an_abandoned_job_is_rescued_and_runs_again(client: awa.Client, registry: awa.Registry) -> None:
    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None: ...

    await client.insert(Signup(1))
    assert (await abandon_one(client, Signup)).state is JobState.RUNNING
    report = await expire_instance_and_tick(client)
    assert report.done["rescue"] == 1
    worked = await work_one(client)
    assert (worked.outcome, worked.job.rescues) == (Outcome.COMPLETED, 1)


async def test_the_outcome_of_a_handler_that_lost_its_job_is_stale(client: awa.Client, registry: awa.Registry) -> None:
    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        await expire_instance_and_tick(job.client)

    await client.insert(Signup(1))
    assert (await work_one(client)).outcome is Outcome.STALE


async def test_what_is_enqueued_is_found_by_its_fields(client: awa.Client) -> None:
    await client.insert(Signup(1), awa.InsertOpts(priority=3))
    assert (await assert_enqueued(client, Signup, user_id=1)).priority == 3
    await refute_enqueued(client, Signup, user_id=2)
    await refute_enqueued(client, Welcome)
    with pytest.raises(AssertionError, match=r"no Signup is enqueued with user_id=2; what waits: job \d+ .*user_id"):
        await assert_enqueued(client, Signup, user_id=2)
    with pytest.raises(AssertionError, match=r"Signup is enqueued: job \d+"):
        await refute_enqueued(client, Signup)
    with pytest.raises(awa.errors.UsageError, match="Signup has no field 'user'"):
        await refute_enqueued(client, Signup, user=1)
