"""What the actors of a process say to each other: closed unions of frozen values, with a reply slot for an answer."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import attrs
import trio

from awa_actors.actors.attempt import Attempt
from awa_actors.core.outcome import Decision
from awa_actors.events import Event
from awa_actors.store.insert import NewJob

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


@attrs.frozen(eq=False)
class Ended:
    """An attempt ended: record this decision."""

    attempt: Attempt
    decision: Decision
    duration: float


@attrs.frozen
class Planned:
    """The follow-up jobs of one event, in registration order."""

    jobs: list[NewJob]


@attrs.frozen
class SpecFailed:
    """A closure failed, or what it returned cannot be a job."""

    spec: str
    error: str


@attrs.frozen(eq=False)
class PlanFollowUps:
    """Ask: which jobs follow from these transitions. The sender inserts them in its own transaction."""

    events: list[tuple[str, Event[Any]]]
    reply: Reply[list[Planned | SpecFailed]]


@attrs.frozen(eq=False)
class RescueCommitted:
    """Tell: these rescues are durable; their follow-ups are best effort."""

    events: list[tuple[str, Event[Any]]]


FollowUpMessage = PlanFollowUps | RescueCommitted
