"""The promote lane: scheduled and retryable jobs that are due become available."""

from __future__ import annotations

import attrs

from awa_actors.actors.lane import StepReport
from awa_actors.store.pool import Session
from awa_actors.store.promote import promote

SOONEST = 0.005
"""Seconds: a timer that fires a hair early must not spin."""


@attrs.frozen
class Promote:
    """Moves due jobs in bounded batches, and sleeps until the next is due.

    Args:
        interval: longest sleep.
        marks: whether to announce the sleep, so that earlier jobs notify; off where nothing listens.
    """

    interval: float
    marks: bool
    name: str = "promote"

    async def run(self, session: Session, rows: int) -> StepReport:
        """One batch."""
        promoted = await promote(session, rows, self.interval + 1.0 if self.marks else None)
        blocked = f"{promoted.failed} jobs could not be promoted: recorded as failed" if promoted.failed else None
        if promoted.due_in is not None and promoted.due_in <= 0:
            return StepReport(promoted.moved, more=True, blocked=blocked)
        wait = self.interval if promoted.due_in is None else min(self.interval, max(SOONEST, promoted.due_in))
        return StepReport(promoted.moved, wait=wait, blocked=blocked)
