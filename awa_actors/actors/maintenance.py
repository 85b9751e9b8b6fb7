"""Maintenance: leader-elected lanes that keep a database moving. It never claims or runs a job.

The candidate inside a worker and the maintenance role are this same code.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import trio

from awa_actors.actors.batches import Batches
from awa_actors.actors.cron import Cron
from awa_actors.actors.follow_ups import FollowUps
from awa_actors.actors.hygiene import Hygiene
from awa_actors.actors.lane import Lane, LaneDown, LaneHealth, Step
from awa_actors.actors.leader import Leader
from awa_actors.actors.listener import Listener
from awa_actors.actors.liveness import LivenessActor
from awa_actors.actors.meters import Meters, Read
from awa_actors.actors.mover import Mover
from awa_actors.actors.observers import Observers
from awa_actors.actors.promote import Promote
from awa_actors.actors.refresh import Refresh
from awa_actors.actors.rescue import Rescue
from awa_actors.config import MaintenanceSettings
from awa_actors.core.channels import DUE_CHANNEL, LEADER_CHANNEL, STORAGE_CHANNEL
from awa_actors.registry import Registry
from awa_actors.store.leadership import cron_lease
from awa_actors.store.planes import Planes
from awa_actors.store.pool import Pool
from awa_actors.store.rescue import RescuedJob

VITAL = frozenset({"promote", "rescue"})
"""Lanes without which nothing moves: if one stays down, another process should lead."""

logger = logging.getLogger("awa_actors.maintenance")


def steps(
    pool: Pool,
    settings: MaintenanceSettings,
    registry: Registry,
    committed: Callable[[list[RescuedJob]], None] = lambda rescued: None,
    planes: Planes | None = None,
    meters: Meters | None = None,
) -> list[Step]:
    """The steps of all lanes, in the order a tick runs them. `committed` is told what was rescued."""
    listens, meters = pool.settings.listens, meters or Meters()
    return [
        Promote(settings.promote_interval if listens else min(settings.promote_interval, 0.2), listens),
        Rescue(settings.rescue_interval, settings.rescue_bound, settings.deadline_margin, committed, meters),
        Mover(planes or Planes()),
        *([Cron(registry, settings.cron_interval)] if registry.schedules else []),
        Hygiene(settings, meters),
        Batches(settings.batch_interval),
        Refresh(settings.refresh_interval, meters),
    ]


@attrs.frozen(eq=False)
class Led:
    """A lane with a lease of its own."""

    leader: Leader
    lane: Lane


@attrs.define(eq=False)
class Maintenance:
    """A running candidate, as `nursery.start(client.run_maintenance)` gives it."""

    pool: Pool
    settings: MaintenanceSettings
    registry: Registry
    leader: Leader
    lanes: Sequence[Lane]
    cron: Led | None
    follow_ups: FollowUps
    observers: Observers
    liveness: LivenessActor
    planes: Planes
    meters: Meters

    @classmethod
    def build(
        cls,
        pool: Pool,
        registry: Registry,
        settings: MaintenanceSettings,
        liveness: LivenessActor,
        listener: Listener,
        follow_ups: FollowUps,
        observers: Observers,
        planes: Planes | None = None,
        meters: Meters | None = None,
    ) -> Maintenance:
        """Put the parts together and subscribe to what wakes them. Before the listener runs."""
        self: Maintenance
        meters = meters or Meters()

        async def hold(term: int) -> None:
            await self._hold(term)

        planes = planes or Planes()
        lanes = [
            Lane(step, pool, settings.batch, step.name in VITAL, settings.lane_failures, LaneHealth(), meters=meters)
            for step in steps(pool, settings, registry, follow_ups.tell, planes, meters)
        ]
        leader = Leader(pool, lambda: liveness.instance, settings.lease, hold)
        cron = None
        if registry.schedules:
            # Led per application: the leader of the lanes may be a process that does not declare these schedules.
            own = next(lane for lane in lanes if isinstance(lane.step, Cron))
            name = cron_lease(registry.application)
            cron = Led(Leader(pool, lambda: liveness.instance, settings.lease, lambda term: own.run(), name), own)
            listener.on(LEADER_CHANNEL, cron.leader.wake)
        self = cls(pool, settings, registry, leader, lanes, cron, follow_ups, observers, liveness, planes, meters)
        listener.on(LEADER_CHANNEL, leader.wake)
        listener.on(DUE_CHANNEL, lanes[0].wake)
        for lane in lanes:
            if isinstance(lane.step, Mover):
                listener.on(STORAGE_CHANNEL, lane.wake)
        return self

    @property
    def is_leader(self) -> bool:
        """Whether this process leads now, as far as it can trust its lease."""
        return self.leader.term is not None

    @property
    def term(self) -> int | None:
        """The term this process leads in, or None."""
        return self.leader.term

    @property
    def beating(self) -> bool:
        """Whether the stored beat is so fresh that nobody takes this process for dead."""
        return self.liveness.may_claim()

    @property
    def _leaders(self) -> list[Leader]:
        return [self.leader, *([] if self.cron is None else [self.cron.leader])]

    def _leader_of(self, lane: Lane) -> Leader:
        return self.cron.leader if self.cron is not None and lane is self.cron.lane else self.leader

    def _has_work(self, lane: Lane) -> bool:
        """Whether a lane may ever have something to do: where the planes are known to be one, the mover has not."""
        return not (isinstance(lane.step, Mover) and self.planes.finalized)

    async def wait_leader(self) -> int:
        """Wait until this process leads; returns the term."""
        return await self.leader.wait_leader()

    def resign(self) -> None:
        """Give up what it leads and stand aside for one lease, so that another process can lead."""
        for leader in self._leaders:
            leader.give_up()

    def describe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Lanes and details, as the instance row publishes them."""
        leading = [lane for lane in self.lanes if self._leader_of(lane).term is not None and not lane.health.over]
        lanes = {lane.step.name: lane.health.describe(lane.step.interval) for lane in leading}
        details = {
            "candidate": self.settings.lead,
            "schedules": bool(self.registry.schedules),
            "leader": self.is_leader,
            "term": self.term,
            **self.planes.describe(),
            **self.follow_ups.describe(),
            "observed_events_dropped": self.observers.dropped,
            "totals": self.meters.describe(),
        }
        return lanes, details

    async def run(self, *, task_status: trio.TaskStatus[Maintenance] = trio.TASK_STATUS_IGNORED) -> None:
        """Be a candidate until cancelled. `started` means candidate; `wait_leader` means leader."""
        task_status.started(self)
        if not self.settings.lead:
            await trio.sleep_forever()
        led: dict[str, Read] = {
            "awa.maintenance.leader": lambda: [({}, int(self.is_leader))],
            "awa.maintenance.term": lambda: [({}, self.term or 0)],
        }
        with self.meters.watching(led):
            async with trio.open_nursery() as nursery:
                for leader in self._leaders:
                    nursery.start_soon(leader.run, name=f"{leader.name} leader")

    async def _hold(self, term: int) -> None:
        """Run the lanes of one term; each is its own task, so none delays another."""
        try:
            async with trio.open_nursery() as nursery:
                mine = [lane for lane in self.lanes if self._leader_of(lane) is self.leader]
                for lane in filter(self._has_work, mine):
                    nursery.start_soon(lane.run, name=f"lane {lane.step.name}")
        except* LaneDown as down:
            logger.error("term %d is given up: %s", term, "; ".join(str(error) for error in down.exceptions))
            self.leader.give_up()
        finally:
            self.meters.term_ended()
