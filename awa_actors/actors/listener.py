"""One connection that listens: new work, cancellations, leadership. Wake-ups only shorten a wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import attrs
import orjson
import trio

from awa_actors.core.channels import CANCEL_CHANNEL
from awa_actors.errors import StoreError
from awa_actors.store.connection import OwnConnection
from awa_actors.store.listen import listen
from awa_actors.store.pool import Pool

PROBE_EVERY = 10.0
"""Seconds between round trips on the idle connection: a dead peer says nothing by itself."""
RECONNECT_FIRST, RECONNECT_MOST = 0.1, 5.0

logger = logging.getLogger("awa_actors.listener")


@attrs.define(eq=False)
class Listener:
    """Subscribers by channel; each is called in the loop, without arguments, and must not wait.

    Args:
        pool: opens the connection.
        role: named in the connection.
        backend: the server process that listens for us; None while there is none.
    """

    pool: Pool
    role: str
    backend: int | None = None
    _subscribers: dict[str, list[Callable[[], None]]] = attrs.field(factory=dict)
    _cancelled: list[Callable[[int, int], None]] = attrs.field(factory=list)
    _listening: list[Callable[[], None]] = attrs.field(factory=list)
    _told: dict[str, list[Callable[[str | None], None]]] = attrs.field(factory=dict)

    @property
    def connected(self) -> bool:
        """Whether this process listens now, as far as it knows."""
        return self.backend is not None

    def on(self, channel: str, wake: Callable[[], None]) -> None:
        """Call `wake` for every notification on a channel, and after every reconnection. Before `run`."""
        self._subscribers.setdefault(channel, []).append(wake)

    def on_cancel(self, cancel: Callable[[int, int], None]) -> None:
        """Call `cancel(job_id, run_lease)` for every cancelled attempt. Before `run`."""
        self._cancelled.append(cancel)

    def on_payload(self, channel: str, tell: Callable[[str | None], None]) -> None:
        """Call `tell` with every payload of a channel, and with None after every reconnection. Before `run`."""
        self._told.setdefault(channel, []).append(tell)

    def on_listening(self, look: Callable[[], None]) -> None:
        """Call `look` whenever listening begins (again): what was announced before was not heard. Before `run`."""
        self._listening.append(look)

    def _notified(self, channel: str, payload: str) -> None:
        if channel == CANCEL_CHANNEL:
            self._cancel(payload)
        for wake in self._subscribers.get(channel, ()):
            wake()
        for tell in self._told.get(channel, ()):
            tell(payload)

    def _cancel(self, payload: str) -> None:
        try:
            message: dict[str, Any] = orjson.loads(payload)
            key = int(message["job_id"]), int(message["run_lease"])
        except (ValueError, KeyError, TypeError):
            logger.warning("a malformed cancel notification is ignored: %.100r", payload)
            return
        for cancel in self._cancelled:
            cancel(*key)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; reconnect with back-off, then wake everybody once: anything may have been missed."""
        if not self.pool.settings.listens:
            task_status.started()
            return
        delay = RECONNECT_FIRST
        channels = [*self._subscribers, *self._told, *([CANCEL_CHANNEL] if self._cancelled else [])]
        async with OwnConnection(self.pool, f"{self.role} listener") as connection:
            while True:
                try:
                    session = await connection.session()
                    lost = trio.Event()
                    self.backend = await listen(session, channels, self._notified, lost.set)
                    delay = RECONNECT_FIRST
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    for look in self._listening:
                        look()
                    for wakes in self._subscribers.values():
                        for wake in wakes:
                            wake()
                    for tells in self._told.values():
                        for tell in tells:
                            tell(None)
                    while not lost.is_set():
                        with trio.move_on_after(PROBE_EVERY):
                            await lost.wait()
                        if not lost.is_set():
                            await session.call(session.raw.fetchval("SELECT 1"), PROBE_EVERY)
                    logger.warning("the listening connection was lost")
                except StoreError as error:
                    logger.warning("cannot listen, polling meanwhile: %s", error)
                self.backend = None
                task_status.started()
                task_status = trio.TASK_STATUS_IGNORED
                await connection.close()
                await trio.sleep(delay)
                delay = min(delay * 2, RECONNECT_MOST)
