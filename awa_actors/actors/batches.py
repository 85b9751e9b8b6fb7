"""The batch lane: what operators change about many waiting jobs, one bounded step after the other."""

from __future__ import annotations

import attrs

from awa_actors.actors.lane import StepReport
from awa_actors.store import batches
from awa_actors.store.pool import Session

ROWS = 500
"""Jobs of one step: a cancellation waits for one step at most, and so does a claim for the rows it holds."""


@attrs.frozen
class Batches:
    """Does steps while an operation is open; `interval` seconds between looks for a new one."""

    interval: float
    name: str = "batch"

    async def run(self, session: Session, rows: int) -> StepReport:
        """One step."""
        step = await batches.step(session, min(rows, ROWS))
        return StepReport(step.changed, more=step.more)
