"""The maintenance role: what a process needs that only keeps a database moving. No dispatcher, no handlers."""

from __future__ import annotations

import logging

import attrs
import trio

import awa_actors
from awa_actors.actors.descriptors import Descriptors
from awa_actors.actors.follow_ups import FollowUps
from awa_actors.actors.listener import Listener
from awa_actors.actors.liveness import LivenessActor
from awa_actors.actors.maintenance import Maintenance
from awa_actors.actors.meters import Meters, vital_gauges
from awa_actors.actors.observers import Observers
from awa_actors.config import MaintenanceSettings, WorkerSettings
from awa_actors.core.channels import STORAGE_CHANNEL
from awa_actors.errors import StoreError
from awa_actors.registry import Registry
from awa_actors.store.follow_up_plan import Specs
from awa_actors.store.migrate import check
from awa_actors.store.planes import Planes
from awa_actors.store.pool import Pool

logger = logging.getLogger("awa_actors.maintenance")


@attrs.frozen(eq=False)
class MaintenanceRole:
    """One maintenance process."""

    pool: Pool
    registry: Registry
    settings: MaintenanceSettings
    life: WorkerSettings
    watching: list[Observers] = attrs.field(factory=list)
    meters: Meters = attrs.field(factory=Meters)

    async def run(self, *, task_status: trio.TaskStatus[Maintenance] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the database moving until cancelled.

        Raises:
            SchemaNotMigrated, SchemaNewerThanCode: before `started`.

        Cancellation: lanes end within a second, the lease is given back, committed rescues get a second for their
        follow-ups.
        """
        async with self.pool.acquire() as session:
            await check(session)
        listener, observers = Listener(self.pool, "maintenance"), Observers(self.registry, self.watching)
        liveness = LivenessActor(
            self.pool, "maintenance", awa_actors.__version__, self.life.liveness, self.life.loop_stall_limit, (), {},
            meters=self.meters,
        )  # fmt: skip
        liveness.listener = listener
        planes = Planes(self.life.storage)
        follow_ups = FollowUps(Specs(self.registry), self.pool, observers, "maintenance")
        maintenance = Maintenance.build(
            self.pool, self.registry, self.settings, liveness, listener, follow_ups, observers, planes, self.meters
        )
        liveness.describe, liveness.look = maintenance.describe, planes.refresh
        listener.on(STORAGE_CHANNEL, planes.changed)
        logger.info("maintenance role: keeps the database moving, never claims or runs a job")
        try:
            with self.meters.watching(vital_gauges(liveness, follow_ups)):
                async with trio.open_nursery() as nursery:
                    await nursery.start(follow_ups.run, name="follow-up dispatcher")
                    await nursery.start(observers.run, name="observers")
                    await nursery.start(liveness.run, name="liveness")
                    await nursery.start(listener.run, name="listener")
                    nursery.start_soon(Descriptors(self.pool, self.registry).run, name="descriptors")
                    await maintenance.run(task_status=task_status)
        finally:
            with trio.move_on_after(self.life.shutdown_write, shield=True):
                await self._sign_off(liveness)

    async def _sign_off(self, liveness: LivenessActor) -> None:
        try:
            session = await self.pool.connect("maintenance last step")
        except StoreError as error:
            logger.warning("could not sign off, the instance will be found stale: %s", error)
            return
        try:
            await liveness.sign_off(session)
        except StoreError as error:
            logger.warning("could not sign off, the instance will be found stale: %s", error)
        finally:
            await session.close()
