"""A sender cancelled anywhere on its way leaves both or neither, a living dispatcher and a whole connection."""

import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio
from at_work import LIMIT, ask, becomes, working
from follow_up_jobs import Signup, Welcome, completed, enqueued
from small_load import new_instance, take

import awa_actors as awa
from awa_actors.actors.attempt import Attempt
from awa_actors.actors.follow_ups import FollowUps
from awa_actors.actors.messages import Ended
from awa_actors.actors.observers import Observers
from awa_actors.actors.recorder import Recorder
from awa_actors.config import DatabaseSettings
from awa_actors.core.outcome import COMPLETED
from awa_actors.jobs import JobState
from awa_actors.store.connection import OwnConnection
from awa_actors.store.follow_up_plan import Specs


def welcoming() -> awa.Registry:
    registry = awa.Registry()
    registry.on_completed_enqueue(Signup)(lambda event: Welcome(event.args.user_id))

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None: ...

    return registry


class CancelsAt(trio.abc.Instrument):
    """Cancels a scope when its task has been stepped a number of times."""

    def __init__(self, scope: trio.CancelScope, step: int) -> None:
        self.task = trio.lowlevel.current_task()
        self.scope, self.left = scope, step

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


@asynccontextmanager
async def cancelled_at(step: int) -> AsyncIterator[trio.CancelScope]:
    with trio.CancelScope() as scope:
        instrument = CancelsAt(scope, step)
        trio.lowlevel.add_instrument(instrument)
        try:
            yield scope
        finally:
            trio.lowlevel.remove_instrument(instrument)


@attrs.frozen
class Sender:
    """A recorder and its dispatcher, without a worker around them."""

    client: awa.Client
    follow_ups: FollowUps
    recorder: Recorder
    instance: uuid.UUID

    async def ended(self, n: int) -> Ended:
        """An attempt that has just completed."""
        job = await self.client.insert(Signup(n))
        async with self.client.pool.acquire() as session:
            (claimed,) = await take(session, self.instance, "signup", 1)
        assert claimed.job_id == job.id
        spec = self.client.registry.workers["signup"]
        attempt = Attempt(claimed, "signup", self.instance, spec, None, None)  # type: ignore[arg-type]  # runs nothing
        attempt.job = attempt._make_job()
        return Ended(attempt, COMPLETED, 0.1)


@asynccontextmanager
async def sending(url: str) -> AsyncIterator[Sender]:
    registry = welcoming()
    async with awa.open_client(url, registry=registry) as client, trio.open_nursery() as nursery:
        observers = Observers(registry)
        follow_ups = FollowUps(Specs(registry), client.pool, observers, "test")
        await nursery.start(follow_ups.run)
        _, mailbox = trio.open_memory_channel[Ended](0)
        recorder = Recorder("completer", OwnConnection(client.pool, "completer"), mailbox, follow_ups, observers, 3)
        async with client.pool.acquire() as session:
            instance = await new_instance(session)
        async with recorder.connection:
            yield Sender(client, follow_ups, recorder, instance)
        nursery.cancel_scope.cancel()


async def test_cancelling_a_recorder_at_any_step_leaves_both_or_neither(database: str) -> None:
    async with sending(database) as sender:
        step, committed = 0, 0
        while True:
            step += 1
            ended = await sender.ended(step)
            async with cancelled_at(step) as scope:
                await sender.recorder.record_surely([ended])
            is_completed = (await sender.client.admin.job(ended.attempt.claimed.job_id)).state is JobState.COMPLETED
            follow_ups = [one for one in await enqueued(sender.client) if one.args["user_id"] == step]
            assert len(follow_ups) == int(is_completed), f"step {step}"
            committed += is_completed
            # The dispatcher answers, and the recorder has a connection to go on with.
            with trio.fail_after(LIMIT):
                assert len(await sender.follow_ups.ask([completed()])) == 1
                assert await (await sender.recorder.connection.session()).fetchval("SELECT 1") == 1
            if not scope.cancelled_caught:
                break
            if not is_completed:
                # What was not written is kept for the last step, which writes it with its follow-up.
                assert sender.recorder.unwritten == [ended]
                await sender.recorder.record(await sender.recorder.connection.session(), [ended])
                assert len([one for one in await enqueued(sender.client) if one.args["user_id"] == step]) == 1
            sender.recorder.unwritten.clear()
        assert step > 5, "begin, complete, ask, insert and commit are places to be cancelled at"
        assert committed >= 1


async def test_cancelling_a_bare_question_at_any_step_harms_nobody(database: str) -> None:
    async with sending(database) as sender:
        for step in range(1, 30):
            answered = False
            async with cancelled_at(step):
                await sender.follow_ups.ask([completed()])
                answered = True
            with trio.fail_after(LIMIT):
                assert len(await sender.follow_ups.ask([completed()])) == 1
            if answered and step > 5:
                return
        raise AssertionError("the question never came to its end")


async def test_senders_that_hold_every_connection_of_the_pool_make_progress(database: str) -> None:
    """The dispatcher needs no connection of the pool, and the recorders have their own."""
    registry, holding, all_hold = awa.Registry(), 0, trio.Event()

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        nonlocal holding
        async with job.client.transaction() as tx:
            await tx.fetchval("SELECT 1")
            holding += 1
            if holding == 2:
                all_hold.set()
            await all_hold.wait()

    registry.on_completed_enqueue(Signup)(lambda event: Welcome(event.args.user_id))
    small = DatabaseSettings(pool_size=2)
    async with working(database, registry, awa.QueueConfig("signup", 2), database=small) as (client, _):
        jobs = await client.insert_many([Signup(n) for n in range(20)])
        for job in jobs:
            await becomes(client, job.id, JobState.COMPLETED)
        assert len(await enqueued(client)) == 20


async def test_askers_that_hold_every_connection_are_all_answered(database: str) -> None:
    async with sending(database) as sender:
        pool, waiting, everybody = sender.client.pool, 0, trio.Event()
        size = pool.settings.pool_size
        answers: list[int] = []

        async def hold_and_ask() -> None:
            nonlocal waiting
            async with pool.acquire() as session, session.transaction():
                waiting += 1
                if waiting == size:
                    everybody.set()
                await everybody.wait()
                answers.append(len(await sender.follow_ups.ask([completed()] * 100)))

        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                for _ in range(size):
                    nursery.start_soon(hold_and_ask)
        assert answers == [100] * size


async def test_a_stopping_worker_commits_what_its_handlers_finished_with_their_follow_ups(database: str) -> None:
    """Cancelled at once: what completed is recorded in the last step, after the dispatcher has gone."""
    registry, started, stopping = awa.Registry(), trio.Event(), threading.Event()

    @registry.worker(Signup)
    def sign_up(job: awa.Job[Signup]) -> None:
        trio.from_thread.run_sync(started.set)
        while not job.is_cancelled() and not stopping.is_set():
            stopping.wait(0.01)

    registry.on_completed_enqueue(Signup)(lambda event: Welcome(event.args.user_id))
    async with awa.open_client(database, registry=registry) as client:
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run_worker, awa.QueueConfig("signup"))
            job = await client.insert(Signup(1))
            await started.wait()
            nursery.cancel_scope.cancel()
            stopping.set()
        row = await client.admin.job(job.id)
        assert row.state is JobState.COMPLETED
        assert len(await enqueued(client)) == 1
        assert await ask(client, "SELECT count(*) FROM awa_queue.leases") == 0
