"""The rescue lane: attempts of dead instances, past their deadline or past their callback go back, or fail visibly."""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs

from awa_actors.actors.lane import StepReport
from awa_actors.store.pool import Session
from awa_actors.store.rescue import RescuedJob, bury_instances, rescue_callbacks, rescue_deadlines, rescue_stale

logger = logging.getLogger("awa_actors.maintenance")


@attrs.frozen(eq=False)
class Rescue:
    """Sweeps until nothing is left, one bounded batch per pass.

    Args:
        interval: seconds between sweeps.
        bound: rescues after which a job fails.
        margin: seconds past a deadline before a live worker's attempt is taken.
        committed: told, never waited for, what each batch rescued.
    """

    interval: float
    bound: int
    margin: float
    committed: Callable[[list[RescuedJob]], None]
    name: str = "rescue"

    async def run(self, session: Session, rows: int) -> StepReport:
        """One batch of each kind."""
        for buried in await bury_instances(session):
            logger.warning("instance %s has stopped beating; its attempts are taken back", buried)
        batches = [
            self._told(await rescue_stale(session, rows, self.bound)),
            self._told(await rescue_deadlines(session, rows, self.margin, self.bound)),
            self._told(await rescue_callbacks(session, rows, self.bound)),
        ]
        if done := sum(batches):
            logger.warning("rescued %d attempts", done)
        return StepReport(done, more=max(batches) >= rows)

    def _told(self, rescued: list[RescuedJob]) -> int:
        """Each batch is told as soon as it is durable: what fails after it must not silence it."""
        if rescued:
            self.committed(rescued)
        return len(rescued)
