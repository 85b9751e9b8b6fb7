"""The admin refresh lane: stores the numbers that dashboards read."""

from __future__ import annotations

import time

import attrs

from awa_actors.actors.lane import StepReport
from awa_actors.actors.meters import Meters
from awa_actors.store.descriptors import described
from awa_actors.store.pool import Session
from awa_actors.store.refresh import counted, refresh_kinds, refresh_queues

KINDS_EVERY = 30.0
"""Seconds between counts of kinds and of completions."""


@attrs.define(eq=False)
class Refresh:
    """Counts every queue, and less often every kind. `interval` in seconds; a slow count rests in proportion."""

    interval: float
    meters: Meters = attrs.field(factory=Meters)
    name: str = "refresh"
    _kinds_at: float | None = attrs.field(default=None, init=False)

    async def run(self, session: Session, rows: int) -> StepReport:
        """One count."""
        done = await refresh_queues(session)
        if self._kinds_at is None or time.monotonic() - self._kinds_at >= KINDS_EVERY:
            self._kinds_at = time.monotonic()
            done += await refresh_kinds(session)
            if self.meters.instruments is not None:
                self.meters.described(await described(session))
        if self.meters.instruments is not None:
            self.meters.counted(await counted(session))
        return StepReport(done)
