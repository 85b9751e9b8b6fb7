"""The follow-up dispatcher: owns the closures, returns values, and touches nobody's connection.

Senders that hold a transaction ask it for jobs and insert them there themselves. Rescues tell it what is already
durable; those follow-ups are inserted best effort, in a task of their own, on a connection of their own.
"""

from __future__ import annotations

import logging
from typing import Any, assert_never

import attrs
import trio

from awa_actors.actors.messages import FollowUpMessage, PlanFollowUps, Planned, RescueCommitted, SpecFailed
from awa_actors.core.text import error_text
from awa_actors.errors import FollowUpError, StoreError
from awa_actors.events import Event
from awa_actors.jobs import Enqueue, InsertOpts, OnConflict
from awa_actors.registry import FollowUpSpec, Registry
from awa_actors.store import follow_ups
from awa_actors.store.connection import OwnConnection
from awa_actors.store.insert import NewJob, admit

MAILBOX = 64
"""Batches of questions; a sender waits for its answer anyway, so a deep queue would only hide a stuck dispatcher."""
RESCUES_WAITING = 16
"""Batches of rescues whose closures have not run yet; user code is never waited for beyond this."""
RESCUE_TAIL = 1.0
"""Seconds the dispatcher gets, after everything else has ended, for rescues that are already committed."""

logger = logging.getLogger("awa_actors.follow_ups")


def plan(registry: Registry, outcome: str, event: Event[Any], max_depth: int) -> Planned | SpecFailed:
    """Evaluate the specs of one transition, in registration order. Closures are pure and may be evaluated again."""
    depth = int(event.job.metadata.get(follow_ups.DEPTH_KEY, 0)) + 1
    jobs: list[NewJob] = []
    for spec in registry.follow_ups.get((outcome, event.job.kind), ()):
        try:
            if depth > max_depth:
                raise FollowUpError(f"follow-up chains end at depth {max_depth}; this one looks like a loop")
            jobs.append(_new_job(spec, event, depth))
        except Exception as error:  # a closure may raise anything
            return SpecFailed(spec.name, error_text(error))
    return Planned(jobs)


def _new_job(spec: FollowUpSpec, event: Event[Any], depth: int) -> NewJob:
    made = spec.closure(event)
    args, opts = (made.args, made.opts) if isinstance(made, Enqueue) else (made, InsertOpts())
    reserved = {follow_ups.DEPTH_KEY: depth, "awa:follow_up_of": event.job.id}
    return admit(args, opts, reserved=reserved, on_conflict=OnConflict.RETURN_EXISTING)


@attrs.define(eq=False)
class FollowUps:
    """The dispatcher of one process. `dropped` counts rescues whose follow-ups found no room."""

    registry: Registry
    connection: OwnConnection
    mailbox: trio.MemoryReceiveChannel[FollowUpMessage]
    max_depth: int = 100
    dropped: int = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled or the last sender has gone; then RESCUE_TAIL for rescues that are already told."""
        rescues_in, rescues_out = trio.open_memory_channel[RescueCommitted](RESCUES_WAITING)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._deliver, rescues_out, name="rescued follow-ups")
            task_status.started()
            with rescues_in:
                async for message in self.mailbox:
                    match message:
                        case PlanFollowUps():
                            message.reply.put(
                                [
                                    plan(self.registry, outcome, event, self.max_depth)
                                    for outcome, event in message.events
                                ]
                            )
                        case RescueCommitted():
                            self._forward(rescues_in, message)
                        case _:
                            assert_never(message)
            nursery.cancel_scope.deadline = trio.current_time() + RESCUE_TAIL

    def _forward(self, rescues: trio.MemorySendChannel[RescueCommitted], message: RescueCommitted) -> None:
        try:
            rescues.send_nowait(message)
        except trio.WouldBlock:
            self.dropped += len(message.events)
            ids = [event.job.id for _, event in message.events]
            logger.error("no room for the follow-ups of %d rescues; dropped for jobs %s", len(ids), ids[:50])

    async def _deliver(self, rescues: trio.MemoryReceiveChannel[RescueCommitted]) -> None:
        """Deliver until cancelled; what is already told then gets RESCUE_TAIL more, since its rescue is durable."""
        async with self.connection:
            try:
                await self._deliver_all(rescues)
            except trio.Cancelled:
                with trio.move_on_after(RESCUE_TAIL, shield=True):
                    await self._deliver_all(rescues)
                raise

    async def _deliver_all(self, rescues: trio.MemoryReceiveChannel[RescueCommitted]) -> None:
        async for message in rescues:
            jobs: list[NewJob] = []
            for outcome, event in message.events:
                answer = await trio.to_thread.run_sync(
                    plan, self.registry, outcome, event, self.max_depth, abandon_on_cancel=True
                )
                if isinstance(answer, Planned):
                    jobs.extend(answer.jobs)
                else:
                    self.dropped += 1
                    logger.error("follow-up %s of rescued job %d failed: %s", answer.spec, event.job.id, answer.error)
            if jobs:
                await self._insert(jobs)

    async def _insert(self, jobs: list[NewJob]) -> None:
        try:
            await follow_ups.insert(await self.connection.session(), jobs)
        except StoreError as error:
            self.dropped += len(jobs)
            logger.error("%d rescued follow-ups could not be enqueued: %s", len(jobs), error)
