"""What the actors of a process say to each other: closed unions of frozen values, with a reply slot for an answer."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import attrs
import trio

from awa_actors.actors.attempt import Attempt
from awa_actors.core.outcome import Decision
from awa_actors.events import Event
from awa_actors.store.follow_up_plan import SpecFailed
from awa_actors.store.insert import NewJob
from awa_actors.store.rescue import RescuedJob

T = TypeVar("T")


@attrs.define(eq=False)
class Reply(Generic[T]):
    """Where an answer is put and awaited, once."""

    _ready: trio.Event = attrs.field(factory=trio.Event, init=False)
    _value: T | None = attrs.field(default=None, init=False)

    def put(self, value: T) -> None:
        """Answer."""
        self._value = value
        self._ready.set()

    async def wait(self) -> T:
        """Wait for the answer."""
        await self._ready.wait()
        return self._value  # type: ignore[return-value]  # set before the event


@attrs.define(eq=False)
class Ended:
    """An attempt ended: record this decision. Never changed; attrs' own freezing would cost four times as much.

    Args:
        attempt: which.
        decision: what to write.
        duration: seconds its handler took.
        bare: without the handler's notes, which the database has refused.
    """

    attempt: Attempt
    decision: Decision
    duration: float
    bare: bool = False


@attrs.frozen(eq=False)
class PlanFollowUps:
    """Ask: which jobs follow from these transitions. The sender inserts them in its own transaction.

    Shape: per event the answers of its specs, in registration order.
    """

    events: list[Event[Any]]
    reply: Reply[list[list[NewJob | SpecFailed]]]


@attrs.frozen(eq=False)
class RescueCommitted:
    """Tell: these rescues are durable; what follows from them is best effort, or in the outbox already."""

    rescued: list[RescuedJob]


FollowUpMessage = PlanFollowUps | RescueCommitted
