"""The rescue lane: attempts of dead instances, past their deadline or past their callback go back, or fail visibly."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import attrs

from awa_actors.actors.lane import StepReport
from awa_actors.actors.meters import Meters
from awa_actors.store.pool import Session
from awa_actors.store.rescue import RescuedJob, bury_instances, sweep

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
    meters: Meters = attrs.field(factory=Meters)
    name: str = "rescue"

    async def run(self, session: Session, rows: int) -> StepReport:
        """One batch of each kind."""
        for buried in await bury_instances(session):
            logger.warning("instance %s has stopped beating; its attempts are taken back", buried)
        rescued = await sweep(session, rows, self.bound, self.margin)
        if rescued:
            logger.warning("rescued %d attempts", len(rescued))
            self.meters.rescued(rescued)
            self.committed(rescued)
        most = max(Counter(one.reason for one in rescued).values(), default=0)
        return StepReport(len(rescued), more=most >= rows)
