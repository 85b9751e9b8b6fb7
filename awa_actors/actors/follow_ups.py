"""The follow-up dispatcher: owns the closures, returns values, and touches nobody's connection.

Senders that hold a transaction ask it for jobs and insert them there themselves. Rescues tell it what is already
durable; those follow-ups are inserted best effort, or come from the outbox, in a task and on a connection of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, assert_never

import attrs
import trio

from awa_actors.actors.lane import Lane, LaneHealth
from awa_actors.actors.messages import FollowUpMessage, PlanFollowUps, Reply, RescueCommitted
from awa_actors.actors.observers import Observers
from awa_actors.actors.outcome_events import rescued_event
from awa_actors.actors.rescued_follow_ups import OUTBOX_INTERVAL, FollowUpStep, RescuedFollowUps
from awa_actors.errors import ValidationError
from awa_actors.events import Event
from awa_actors.registry import FollowUpSpec
from awa_actors.store.connection import OwnConnection
from awa_actors.store.follow_up_plan import SpecFailed, Specs, job_of
from awa_actors.store.insert import NewJob
from awa_actors.store.pool import Pool
from awa_actors.store.rescue import RescuedJob

MAILBOX = 64
"""Batches of questions; a sender waits for its answer anyway, so a deep queue would only hide a stuck dispatcher."""
RESCUES_WAITING = 10_000
"""Rescues whose closures have not run yet; user code is never waited for beyond this."""
RESCUE_TAIL = 1.0
"""Seconds the dispatcher gets, after everything else has ended, for rescues that are already committed."""
OUTBOX_ROWS = 256
"""Rows of the outbox in one pass, so that one busy spec does not keep the others waiting."""

logger = logging.getLogger("awa_actors.follow_ups")


@attrs.define(eq=False)
class FollowUps:
    """The dispatcher of one process.

    Args:
        specs: what it evaluates; it alone refreshes what is declared in the database.
        pool: opens its one connection, for what follows from rescues.
        observers: told of rescues.
        name: of the role it works for.
    """

    specs: Specs
    pool: Pool
    observers: Observers
    name: str
    rescued: RescuedFollowUps = attrs.field(init=False)
    health: LaneHealth = attrs.field(factory=LaneHealth, init=False)
    _send: trio.MemorySendChannel[FollowUpMessage] = attrs.field(init=False)
    _receive: trio.MemoryReceiveChannel[FollowUpMessage] = attrs.field(init=False)
    _step: FollowUpStep = attrs.field(init=False)
    _lane: Lane = attrs.field(init=False)
    _ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        """Open the mailbox."""
        self._send, self._receive = trio.open_memory_channel[FollowUpMessage](MAILBOX)
        self.rescued = RescuedFollowUps(self.specs)
        self._step = FollowUpStep(self.rescued, OUTBOX_INTERVAL)
        self._lane = Lane(self._step, self.pool, OUTBOX_ROWS, False, 1, self.health, self.name)

    @property
    def dropped(self) -> int:
        """Follow-ups of rescues that are lost: no room, no database, or a closure that failed."""
        return self.rescued.dropped

    def describe(self) -> dict[str, Any]:
        """What the instance row publishes of them: drift between processes is found by it."""
        return {
            "follow_ups": self.specs.names(),
            "follow_ups_dropped": self.dropped,
            "outbox": self.health.describe(OUTBOX_INTERVAL),
        }

    async def ask(self, events: Sequence[Event[Any]]) -> list[list[NewJob | SpecFailed]]:
        """Which jobs follow from these transitions, of each in the order of its specs; the caller inserts them.

        Those who come after the dispatcher has ended, at a stop, are answered here and now.

        Cancellation: nothing has happened; an answer that comes later is dropped.
        """
        if self._ended:
            return self._plan(events)
        reply: Reply[list[list[NewJob | SpecFailed]]] = Reply()
        await self._send.send(PlanFollowUps(list(events), reply))
        return await reply.wait()

    def tell(self, rescued: Sequence[RescuedJob]) -> None:
        """Say what was rescued; never waits. What finds no room is lost, counted and logged: the rescue goes on."""
        try:
            self._send.send_nowait(RescueCommitted(list(rescued)))
        except (trio.WouldBlock, trio.BrokenResourceError):
            self._lost(rescued)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Publish what this process declares, then answer until cancelled.

        Raises:
            StoreError: what is declared could not be published; before `started`.

        Cancellation: rescues that were told get RESCUE_TAIL more, since they are durable.
        """
        async with self.pool.acquire() as session:
            await self.rescued.publish(session)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._lane.run, name="follow-ups of rescues")
                task_status.started()
                try:
                    async for message in self._receive:
                        self._take(message)
                finally:
                    self._ended = True
                    while self._receive.statistics().current_buffer_used:
                        self._take(self._receive.receive_nowait())
        finally:
            await self._tail()

    def _take(self, message: FollowUpMessage) -> None:
        match message:
            case PlanFollowUps():
                message.reply.put(self._plan(message.events))
            case RescueCommitted():
                self._forward(message.rescued)
            case _:
                assert_never(message)

    def _plan(self, events: Sequence[Event[Any]]) -> list[list[NewJob | SpecFailed]]:
        depth = self.specs.registry.max_follow_up_depth
        known: dict[tuple[type[Event[Any]], str], list[FollowUpSpec]] = {}  # most of a batch is of a few kinds
        answers = []
        for event in events:
            key = type(event), event.job.kind
            if (specs := known.get(key)) is None:
                specs = known[key] = self.specs.of_event(event)
            answers.append([job_of(spec, event, depth) for spec in specs])
        return answers

    def _forward(self, rescued: Sequence[RescuedJob]) -> None:
        for one in rescued:
            if self.observers.wants(one.job.kind):
                self._observe(one)
        if not any(self.specs.any_of(one.job.kind, "rescued") for one in rescued):
            return
        followed = [one for one in rescued if self.rescued.best_effort(one.job.kind)]
        if len(self._step.told) + len(followed) > RESCUES_WAITING:
            self._lost(followed)
        else:
            self._step.told.extend(followed)
        self._lane.wake()

    def _observe(self, one: RescuedJob) -> None:
        try:
            event = rescued_event(one, self.specs.registry.args_types[one.job.kind])
        except ValidationError as error:
            logger.error("job %d was rescued, but its args do not fit: %s", one.job.id, error)
        else:
            self.observers.tell(one.job.kind, event)

    def _lost(self, rescued: Sequence[RescuedJob]) -> None:
        lost = [one.job.id for one in rescued if self.rescued.best_effort(one.job.kind)]
        if lost:
            self.rescued.dropped += len(lost)
            logger.error("the follow-ups of %d rescues are dropped, for jobs %s", len(lost), lost[:50])

    async def _tail(self) -> None:
        """Deliver what was told and is durable, within RESCUE_TAIL."""
        if not self._step.told:
            return
        with trio.move_on_after(RESCUE_TAIL, shield=True):
            async with OwnConnection(self.pool, f"{self.name} follow-ups") as connection:
                await self._step.deliver_told(connection.session)
        self._lost(self._step.told)
