"""A broken follow-up is visible and bounded: it costs some runs of its handler, never the outcome, never other jobs."""

from typing import Any

import attrs
import pytest
import trio
from at_work import ask, becomes, until, working
from follow_up_jobs import Notice, Signup, Welcome, enqueued

import awa_actors as awa
from awa_actors.jobs import JobState
from awa_actors.store import follow_ups as store

WORKS = awa.QueueConfig("signup", poll_interval=0.02)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("awa_actors.actors.recorder.AGAIN_AFTER", 0.0)


def counting(registry: awa.Registry, ending: BaseException | None = None) -> list[int]:
    """A handler that notes its attempts."""
    runs: list[int] = []

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        runs.append(job.attempt)
        if ending is not None:
            raise ending

    return runs


def broken(event: Any) -> Welcome:
    raise LookupError("no address")


async def test_after_three_failures_the_outcome_stands_and_the_failure_is_recorded(database: str) -> None:
    registry = awa.Registry("shop")
    runs = counting(registry)
    registry.on_completed_enqueue(Signup)(broken)
    registry.on_completed_enqueue(Signup)(lambda event: Notice("the other one"))
    async with working(database, registry, WORKS, maintenance=True) as (client, _):
        job = await client.insert(Signup(1))
        row = await becomes(client, job.id, JobState.COMPLETED)
        assert runs == [1, 2, 3]
        assert len(row.errors) == 2
        assert all("shop:broken failed: LookupError: no address" in error["error"] for error in row.errors)
        (failure,) = await client.admin.follow_up_failures()
        assert (failure.job_id, failure.kind, failure.outcome, failure.spec) == (
            job.id,
            "signup",
            "completed",
            "shop:broken",
        )
        assert "no address" in failure.error
        # What could be had was enqueued, once.
        assert [one.args["text"] for one in await enqueued(client, "notice")] == ["the other one"]


async def test_the_last_attempt_is_not_lost_to_a_broken_follow_up(database: str) -> None:
    registry = awa.Registry()
    runs = counting(registry, ValueError("no"))
    registry.on_exhausted_enqueue(Signup)(broken)
    async with working(database, registry, WORKS) as (client, _):
        job = await client.insert(Signup(1), awa.InsertOpts(max_attempts=1))
        row = await becomes(client, job.id, JobState.FAILED)
        assert runs == [1]
        assert "ValueError: no" in row.errors[-1]["error"]
        (failure,) = await client.admin.follow_up_failures()
        assert failure.outcome == "exhausted"


async def test_the_error_that_could_not_be_committed_is_kept(database: str) -> None:
    registry = awa.Registry()
    counting(registry, awa.TerminalError("gone"))
    registry.on_exhausted_enqueue(Signup)(broken)
    settings = awa.WorkerSettings(follow_up_failures=2)
    async with working(database, registry, WORKS, settings=settings, maintenance=True) as (client, _):
        job = await client.insert(Signup(1))
        row = await becomes(client, job.id, JobState.FAILED)
        assert "no address" in row.errors[0]["error"]
        assert "TerminalError: gone" in row.errors[0]["error"]
        assert row.errors[1]["error"].startswith("TerminalError: gone")


async def test_a_broken_follow_up_of_a_retry_does_not_run_the_job_for_ever(database: str) -> None:
    registry = awa.Registry()
    runs = counting(registry, ValueError("no"))
    registry.on_retried_enqueue(Signup)(broken)
    async with working(database, registry, WORKS, maintenance=True) as (client, _):
        job = await client.insert(Signup(1), awa.InsertOpts(max_attempts=2))
        await until(lambda: client.admin.follow_up_failures())
        async with client.transaction() as tx:
            await tx.execute("UPDATE awa_queue.deferred_jobs SET run_at = clock_timestamp() WHERE job_id = $1", job.id)
        await becomes(client, job.id, JobState.FAILED)
        assert runs == [1, 2]


async def test_a_retry_for_a_broken_follow_up_has_its_own_follow_up(database: str) -> None:
    registry = awa.Registry()
    counting(registry)
    registry.on_completed_enqueue(Signup)(broken)
    registry.on_retried_enqueue(Signup)(lambda event: Notice(f"retried {event.attempt}"))
    async with working(database, registry, WORKS, maintenance=True) as (client, _):
        job = await client.insert(Signup(1))
        await becomes(client, job.id, JobState.COMPLETED)
        assert [one.args["text"] for one in await enqueued(client, "notice")] == ["retried 1", "retried 2"]


async def test_a_taken_unique_key_is_no_failure(database: str) -> None:
    registry = awa.Registry()
    runs = counting(registry)
    once = awa.InsertOpts(unique=awa.UniqueOpts(key="once"))
    registry.on_completed_enqueue(Signup)(lambda event: awa.Enqueue(Welcome(event.args.user_id), once))
    async with working(database, registry, WORKS) as (client, _):
        for n in (1, 2):
            job = await client.insert(Signup(n))
            await becomes(client, job.id, JobState.COMPLETED)
        assert runs == [1, 1]
        assert [one.args["user_id"] for one in await enqueued(client)] == [1]
        assert await client.admin.follow_up_failures() == []


async def test_a_taken_unique_key_is_a_failure_where_the_options_say_raise(database: str) -> None:
    registry = awa.Registry()
    runs = counting(registry)
    strict = awa.InsertOpts(unique=awa.UniqueOpts(key="once", on_conflict=awa.OnConflict.RAISE))
    registry.on_completed_enqueue(Signup)(lambda event: awa.Enqueue(Welcome(1), strict))
    registry.on_completed_enqueue(Signup)(lambda event: Notice("beside"))
    async with working(database, registry, WORKS, maintenance=True) as (client, _):
        holder = await client.insert(Welcome(0), strict)
        job = await client.insert(Signup(1))
        await becomes(client, job.id, JobState.COMPLETED)
        assert runs == [1, 2, 3]
        (failure,) = await client.admin.follow_up_failures()
        assert str(holder.id) in failure.error
        assert len(await enqueued(client)) == 1
        assert len(await enqueued(client, "notice")) == 1


@attrs.define
class Refusals:
    """Makes the next inserts of follow-ups fail with an error."""

    errors: list[awa.AwaError]
    calls: int = 0


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> Refusals:
    known, insert = Refusals([]), store.insert

    async def refuse(session: Any, jobs: Any) -> Any:
        known.calls += 1
        if known.errors:
            raise known.errors.pop(0)
        return await insert(session, jobs)

    monkeypatch.setattr(store, "insert", refuse)
    return known


async def test_a_transient_error_inside_the_transaction_is_tried_again_and_not_counted(
    database: str, refusals: Refusals
) -> None:
    registry = awa.Registry()
    runs = counting(registry)
    registry.on_completed_enqueue(Signup)(lambda event: Welcome(1))
    refusals.errors = [awa.TransientStoreError("deadlock (SQLSTATE 40P01)")] * 2
    async with working(database, registry, WORKS) as (client, _):
        job = await client.insert(Signup(1))
        await becomes(client, job.id, JobState.COMPLETED)
        assert (runs, refusals.calls) == ([1], 3)
        assert len(await enqueued(client)) == 1


async def test_one_refused_insert_fails_its_own_job_and_no_other_of_the_batch(database: str) -> None:
    registry, gate, running = awa.Registry(), trio.Event(), 0

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        nonlocal running
        running += 1
        if running >= 6:
            gate.set()
        await gate.wait()

    strict = awa.InsertOpts(unique=awa.UniqueOpts(key="taken", on_conflict=awa.OnConflict.RAISE))

    @registry.on_completed_enqueue(Signup)
    def follow(event: awa.events.Completed[Signup]) -> awa.Enqueue[Welcome]:
        return awa.Enqueue(Welcome(event.args.user_id), strict if event.args.user_id == 2 else awa.InsertOpts())

    settings = awa.WorkerSettings(follow_up_failures=1)
    async with working(database, registry, WORKS, settings=settings) as (client, _):
        await client.insert(Welcome(99), strict)
        jobs = await client.insert_many([Signup(n) for n in range(6)])
        for job in jobs:
            await becomes(client, job.id, JobState.COMPLETED)
        assert sorted(one.args["user_id"] for one in await enqueued(client)) == [0, 1, 3, 4, 5, 99]
        assert [failure.job_id for failure in await client.admin.follow_up_failures()] == [jobs[2].id]


async def test_notes_that_the_database_refuses_fail_their_own_job_and_the_worker_lives(database: str) -> None:
    """NUL is JSON but not text: one handler's progress must not take the worker down."""
    registry = awa.Registry()

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        if job.args.user_id == 1:
            job._progress = {"percent": 1, "message": "\0"}
            raise ValueError("no")

    registry.on_exhausted_enqueue(Signup)(lambda event: Notice(event.error[:40]))
    async with working(database, registry, WORKS) as (client, _):
        bad, good = await client.insert_many([Signup(1), Signup(2)])
        failed = await becomes(client, bad.id, JobState.FAILED)
        assert "could not be recorded as asked" in failed.errors[-1]["error"]
        await becomes(client, good.id, JobState.COMPLETED)
        assert [one.args["text"] for one in await enqueued(client, "notice")] == [failed.errors[-1]["error"][:40]]


async def test_a_recorded_failure_is_replayed_exactly_once(database: str) -> None:
    registry, is_fixed = awa.Registry(), False

    @registry.on_completed_enqueue(Signup)
    def follow(event: awa.events.Completed[Signup]) -> Welcome:
        if not is_fixed:
            raise LookupError("no address")
        return Welcome(event.args.user_id)

    counting(registry)
    settings = awa.WorkerSettings(follow_up_failures=1)
    async with working(database, registry, WORKS, settings=settings) as (client, _):
        job = await client.insert(Signup(5))
        await becomes(client, job.id, JobState.COMPLETED)
        (failure,) = await client.admin.follow_up_failures()

        with pytest.raises(awa.FollowUpError, match="no address"):
            await client.admin.replay_follow_up(failure.id)
        assert [one.id for one in await client.admin.follow_up_failures()] == [failure.id]

        is_fixed = True
        made: list[awa.InsertedJob] = []
        missed: list[awa.NotFound] = []

        async def replay() -> None:
            try:
                made.append(await client.admin.replay_follow_up(failure.id))
            except awa.NotFound as error:
                missed.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(replay)
        assert (len(made), len(missed)) == (1, 4)
        (welcome,) = await enqueued(client)
        assert (welcome.id, welcome.args, welcome.metadata["awa:follow_up_of"]) == (made[0].id, {"user_id": 5}, job.id)
        assert await client.admin.follow_up_failures() == []


async def test_a_failure_can_be_forgotten_and_is_not_replayed_without_its_spec(database: str) -> None:
    registry = awa.Registry()
    registry.on_completed_enqueue(Signup)(broken)
    counting(registry)
    async with working(database, registry, WORKS, settings=awa.WorkerSettings(follow_up_failures=1)) as (client, _):
        job = await client.insert(Signup(5))
        await becomes(client, job.id, JobState.COMPLETED)
        (failure,) = await client.admin.follow_up_failures()
        async with awa.open_client(database) as other:
            with pytest.raises(awa.UsageError, match="registered here"):
                await other.admin.replay_follow_up(failure.id)
            assert await other.admin.forget_follow_up(failure.id)
            assert not await other.admin.forget_follow_up(failure.id)
            with pytest.raises(awa.NotFound):
                await other.admin.replay_follow_up(failure.id)
        assert await ask(client, "SELECT count(*) FROM awa.follow_up_failures") == 0
