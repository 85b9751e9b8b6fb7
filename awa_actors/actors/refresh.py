"""The admin refresh lane: stores the numbers that dashboards read."""

from __future__ import annotations

import attrs

from awa_actors.actors.lane import StepReport
from awa_actors.store.pool import Session
from awa_actors.store.refresh import refresh_queues


@attrs.frozen
class Refresh:
    """Counts every queue. `interval` in seconds; a slow count rests in proportion."""

    interval: float
    name: str = "refresh"

    async def run(self, session: Session, rows: int) -> StepReport:
        """One count."""
        return StepReport(await refresh_queues(session))
