"""The mover lane: while the transition is mixed, what waits in the canonical plane moves to the queue plane."""

from __future__ import annotations

import math

import attrs
import trio

from awa_actors.actors.lane import StepReport
from awa_actors.store.mover import move, settings
from awa_actors.store.planes import Planes
from awa_actors.store.pool import Session

MIXED_EVERY = 0.5
"""Seconds between passes while mixed: what comes due or is given back lands in the queue plane by itself."""


@attrs.frozen
class Mover:
    """Moves bounded batches, as fast as it is told to; over for good when the transition is.

    Args:
        planes: what this process knows of the transition.
    """

    planes: Planes
    interval: float = 5.0
    name: str = "mover"

    async def run(self, session: Session, rows: int) -> StepReport:
        """One batch."""
        await self.planes.refresh(session)
        if self.planes.finalized:
            return StepReport(over=True)
        told = await settings(session)
        if told.state != "mixed_transition":
            return StepReport()
        if told.paused:
            return StepReport(blocked="paused by an operator")
        if told.rows_per_second is not None:
            rows = min(rows, max(1, math.ceil(told.rows_per_second * MIXED_EVERY)))
        began = trio.current_time()
        done = await move(session, rows)
        took = trio.current_time() - began
        blocked = f"{done.failed} jobs could not be moved: recorded as failed" if done.failed else None
        count = done.moved + done.failed
        if told.rows_per_second is not None and done.more:
            return StepReport(count, wait=max(0.0, count / told.rows_per_second - took), blocked=blocked)
        # Half of the time is for the fleet: the drain is a guest, and nobody waits for it but an operator.
        return StepReport(count, more=done.more, wait=MIXED_EVERY, blocked=blocked, rest=took)
