"""The worker: runs handlers for a set of queues, and stands for maintenance too unless told not to.

Two endings. `drain` stops claiming, lets handlers finish with beats and cancellation still on, flushes, and is done.
Cancelling the scope of `run` stops now: handlers are cancelled in their scopes, and what became of them is recorded in
one shielded, bounded step. Beats go on until the last handler has ended, a thread that cannot be cancelled included:
its lease must not look abandoned before it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import trio

import awa_actors
from awa_actors.actors.crew import Crew
from awa_actors.actors.descriptors import Descriptors
from awa_actors.actors.dispatcher import Dispatcher
from awa_actors.actors.follow_ups import FollowUps
from awa_actors.actors.listener import Listener
from awa_actors.actors.liveness import LivenessActor
from awa_actors.actors.maintenance import Maintenance
from awa_actors.actors.messages import Ended
from awa_actors.actors.meters import vital_gauges
from awa_actors.actors.observers import Observers
from awa_actors.actors.recorder import MAILBOX, Recorder
from awa_actors.actors.tuning import Tuning
from awa_actors.config import MaintenanceSettings, QueueConfig, WorkerSettings
from awa_actors.core.channels import CALLBACK_CHANNEL, STORAGE_CHANNEL, queue_channel
from awa_actors.core.leaves import sole_leaf
from awa_actors.core.metrics import QUEUE
from awa_actors.core.outcome import Cause
from awa_actors.errors import StoreError
from awa_actors.registry import Registry
from awa_actors.store.connection import OwnConnection
from awa_actors.store.follow_up_plan import Specs
from awa_actors.store.migrate import check
from awa_actors.store.planes import Planes
from awa_actors.store.pool import Pool
from awa_actors.store.settle import release_instance

LAST_CLAIM = 5.0
"""Seconds that a claim which is under way when a drain begins gets for its answer."""
OBSERVERS_TAIL = 2.0
"""Seconds a drained worker waits for events that observers have not seen yet."""

logger = logging.getLogger("awa_actors.worker")


@attrs.define(eq=False)
class Worker:
    """A running worker, as `nursery.start(client.run_worker)` gives it."""

    queues: tuple[str, ...]
    maintenance: Maintenance | None
    _liveness: LivenessActor
    _draining: trio.Event = attrs.field(factory=trio.Event)
    _ended: trio.Event = attrs.field(factory=trio.Event)
    _crew: Crew | None = None

    @property
    def instance(self) -> str:
        """Id of the current incarnation; another one after this process was declared dead."""
        return str(self._liveness.instance)

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

    @classmethod
    def open(cls) -> _Mailboxes:
        """Open all of them."""
        return cls(
            trio.open_memory_channel[Ended](MAILBOX),
            trio.open_memory_channel[Ended](MAILBOX),
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
            StoreError: the database could not be reached, or cannot be written to, at start.
        """
        async with self.pool.acquire() as session:
            await check(session)
        try:
            await self._run(task_status)
            return
        except BaseExceptionGroup as group:
            leaf = sole_leaf(group)
            if leaf is None or isinstance(leaf, trio.Cancelled):
                raise
        finally:
            with trio.move_on_after(self.settings.shutdown_write / 2, shield=True):
                await self._close_handlers()
        raise leaf  # bare: the nurseries that it came through say nothing to whoever started us

    async def _close_handlers(self) -> None:
        """Handlers that hold something open (an HTTP worker its connections) say so by having `aclose`."""
        for spec in self.registry.workers.values():
            if (close := getattr(spec.handler, "aclose", None)) is not None:
                await close()

    async def _run(self, task_status: trio.TaskStatus[Worker]) -> None:
        boxes, observers = _Mailboxes.open(), Observers(self.registry, self.client.admin.watching)
        listener, liveness = Listener(self.pool, "worker"), self._liveness()
        liveness.listener = listener
        follow_ups = FollowUps(Specs(self.registry), self.pool, observers, "worker")
        meters, planes = self.client.meters, Planes(self.settings.storage)
        listener.on(STORAGE_CHANNEL, planes.changed)
        liveness.look = planes.refresh
        liveness.describe = lambda: (
            {},
            {**planes.describe(), **follow_ups.describe(), "totals": meters.describe()},
        )
        recorders = [self._recorder("completer", boxes.completions[1], follow_ups, observers)]
        if any(outcome == "completed" for outcome, _ in self.registry.follow_ups):
            # What follows from one batch is planned here while the database writes another one.
            recorders.append(self._recorder("completer", boxes.completions[1].clone(), follow_ups, observers))
        recorders.append(self._recorder("reschedule", boxes.others[1], follow_ups, observers))
        maintenance = None
        if self.maintenance is not None:
            maintenance = Maintenance.build(
                self.pool, self.registry, self.maintenance, liveness, listener, follow_ups, observers, planes, meters
            )
        handle = Worker(tuple(queue.name for queue in self.queues), maintenance, liveness)
        last_to_go = trio.CancelScope()
        try:
            with meters.watching(vital_gauges(liveness, follow_ups)):
                async with trio.open_nursery() as services:
                    start = partial(self._run_services, last_to_go, follow_ups, observers, recorders, liveness)
                    await services.start(start, name="services of handlers")
                    last_to_go.shield = True
                    try:
                        async with trio.open_nursery() as attempts:
                            handle._crew = self._crew(handle, boxes, observers, attempts)
                            await self._dispatch(handle, handle._crew, listener, planes, services, task_status)
                        await self._flush(boxes, observers, recorders)
                    except BaseException:
                        with trio.move_on_after(self.settings.shutdown_write / 2, shield=True):
                            await self._flush(boxes, observers, recorders)
                        raise
                    finally:
                        last_to_go.shield = False
                    services.cancel_scope.cancel()
        finally:
            with trio.move_on_after(self.settings.shutdown_write / 2, shield=True) as bound:
                await self._last_step(handle._crew, recorders, liveness)
            if bound.cancelled_caught:
                logger.error("the last step was cut off; what it did not record is rescued")
            logger.info("worker %s has ended; in all %s", handle.instance, meters.told())
            handle._ended.set()

    def _crew(self, handle: Worker, boxes: _Mailboxes, observers: Observers, attempts: trio.Nursery) -> Crew:
        return Crew(
            self.client, self.pool, self._own("attempts"), self.registry, self.settings, handle._liveness, observers,
            boxes.completions[0], boxes.others[0], attempts, handle._draining.set,
        )  # fmt: skip

    async def _run_services(
        self,
        scope: trio.CancelScope,
        follow_ups: FollowUps,
        observers: Observers,
        recorders: Sequence[Recorder],
        liveness: LivenessActor,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """What handlers need until the last of them has ended; `scope` keeps it from being stopped before."""
        with scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(follow_ups.run, name="follow-up dispatcher")
                await nursery.start(observers.run, name="observers")
                for recorder in recorders:
                    await nursery.start(recorder.run, name=recorder.name)
                await nursery.start(liveness.run, name="liveness")
                task_status.started()

    def _recorder(
        self, name: str, mailbox: trio.MemoryReceiveChannel[Ended], follow_ups: FollowUps, observers: Observers
    ) -> Recorder:
        return Recorder(
            name, self._own(name), mailbox, follow_ups, observers, self.settings.follow_up_failures, self.client.meters
        )

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
            meters=self.client.meters,
        )

    async def _dispatch(
        self,
        handle: Worker,
        crew: Crew,
        listener: Listener,
        planes: Planes,
        services: trio.Nursery,
        task_status: trio.TaskStatus[Worker],
    ) -> None:
        """Claim until the drain begins. Cancel-listening, beats and maintenance stay on after it."""
        crew.liveness.lost = lambda: crew.stop_all(Cause.LOST_LEASE)
        listener.on_cancel(crew.cancel)
        listener.on_listening(crew.look_soon)
        listener.on_payload(CALLBACK_CHANNEL, crew.callbacks.wake)
        dispatchers = [
            Dispatcher(
                queue,
                self._own(f"dispatcher {queue.name}"[:40]),
                crew,
                self.pool.settings.listens,
                planes,
                self.client.meters,
            )
            for queue in self.queues
        ]
        for dispatcher in dispatchers:
            listener.on(queue_channel(dispatcher.queue.name), dispatcher.notified)
            listener.on_cancel(dispatcher.forget)
        await services.start(listener.run, name="listener")
        services.start_soon(crew.watch, name="watch running attempts")
        tuning = Tuning(self.pool, {dispatcher.queue.name: dispatcher for dispatcher in dispatchers})
        services.start_soon(tuning.run, name="overrides")
        services.start_soon(Descriptors(self.pool, self.registry).run, name="descriptors")
        if handle.maintenance is not None:
            await services.start(handle.maintenance.run, name="maintenance candidate")
            crew.liveness.describe = handle.maintenance.describe
        busy = {"awa.job.in_flight": lambda: [({QUEUE: one.queue.name}, one.in_flight()) for one in dispatchers]}
        with self.client.meters.watching(busy):
            await self._claim(handle, crew, dispatchers, task_status)

    async def _claim(
        self, handle: Worker, crew: Crew, dispatchers: Sequence[Dispatcher], task_status: trio.TaskStatus[Worker]
    ) -> None:
        async with trio.open_nursery() as claiming:
            for dispatcher in dispatchers:
                await claiming.start(dispatcher.run, name=f"dispatcher {dispatcher.queue.name}")
            kinds, queues = len(self.registry.workers), ", ".join(handle.queues)
            logger.info("worker %s runs %d kinds on queues %s", handle.instance, kinds, queues)
            task_status.started(handle)
            await handle._draining.wait()
            crew.liveness.state = "draining"
            for dispatcher in dispatchers:
                dispatcher.stop()
            # A claim that is under way may still be answered; one that is not in time is given back in the last step.
            claiming.cancel_scope.deadline = trio.current_time() + LAST_CLAIM

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
            await crew.control.close()
        try:
            session = await self.pool.connect("worker last step")
            try:
                if late:
                    await recorders[0].record(session, late)
                released = await release_instance(session, liveness.instance)
                await liveness.sign_off(session)
                if late or released:
                    logger.info("recorded %d attempts at the stop, gave back %d", len(late), released)
            finally:
                await session.close()
        except StoreError as error:
            logger.error("%d ended attempts could not be recorded and will be rescued: %s", len(late), error)
