"""What /readyz says of one process."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from awa_actors.actors.maintenance import Maintenance
from awa_actors.actors.worker import Worker
from awa_actors.cli.process import Stop
from awa_actors.client import Client
from awa_actors.errors import AwaError

LOOK_BOUND = 2.0
"""Seconds that one look at the database may take."""
LOOK_EVERY = 1.0
"""Seconds for which a look is good: probes must not become load."""
LEADERLESS = 15.0
"""Seconds without any leader after which maintenance counts as down: longer than a lease and an election."""


@attrs.frozen
class _Seen:
    """One look at the database, or that it did not answer."""

    at: float
    connected: bool
    schema: tuple[int, int] | None
    led: bool


@attrs.define(eq=False)
class Readiness:
    """Answers for one process, from before its role has started until after it has ended.

    Args:
        client: a client of its own: handlers that use up the pool of theirs must not make the process look unready.
        stop: tells whether the process was asked to end.
    """

    client: Client
    stop: Stop
    handle: Any = None
    """Of the role, once it has started: a Worker, a Maintenance, or a server that may have a Maintenance beside it."""
    _seen: _Seen | None = None
    _led_at: float | None = None
    _lock: trio.Lock = attrs.field(factory=trio.Lock)

    async def __call__(self) -> dict[str, Any]:
        """Give the fields of /readyz."""
        seen, stopping = await self._look(), self.stop.asked > 0
        found, expected = seen.schema or (None, None)
        duties = {
            "postgres_connected": seen.connected,
            "schema_compatible": seen.schema is not None and found == expected,
            "maintenance_alive": self._maintained(seen),
        }
        if isinstance(self.handle, Worker):
            duties["poll_loop_alive"] = not stopping
        beating = self.handle if isinstance(self.handle, Worker) else self._maintenance
        if beating is not None:
            duties["heartbeat_alive"] = beating.beating
        return {
            "ready": self.handle is not None and not stopping and all(duties.values()),
            **duties,
            "schema_version": found,
            "expected_schema_version": expected,
            "shutting_down": stopping,
            "leader": self._maintenance is not None and self._maintenance.is_leader,
        }

    @property
    def _maintenance(self) -> Maintenance | None:
        if self.handle is None or isinstance(self.handle, Maintenance):
            return self.handle
        beside: Maintenance | None = self.handle.maintenance
        return beside

    def _maintained(self, seen: _Seen) -> bool:
        """Whether somebody led a moment ago (our own start counts as one) and, if it is us, leads well."""
        if seen.led or self._led_at is None:
            self._led_at = seen.at
        lanes = {} if self._maintenance is None else self._maintenance.describe()[0]
        return seen.at - self._led_at < LEADERLESS and all(lane["healthy"] for lane in lanes.values())

    async def _look(self) -> _Seen:
        async with self._lock:
            now = trio.current_time()
            if self._seen is None or now - self._seen.at >= LOOK_EVERY:
                self._seen = await self._asked(now)
            return self._seen

    async def _asked(self, now: float) -> _Seen:
        with trio.move_on_after(LOOK_BOUND):
            try:
                schema = await self.client.admin.schema()
                current = schema[0] == schema[1]
                lease = await self.client.admin.leader() if current else None
            except AwaError:
                return _Seen(now, False, None, False)
            return _Seen(now, True, schema, lease is not None and not lease.is_free)
        return _Seen(now, False, None, False)
