"""Every outcome of a worker's attempt commits together with what follows from it."""

import datetime as dt
from collections.abc import Callable, Coroutine
from typing import Any

import attrs
import pytest
import trio
from at_work import LIMIT, becomes, until, working
from follow_up_jobs import Notice, Signup, Welcome, enqueued

import awa_actors as awa
from awa_actors.jobs import JobState
from awa_actors.registry import Registry

Ending = Callable[[awa.Job[Signup]], Coroutine[Any, Any, awa.Verdict]]


async def returns(job: awa.Job[Signup]) -> None:
    return None


async def raises(job: awa.Job[Signup]) -> None:
    raise ValueError("no mail today")


async def asks_again(job: awa.Job[Signup]) -> awa.RetryAfter:
    return awa.RetryAfter(3600)


async def gives_up(job: awa.Job[Signup]) -> None:
    raise awa.TerminalError("gone")


async def cancels(job: awa.Job[Signup]) -> awa.Cancel:
    return awa.Cancel("not wanted")


async def parks(job: awa.Job[Signup]) -> awa.WaitForCallback:
    return awa.WaitForCallback(await job.register_callback(expires_in=3600))


async def snoozes(job: awa.Job[Signup]) -> awa.Snooze:
    return awa.Snooze(3600)


def following(registry: Registry, note: Callable[[awa.Event[Any]], str]) -> None:
    """Follow every outcome with a notice."""
    for outcome in ("completed", "retried", "exhausted", "cancelled", "waiting_for_callback", "rescued"):
        getattr(registry, f"on_{outcome}_enqueue")(Signup)(
            lambda event: Notice(f"{type(event).__name__} {note(event)}")
        )


OPTS = awa.InsertOpts(max_attempts=2)
LAST = awa.InsertOpts(max_attempts=1)


@pytest.mark.parametrize(
    ("handler", "opts", "state", "notice"),
    [
        (returns, OPTS, JobState.COMPLETED, "Completed True"),
        (raises, OPTS, JobState.RETRYABLE, "Retried ValueError: no mail today 1"),
        (asks_again, OPTS, JobState.RETRYABLE, "Retried asked to run again 1"),
        (raises, LAST, JobState.FAILED, "Exhausted ValueError: no mail today 1"),
        (gives_up, OPTS, JobState.FAILED, "Exhausted TerminalError: gone 1"),
        (cancels, OPTS, JobState.CANCELLED, "Cancelled not wanted"),
        (parks, OPTS, JobState.WAITING_EXTERNAL, "WaitingForCallback True"),
        (snoozes, OPTS, JobState.SCHEDULED, None),
    ],
)
async def test_an_outcome_commits_with_its_follow_up(
    database: str, handler: Ending, opts: awa.InsertOpts, state: JobState, notice: str | None
) -> None:
    def note(event: Any) -> str:
        match event:
            case awa.events.Completed():
                return str(event.duration >= 0 and event.job.state is state and event.args == Signup(1))
            case awa.events.Retried():
                assert event.next_run_at == event.job.run_at
                return f"{event.error.splitlines()[0]} {event.attempt}"
            case awa.events.Exhausted():
                return f"{event.error.splitlines()[0]} {event.attempt}"
            case awa.events.Cancelled():
                return str(event.reason)
        return str(bool(event.callback_id) and event.job.state is state)

    registry = awa.Registry()
    registry.worker(Signup)(handler)
    following(registry, note)
    async with working(database, registry, awa.QueueConfig("signup")) as (client, _):
        job = await client.insert(Signup(1), opts)
        await becomes(client, job.id, state)
        notices = await enqueued(client, "notice")
        assert [one.args["text"] for one in notices] == ([] if notice is None else [notice])
        for one in notices:
            assert one.metadata["awa:follow_up_of"] == job.id


async def test_follow_ups_come_in_registration_order_and_hooks_fire_as_well(database: str) -> None:
    registry, seen, observed = awa.Registry(), [], trio.Event()
    registry.worker(Signup)(returns)
    registry.on_completed_enqueue(Signup)(lambda event: Welcome(1))
    registry.on_completed_enqueue(Signup)(lambda event: awa.Enqueue(Welcome(2), awa.InsertOpts(priority=1)))
    registry.on_completed_enqueue(Signup)(lambda event: Welcome(3))

    @registry.on_event(Signup)
    async def watch(event: awa.Event[Signup]) -> None:
        seen.append(event)
        if isinstance(event, awa.events.Completed):
            observed.set()

    async with working(database, registry, awa.QueueConfig("signup")) as (client, _):
        job = await client.insert(Signup(1))
        with trio.fail_after(LIMIT):
            await observed.wait()
        assert [one.args["user_id"] for one in await enqueued(client)] == [1, 2, 3]
        assert [type(event).__name__ for event in seen] == ["Started", "Completed"]
        assert seen[1].job.id == job.id


async def test_the_event_shows_the_job_as_it_is_after_the_transition(database: str) -> None:
    registry, events = awa.Registry(), []

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        job.update_metadata(seen="yes")

    @registry.on_completed_enqueue(Signup)
    def follow(event: awa.events.Completed[Signup]) -> Welcome:
        events.append(event)
        return Welcome(1)

    async with working(database, registry, awa.QueueConfig("signup")) as (client, _):
        job = await client.insert(Signup(1), awa.InsertOpts(metadata={"from": "web"}, tags=["new"]))
        after = await becomes(client, job.id, JobState.COMPLETED)
    row = events[0].job
    assert (row.metadata, row.tags, row.finalized_at) == ({"from": "web", "seen": "yes"}, ("new",), after.finalized_at)


async def test_an_attempt_that_was_taken_away_commits_neither(database: str) -> None:
    registry, started, go = awa.Registry(), trio.Event(), trio.Event()
    following(registry, lambda event: "")

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        started.set()
        await go.wait()

    async with working(database, registry, awa.QueueConfig("signup")) as (client, _):
        job = await client.insert(Signup(1))
        await started.wait()
        async with client.transaction() as tx:
            # What a rescue by somebody else does, without telling the worker.
            await tx.execute("DELETE FROM awa_queue.leases WHERE job_id = $1", job.id)
        go.set()
    async with awa.open_client(database) as client:
        assert await enqueued(client, "notice") == []


async def test_one_broken_closure_fails_its_own_job_and_no_other_of_the_batch(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("awa_actors.actors.recorder.AGAIN_AFTER", 3600.0)
    registry, gate, running = awa.Registry(), trio.Event(), 0

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        nonlocal running
        running += 1
        if running == 20:
            gate.set()
        await gate.wait()

    @registry.on_completed_enqueue(Signup)
    def follow(event: awa.events.Completed[Signup]) -> Welcome:
        if event.args.user_id in (3, 11):
            raise LookupError(f"no address of {event.args.user_id}")
        return Welcome(event.args.user_id)

    async with working(database, registry, awa.QueueConfig("signup")) as (client, _):
        jobs = await client.insert_many([Signup(n) for n in range(20)])
        for n in (3, 11):
            again = await becomes(client, jobs[n].id, JobState.RETRYABLE)
            assert f"no address of {n}" in again.errors[-1]["error"]
        for n in set(range(20)) - {3, 11}:
            await becomes(client, jobs[n].id, JobState.COMPLETED)
        assert sorted(one.args["user_id"] for one in await enqueued(client)) == sorted(set(range(20)) - {3, 11})


async def test_follow_ups_of_follow_ups_end_at_the_bound_and_say_so(database: str) -> None:
    registry = awa.Registry(max_follow_up_depth=4)
    runs: list[int] = []

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        runs.append(job.args.user_id)

    registry.on_completed_enqueue(Signup)(lambda event: Signup(event.args.user_id + 1))
    async with working(database, registry, awa.QueueConfig("signup", poll_interval=0.05)) as (client, _):
        await client.insert(Signup(0))
        await until(lambda: client.admin.follow_up_failures())
        (failure,) = await client.admin.follow_up_failures()
        assert runs == [0, 1, 2, 3, 4], "the loop is cut without running a handler twice"
        assert "depth 4" in failure.error
        assert await client.admin.jobs(state=JobState.COMPLETED, kind="signup", limit=10)


async def test_a_retry_that_became_a_duplicate_commits_without_follow_up(database: str) -> None:
    """A newer job has taken the key that the failed attempt would need again: no event says so, and nothing breaks."""
    registry = awa.Registry()
    following(registry, lambda event: "")
    running_only = frozenset(JobState) - {JobState.RUNNING, JobState.FAILED, JobState.CANCELLED}
    opts = awa.InsertOpts(unique=awa.UniqueOpts(key="one", states=running_only))
    started, go = trio.Event(), trio.Event()

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        started.set()
        await go.wait()
        raise ValueError("again")

    async with working(database, registry, awa.QueueConfig("signup", 1)) as (client, _):
        job = await client.insert(Signup(1), opts)
        await started.wait()
        await client.insert(Signup(2), attrs.evolve(opts, run_at=dt.timedelta(hours=1)))
        go.set()
        ended = await becomes(client, job.id, JobState.CANCELLED)
        assert ended.errors[-1]["duplicate"] is True
        assert await enqueued(client, "notice") == []
