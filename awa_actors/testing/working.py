"""One job at a time through what workers run: the same claim, the same attempt, the same record of its end."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import trio

import awa_actors
from awa_actors import codec
from awa_actors.actors.crew import Crew
from awa_actors.actors.follow_ups import FollowUps
from awa_actors.actors.liveness import LivenessActor
from awa_actors.actors.messages import Ended
from awa_actors.actors.observers import Observers
from awa_actors.actors.recorder import MAILBOX, Recorder
from awa_actors.actors.tick import TickReport
from awa_actors.client import Client
from awa_actors.config import QueueConfig, WorkerSettings
from awa_actors.core.leaves import sole_leaf
from awa_actors.core.outcome import Outcome
from awa_actors.jobs import JobRow, JobState
from awa_actors.store import rehearsal
from awa_actors.store.caller_owned import attempt_state
from awa_actors.store.connection import OwnConnection
from awa_actors.store.follow_up_plan import Specs
from awa_actors.store.instances import Identity, leave, register
from awa_actors.store.promote import promote
from awa_actors.store.settle import release_instance

OBSERVERS_TAIL = 2.0
"""Seconds that observers get for the events of a job."""
EXIT_BOUND = 5.0
"""Seconds to record and sign off when the test was cancelled."""
LIMIT = 1_000
"""Jobs that `work_all` works unless told otherwise: more are a handler that enqueues itself."""

_BY_STATE = {
    JobState.COMPLETED: Outcome.COMPLETED,
    JobState.RETRYABLE: Outcome.RETRIED,
    JobState.FAILED: Outcome.EXHAUSTED,
    JobState.CANCELLED: Outcome.CANCELLED,
    JobState.WAITING_EXTERNAL: Outcome.WAITING,
}


@attrs.frozen
class Worked:
    """One attempt that was run.

    Args:
        outcome: what was recorded, which is not always what the handler asked for (a broken follow-up, for instance).
        job: the job as it is after it.
        error: text of the attempt's error, traceback included; None when it left none.
    """

    outcome: Outcome
    job: JobRow
    error: str | None


async def work_one(client: Client, args_type: type[Any] | None = None) -> Worked:
    """Run one available job as a worker would, follow-ups and observers included, and return when that is recorded.

    Jobs that are due are promoted first. Jobs in the future wait: nothing here changes the clock.

    Args:
        client: opened with the registry under test.
        args_type: only jobs of this args class; None takes the first of all, by priority and age.

    Raises:
        AssertionError: no such job is available; the message says what waits instead.

    Cancellation: the handler is cancelled, and its job goes back as after a stop of a worker.
    """
    kind = None if args_type is None else codec.args_type(args_type).kind
    worked = await _work(client, kind, 1)
    if not worked:
        raise AssertionError(f"no {kind or 'job'} is available; {await _instead(client)}")
    return worked[0]


async def work_all(client: Client, *, limit: int = LIMIT) -> list[Worked]:
    """Run jobs one after the other until none is available, those they enqueue included.

    Args:
        client: opened with the registry under test.
        limit: most attempts.

    Raises:
        AssertionError: there is still a job after `limit` attempts.
    """
    worked = await _work(client, None, limit)
    if len(worked) == limit:
        async with client.pool.acquire() as session:
            left = [job for job in await rehearsal.waiting(session, None) if job.state is JobState.AVAILABLE]
        if left:
            raise AssertionError(f"jobs are left after {limit} attempts, the last one was {worked[-1].job.kind!r}")
    return worked


async def abandon_one(client: Client, args_type: type[Any] | None = None) -> JobRow:
    """Claim one available job and leave it running, as a worker that was killed does.

    What comes next is :func:`expire_instance_and_tick`, which takes it back.

    Raises:
        AssertionError: no such job is available.
    """
    kind = None if args_type is None else codec.args_type(args_type).kind
    async with client.pool.acquire() as session:
        await promote(session, LIMIT)
        instance = await _registered(client, session)
        first = await rehearsal.claim_first(session, instance, kind)
    if first is None:
        raise AssertionError(f"no {kind or 'job'} is available; {await _instead(client)}")
    return await client.admin.job(first.claim.attempts[0].job_id)


async def expire_instance_and_tick(client: Client) -> TickReport:
    """Let every living process look dead and do one tick of maintenance: what they run is rescued.

    A handler may call it too; its own outcome is then stale, as after a long freeze.
    """
    async with client.pool.acquire() as session:
        await rehearsal.expire_instances(session)
    return await client.tick()


async def _instead(client: Client) -> str:
    async with client.pool.acquire() as session:
        jobs = await rehearsal.waiting(session, None)
    if not jobs:
        return "no job waits"
    return "what waits: " + "; ".join(
        f"job {job.id} {job.kind!r} ({job.state.value} on {job.queue}, run_at {job.run_at:%Y-%m-%d %H:%M:%SZ})"
        for job in jobs[:5]
    )


async def _registered(client: Client, session: Any) -> uuid.UUID:
    instance = uuid.uuid4()
    stale_after = WorkerSettings().liveness.stale_after
    kinds = tuple(client.registry.workers)
    me = Identity(
        instance, "testing", socket.gethostname(), os.getpid(), awa_actors.__version__, stale_after, kinds, {}, {}
    )
    await register(session, me)
    return instance


async def _work(client: Client, kind: str | None, limit: int) -> list[Worked]:
    worked: list[Worked] = []
    try:
        async with _open_rig(client) as rig:
            while len(worked) < limit and (one := await rig.work(kind)) is not None:
                worked.append(one)
        return worked
    except BaseExceptionGroup as group:
        leaf = sole_leaf(group)
        if leaf is None or isinstance(leaf, trio.Cancelled):
            raise
    raise leaf  # bare: the nurseries it came through say nothing to a test


@attrs.frozen(eq=False)
class _Rig:
    """What one attempt needs of a worker."""

    client: Client
    settings: WorkerSettings
    liveness: LivenessActor
    observers: Observers
    follow_ups: FollowUps
    control: OwnConnection
    writer: OwnConnection

    async def work(self, kind: str | None) -> Worked | None:
        """Claim, run, record; None when nothing is available."""
        session = await self.writer.session()
        while (await promote(session, LIMIT)).moved == LIMIT:
            pass
        first = await rehearsal.claim_first(session, self.liveness.instance, kind)
        if first is None:
            return None
        claimed = first.claim.attempts[0]
        send, ends = trio.open_memory_channel[Ended](MAILBOX)
        recorder = Recorder(
            "testing", self.writer, ends, self.follow_ups, self.observers, self.settings.follow_up_failures
        )
        ended: Ended | None = None
        try:
            await self._run(first, send)
        finally:
            with trio.move_on_after(EXIT_BOUND, shield=True):
                left = recorder.left_over()
                ended = left.pop() if left else None
                session = await self.writer.session()
                state, _ = await attempt_state(session, claimed.job_id, claimed.run_lease, self.liveness.instance)
                if ended is not None:
                    await recorder.record_surely([ended])
        job = await self.client.admin.job(claimed.job_id)
        return Worked(_outcome(ended, state == "live", job), job, _error(job, claimed.attempt))

    async def _run(self, first: rehearsal.FirstClaim, send: trio.MemorySendChannel[Ended]) -> None:
        """Run the attempt until its end was told, watched for cancellations like any other."""
        async with trio.open_nursery() as watching:
            async with trio.open_nursery() as attempts:
                crew = Crew(
                    self.client, self.client.pool, self.control, self.client.registry, self.settings, self.liveness,
                    self.observers, send, send, attempts, lambda: None,
                )  # fmt: skip
                watching.start_soon(crew.watch, name="watch running attempts")
                crew.start(first.claim.attempts[0], first.claim, QueueConfig(first.queue, 1), lambda: None)
            watching.cancel_scope.cancel()
        for late in crew.late:
            send.send_nowait(late)


def _outcome(ended: Ended | None, was_live: bool, job: JobRow) -> Outcome:
    if ended is None or not was_live:  # the handler's own transaction ended it, or somebody else did
        decided = _BY_STATE.get(job.state)
        return decided if decided in (Outcome.COMPLETED, Outcome.CANCELLED) else Outcome.STALE
    return _BY_STATE.get(job.state, ended.decision.outcome)


def _error(job: JobRow, attempt: int) -> str | None:
    if job.state is JobState.COMPLETED or not job.errors or job.errors[-1].get("attempt") != attempt:
        return None
    return str(job.errors[-1].get("error"))


@asynccontextmanager
async def _open_rig(client: Client) -> AsyncIterator[_Rig]:
    pool, settings = client.pool, WorkerSettings()
    observers = Observers(client.registry, client.admin.watching)
    follow_ups = FollowUps(Specs(client.registry), pool, observers, "testing")
    async with pool.acquire() as session:
        instance = await _registered(client, session)
    liveness = LivenessActor(
        pool, "testing", awa_actors.__version__, settings.liveness, settings.loop_stall_limit,
        tuple(client.registry.workers), {}, instance=instance,
    )  # fmt: skip
    async with (
        OwnConnection(pool, "testing attempts") as control,
        OwnConnection(pool, "testing recorder") as writer,
        trio.open_nursery() as services,
    ):
        await services.start(partial(follow_ups.run), name="follow-up dispatcher")
        await services.start(observers.run, name="observers")
        try:
            yield _Rig(client, settings, liveness, observers, follow_ups, control, writer)
        finally:
            with trio.move_on_after(EXIT_BOUND, shield=True):
                observers.close()
                with trio.move_on_after(OBSERVERS_TAIL):
                    await observers.ended.wait()
                session = await writer.session()
                await release_instance(session, instance)
                await leave(session, instance)
            services.cancel_scope.cancel()
