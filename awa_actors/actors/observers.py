"""Calls the application's observers: best effort, bounded, never in the way of an attempt."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import trio

from awa_actors.events import Event
from awa_actors.registry import Registry

MAILBOX = 10_000
"""Events waiting for slow observers; beyond that they are dropped and counted: observation must not hold up work."""
OBSERVER_LIMIT = 30.0
"""Seconds one observer may take for one event."""

logger = logging.getLogger("awa_actors.observers")


@attrs.define(eq=False)
class Observers:
    """One task that calls every registered observer, in registration order, one event at a time."""

    registry: Registry
    dropped: int = 0
    ended: trio.Event = attrs.field(factory=trio.Event)
    _send: trio.MemorySendChannel[tuple[str, Event[Any]]] = attrs.field(init=False)
    _receive: trio.MemoryReceiveChannel[tuple[str, Event[Any]]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Open the mailbox."""
        self._send, self._receive = trio.open_memory_channel(MAILBOX)

    def tell(self, kind: str, event: Event[Any]) -> None:
        """Hand an event over; never waits. An event that finds the mailbox full is lost, counted and logged."""
        try:
            self._send.send_nowait((kind, event))
        except trio.WouldBlock:
            self.dropped += 1
            logger.warning("observers are too slow: event %s of job %d is dropped", type(event).__name__, event.job.id)
        except trio.ClosedResourceError:
            self.dropped += 1

    def close(self) -> None:
        """Take no more events; `run` ends when those that wait were observed."""
        self._send.close()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Observe until closed. What an observer raises is logged and stops nothing."""
        task_status.started()
        async for kind, event in self._receive:
            for observer in self.registry.observers.get(kind, ()):
                try:
                    with trio.move_on_after(OBSERVER_LIMIT) as scope:
                        await observer(event)
                except Exception:  # an observer's bug is its own
                    logger.exception("observer %r failed on %s of job %d", observer, type(event).__name__, event.job.id)
                else:
                    if scope.cancelled_caught:
                        logger.error("observer %r took longer than %.0f s and was cancelled", observer, OBSERVER_LIMIT)
        self.ended.set()
