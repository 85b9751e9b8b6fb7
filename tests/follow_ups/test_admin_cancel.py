"""What an operator cancels is followed like any other cancellation."""

import pytest
import trio
from at_work import LIMIT, working
from follow_up_jobs import Notice, Signup, enqueued

import awa_actors as awa
from awa_actors.jobs import JobState


def following() -> awa.Registry:
    registry = awa.Registry("shop")

    @registry.on_cancelled_enqueue(Signup)
    def note(event: awa.events.Cancelled[Signup]) -> Notice:
        if event.args.user_id == 13:
            raise LookupError("no address")
        return Notice(f"{event.args.user_id} {event.reason} {event.job.state.value}")

    return registry


async def test_a_cancel_commits_with_its_follow_up(database: str) -> None:
    async with awa.open_client(database, registry=following()) as client:
        job = await client.insert(Signup(1))
        row = await client.admin.cancel(job.id, "not wanted")
        assert row is not None
        assert row.state is JobState.CANCELLED
        (notice,) = await enqueued(client, "notice")
        assert (notice.args["text"], notice.metadata["awa:follow_up_of"]) == ("1 not wanted cancelled", job.id)
        assert await client.admin.cancel(job.id) is None
        assert len(await enqueued(client, "notice")) == 1


async def test_a_broken_follow_up_refuses_the_cancel_and_says_why(database: str) -> None:
    async with awa.open_client(database, registry=following()) as client:
        job = await client.insert(Signup(13))
        with pytest.raises(awa.FollowUpError, match=r"shop:note.*no address"):
            await client.admin.cancel(job.id)
        assert (await client.admin.job(job.id)).state is JobState.AVAILABLE
        row = await client.admin.cancel(job.id, without_follow_ups=True)
        assert row is not None
        assert row.state is JobState.CANCELLED
        assert await enqueued(client, "notice") == []


async def test_args_that_do_not_fit_any_more_refuse_the_cancel(database: str) -> None:
    async with awa.open_client(database, registry=following()) as client:
        async with client.transaction() as tx:
            job_id = await tx.fetchval("""SELECT id FROM awa.insert_job('signup', '{"user_id": "x"}')""")
        with pytest.raises(awa.FollowUpError, match=r"\$\.user_id"):
            await client.admin.cancel(job_id)
        assert await client.admin.cancel(job_id, without_follow_ups=True) is not None


async def test_a_refused_cancel_of_a_running_job_leaves_its_handler_alone(database: str) -> None:
    registry, started, go = following(), trio.Event(), trio.Event()

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        started.set()
        await go.wait()

    async with working(database, registry, awa.QueueConfig("signup")) as (client, _):
        job = await client.insert(Signup(13))
        await started.wait()
        with pytest.raises(awa.FollowUpError):
            await client.admin.cancel(job.id)
        go.set()
    async with awa.open_client(database) as client:
        assert (await client.admin.job(job.id)).state is JobState.COMPLETED


async def test_observers_see_a_cancel_where_something_runs_on_the_client(database: str) -> None:
    registry, seen, observed = awa.Registry(), [], trio.Event()

    @registry.on_event(Signup)
    async def watch(event: awa.Event[Signup]) -> None:
        seen.append(event)
        observed.set()

    async with awa.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
        alone = await client.insert(Signup(1))
        await client.admin.cancel(alone.id)
        await nursery.start(client.run_maintenance)
        job = await client.insert(Signup(2))
        await client.admin.cancel(job.id, "why")
        with trio.fail_after(LIMIT):
            await observed.wait()
        nursery.cancel_scope.cancel()
    (event,) = seen
    assert isinstance(event, awa.events.Cancelled)
    assert (event.job.id, event.args, event.reason) == (job.id, Signup(2), "why")
    assert client.admin.watching == []
