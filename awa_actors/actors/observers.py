"""Calls the application's observers: best effort, bounded, never in the way of an attempt."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from awa_actors.events import Event
from awa_actors.registry import Registry

MAILBOX = 10_000
"""Events waiting for slow observers; beyond that they are dropped and counted: observation must not hold up work."""
OBSERVER_LIMIT = 30.0
"""Seconds one observer may take for one event."""
STOPPED = -math.inf
"""Effective deadline of a task whose surroundings are cancelled."""

logger = logging.getLogger("awa_actors.observers")


@attrs.define(eq=False)
class Observers:
    """One task that calls every registered observer, in registration order, one event at a time.

    Args:
        registry: of this process.
        watching: where it is listed while it runs, for those who make events elsewhere.
        dropped: events that found no room.
    """

    registry: Registry
    watching: list[Observers] = attrs.field(factory=list)
    dropped: int = 0
    ended: trio.Event = attrs.field(factory=trio.Event)
    _send: trio.MemorySendChannel[tuple[str, Event[Any]]] = attrs.field(init=False)
    _receive: trio.MemoryReceiveChannel[tuple[str, Event[Any]]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Open the mailbox."""
        self._send, self._receive = trio.open_memory_channel(MAILBOX)

    def wants(self, kind: str) -> bool:
        """Whether anybody observes a kind; without, no event need be built."""
        return kind in self.registry.observers

    def tell(self, kind: str, event: Event[Any]) -> None:
        """Hand an event over; never waits. An event that finds the mailbox full is lost, counted and logged."""
        try:
            self._send.send_nowait((kind, event))
        except (trio.WouldBlock, trio.ClosedResourceError):
            self.dropped += 1
            # At powers of two: a flood of events must not become a flood of lines.
            if self.dropped & (self.dropped - 1) == 0:
                logger.warning(
                    "observers are too slow: event %s of job %d is dropped, %d so far",
                    type(event).__name__, event.job.id, self.dropped,
                )  # fmt: skip

    def close(self) -> None:
        """Take no more events; `run` ends when those that wait were observed."""
        self._send.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Observe until closed. What an observer raises is logged and stops nothing."""
        self.watching.append(self)
        task_status.started()
        try:
            async for kind, event in self._receive:
                for observer in self.registry.observers.get(kind, ()):
                    await self._show(observer, event)
        finally:
            self.watching.remove(self)
        self.ended.set()

    async def _show(self, observer: Callable[[Any], Awaitable[None]], event: Event[Any]) -> None:
        try:
            with trio.move_on_after(OBSERVER_LIMIT) as scope:
                await observer(event)
        except KeyboardInterrupt:
            raise
        except BaseException:  # an observer's bug is its own, sys.exit() and a stray Cancelled included
            if trio.current_effective_deadline() == STOPPED:
                raise
            logger.exception("observer %r failed on %s of job %d", observer, type(event).__name__, event.job.id)
        else:
            if scope.cancelled_caught:
                logger.error("observer %r took longer than %.0f s and was cancelled", observer, OBSERVER_LIMIT)
