"""The worker: runs handlers for a set of queues, and stands for maintenance too unless told not to.

Two endings. `drain` stops claiming, lets handlers finish with beats and cancellation still on, flushes, and is done.
Cancelling
the scope of `run` stops now: handlers are cancelled in their scopes, and what became of them is recorded in one
shielded, bounded step.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import attrs
import trio

import awa_actors
from awa_actors.actors.crew import Crew
from awa_actors.actors.dispatcher import Dispatcher
from awa_actors.actors.follow_ups import MAILBOX as FOLLOW_UPS_MAILBOX
from awa_actors.actors.follow_ups import FollowUps
from awa_actors.actors.listener import Listener
from awa_actors.actors.liveness import LivenessActor
from awa_actors.actors.maintenance import Maintenance
from awa_actors.actors.messages import Ended, FollowUpMessage
from awa_actors.actors.observers import Observers
from awa_actors.actors.recorder import MAILBOX, Recorder
from awa_actors.config import MaintenanceSettings, QueueConfig, WorkerSettings
from awa_actors.core.channels import queue_channel
from awa_actors.core.outcome import Cause
from awa_actors.errors import StoreError
from awa_actors.registry import Registry
from awa_actors.store.connection import OwnConnection
from awa_actors.store.migrate import check
from awa_actors.store.pool import Pool
from awa_actors.store.settle import release_instance

OBSERVERS_TAIL = 2.0
"""Seconds a drained worker waits for events that observers have not seen yet."""

logger = logging.getLogger("awa_actors.worker")


@attrs.define(eq=False)
class Worker:
    """A running worker, as `nursery.start(client.run_worker)` gives it."""

    instance: str
    queues: tuple[str, ...]
    maintenance: Maintenance | None
    _draining: trio.Event = attrs.field(factory=trio.Event)
    _ended: trio.Event = attrs.field(factory=trio.Event)
    _crew: Crew | None = None

    @property
    def running(self) -> int:
        """Handlers running now."""
        return 0 if self._crew is None else len(self._crew.running)

    @property
    def running_jobs(self) -> list[int]:
        """Ids of the jobs whose handlers run now."""
        return [] if self._crew is None else [job_id for job_id, _ in self._crew.running]

    @property
    def beating(self) -> bool:
        """Whether the stored beat is so fresh that nobody takes this process for dead."""
        return self._crew is not None and self._crew.may_claim()

    async def drain(self) -> None:
        """Stop claiming, let handlers finish, flush; returns when `run_worker` has ended.

        Cancellation: the drain goes on; cancel the scope of `run_worker` to stop now.
        """
        self._draining.set()
        await self._ended.wait()


@attrs.frozen(eq=False)
class _Mailboxes:
    """The channels between a worker's actors; senders are closed by whoever holds them."""

    completions: tuple[trio.MemorySendChannel[Ended], trio.MemoryReceiveChannel[Ended]]
    others: tuple[trio.MemorySendChannel[Ended], trio.MemoryReceiveChannel[Ended]]
    questions: tuple[trio.MemorySendChannel[FollowUpMessage], trio.MemoryReceiveChannel[FollowUpMessage]]

    @classmethod
    def open(cls) -> _Mailboxes:
        """Open all of them."""
        return cls(
            trio.open_memory_channel[Ended](MAILBOX),
            trio.open_memory_channel[Ended](MAILBOX),
            trio.open_memory_channel[FollowUpMessage](FOLLOW_UPS_MAILBOX),
        )


@attrs.frozen(eq=False)
class WorkerActor:
    """Everything one worker needs to run."""

    client: Any
    pool: Pool
    registry: Registry
    queues: Sequence[QueueConfig]
    settings: WorkerSettings
    maintenance: MaintenanceSettings | None

    async def run(self, *, task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until drained or cancelled.

        Raises:
            SchemaNotMigrated, SchemaNewerThanCode: before `started`.
            StoreError: the database could not be reached at start.
        """
        async with self.pool.acquire() as session:
            await check(session)
        boxes, observers = _Mailboxes.open(), Observers(self.registry)
        listener, liveness = Listener(self.pool, "worker"), self._liveness()
        recorders = [self._recorder("completer", boxes.completions[1], boxes, observers)]
        recorders.append(self._recorder("reschedule", boxes.others[1], boxes, observers))
        maintenance = None
        if self.maintenance is not None:
            maintenance = Maintenance.build(
                self.pool, self.registry, self.maintenance, liveness, listener, boxes.questions[0].clone(), observers
            )
        handle = Worker(str(liveness.instance), tuple(queue.name for queue in self.queues), maintenance)
        try:
            async with trio.open_nursery() as services:
                await self._start_services(services, boxes, observers, recorders, liveness)
                async with trio.open_nursery() as attempts:
                    handle._crew = Crew(
                        self.client, self.pool, self.registry, self.settings, liveness, observers,
                        boxes.completions[0], boxes.others[0], attempts,
                    )  # fmt: skip
                    await self._dispatch(handle, handle._crew, listener, services, task_status)
                await self._flush(boxes, observers, recorders)
                services.cancel_scope.cancel()
        finally:
            with trio.move_on_after(self.settings.shutdown_write, shield=True) as bound:
                await self._last_step(handle._crew, recorders, liveness)
            if bound.cancelled_caught:
                logger.error("the last step was cut off; what it did not record is rescued")
            handle._ended.set()

    async def _start_services(
        self,
        services: trio.Nursery,
        boxes: _Mailboxes,
        observers: Observers,
        recorders: Sequence[Recorder],
        liveness: LivenessActor,
    ) -> None:
        follow_ups = FollowUps(self.registry, self._own("follow-ups"), boxes.questions[1])
        await services.start(follow_ups.run, name="follow-up dispatcher")
        await services.start(observers.run, name="observers")
        for recorder in recorders:
            await services.start(recorder.run, name=recorder.name)
        await services.start(liveness.run, name="liveness")

    def _recorder(
        self, name: str, mailbox: trio.MemoryReceiveChannel[Ended], boxes: _Mailboxes, observers: Observers
    ) -> Recorder:
        return Recorder(
            name, self._own(name), self.registry, mailbox, boxes.questions[0].clone(), observers,
            self.settings.follow_up_failures,
        )  # fmt: skip

    def _own(self, name: str) -> OwnConnection:
        return OwnConnection(self.pool, f"worker {name}")

    def _liveness(self) -> LivenessActor:
        return LivenessActor(
            self.pool,
            "worker",
            awa_actors.__version__,
            self.settings.liveness,
            self.settings.loop_stall_limit,
            tuple(self.registry.workers),
            {queue.name: {"max_workers": queue.max_workers} for queue in self.queues},
            lambda: ({}, {}),
            lambda: None,
        )

    async def _dispatch(
        self,
        handle: Worker,
        crew: Crew,
        listener: Listener,
        services: trio.Nursery,
        task_status: trio.TaskStatus[Worker],
    ) -> None:
        """Claim until the drain begins. Cancel-listening, beats and maintenance stay on after it."""
        crew.liveness.lost = lambda: crew.stop_all(Cause.LOST_LEASE)
        listener.on_cancel(crew.cancel)
        dispatchers = [
            Dispatcher(queue, self._own(f"dispatcher {queue.name}"[:40]), crew, self.pool.settings.listens)
            for queue in self.queues
        ]
        for dispatcher in dispatchers:
            listener.on(queue_channel(dispatcher.queue.name), dispatcher.wake)
        await services.start(listener.run, name="listener")
        services.start_soon(crew.watch, name="watch running attempts")
        if handle.maintenance is not None:
            await services.start(handle.maintenance.run, name="maintenance candidate")
            crew.liveness.describe = handle.maintenance.describe
        async with trio.open_nursery() as claiming:
            for dispatcher in dispatchers:
                await claiming.start(dispatcher.run, name=f"dispatcher {dispatcher.queue.name}")
            kinds, queues = len(self.registry.workers), ", ".join(handle.queues)
            logger.info("worker %s runs %d kinds on queues %s", handle.instance, kinds, queues)
            task_status.started(handle)
            await handle._draining.wait()
            claiming.cancel_scope.cancel()
        crew.liveness.state = "draining"

    async def _flush(self, boxes: _Mailboxes, observers: Observers, recorders: Sequence[Recorder]) -> None:
        """Every handler has ended: write what was told and show it to the observers; the services go after that."""
        boxes.completions[0].close()
        boxes.others[0].close()
        for recorder in recorders:
            await recorder.ended.wait()
        observers.close()
        with trio.move_on_after(OBSERVERS_TAIL):
            await observers.ended.wait()

    async def _last_step(self, crew: Crew | None, recorders: Sequence[Recorder], liveness: LivenessActor) -> None:
        """Record what ended but was not written, and give back whatever this instance still holds."""
        late = [ended for recorder in recorders for ended in recorder.left_over()]
        if crew is not None:
            late.extend(crew.late)
        try:
            session = await self.pool.connect("worker last step")
            try:
                if late:
                    await recorders[0].record_plainly(session, late)
                released = await release_instance(session, liveness.instance)
                await liveness.sign_off(session)
                if late or released:
                    logger.info("recorded %d attempts at the stop, gave back %d", len(late), released)
            finally:
                await session.close()
        except StoreError as error:
            logger.error("%d ended attempts could not be recorded and will be rescued: %s", len(late), error)
