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
    handle: Worker | Maintenance | None = None
    _seen: _Seen | None = None
    _led_at: float | None = None
    _lock: trio.Lock = attrs.field(factory=trio.Lock)

    async def __call__(self) -> dict[str, Any]:
        """Give the fields of /readyz."""
        seen = await self._look()
        found, expected = seen.schema or (None, None)
        handle, stopping = self.handle, self.stop.asked > 0
        fields: dict[str, Any] = {
            "postgres_connected": seen.connected,
            "schema_version": found,
            "expected_schema_version": expected,
            "schema_compatible": seen.schema is not None and found == expected,
            "poll_loop_alive": handle is not None and not stopping,
            "heartbeat_alive": handle is not None and handle.beating,
            "maintenance_alive": self._maintained(seen),
        }
        if not isinstance(handle, Worker):
            del fields["poll_loop_alive"]
        not_duties = ("schema_version", "expected_schema_version")
        ready = all(value for name, value in fields.items() if name not in not_duties) and not stopping
        leads = self._maintenance is not None and self._maintenance.is_leader
        return {"ready": ready and handle is not None, **fields, "shutting_down": stopping, "leader": leads}

    @property
    def _maintenance(self) -> Maintenance | None:
        return self.handle.maintenance if isinstance(self.handle, Worker) else self.handle

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
