"""Keeps this process's instance row alive, and tells the worker what to do when it cannot."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import trio

from awa_actors.actors.listener import Listener
from awa_actors.actors.meters import Meters
from awa_actors.core.liveness import Liveness
from awa_actors.errors import StoreError
from awa_actors.store.beat import Beat, Pulse
from awa_actors.store.connection import OwnConnection
from awa_actors.store.instances import Identity, leave, publish, register
from awa_actors.store.pool import Pool, Session, session_parameters

TURN = 0.25
"""Seconds between marks that the loop turns."""
PUBLISH_EVERY = 5.0

logger = logging.getLogger("awa_actors.liveness")


def _nothing_to_describe() -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {}


async def _nothing_to_look_at(session: Session) -> None:
    return None


@attrs.define(eq=False)
class LivenessActor:
    """Registers an instance, beats from a thread, and registers anew when the row was declared dead.

    Args:
        pool: opens the two connections (beat, publication).
        role: worker, maintenance or callbacks.
        liveness: beat and staleness.
        loop_stall_limit: seconds without a turn of the loop after which the beat stops.
        kinds, queues: what is published about this process.
        describe: lanes and details, asked for at every publication.
        lost: called when this instance's attempts have gone to others.
        look: what a description needs to know; asked before every publication.
        listener: of this process, whose server process is published: an outsider can tell whether it lives.
        meters: told of stored beats.
    """

    pool: Pool
    role: str
    version: str
    liveness: Liveness
    loop_stall_limit: float
    kinds: tuple[str, ...]
    queues: dict[str, Any]
    describe: Callable[[], tuple[dict[str, Any], dict[str, Any]]] = _nothing_to_describe
    lost: Callable[[], None] = lambda: None
    look: Callable[[Session], Awaitable[None]] = _nothing_to_look_at
    listener: Listener | None = None
    meters: Meters = attrs.field(factory=Meters)
    instance: uuid.UUID = attrs.field(factory=uuid.uuid4)
    state: str = "running"
    pulse: Pulse = attrs.field(factory=Pulse)

    def may_claim(self) -> bool:
        """False when the last stored beat is so old that others may soon take what this process runs."""
        return not self.pulse.gone and time.monotonic() - self.pulse.last_good < self.liveness.stop_claiming_after

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Live until cancelled; each turn of the loop is one incarnation.

        Cancellation: the beat's thread ends; the owner of this actor signs off when all else is done.
        """
        async with OwnConnection(self.pool, f"{self.role} liveness") as connection:
            await self._register(connection)
            task_status.started()
            while True:
                await self._incarnation(connection)
                logger.error(
                    "instance %s was declared dead; its attempts are stopped and a new instance registers",
                    self.instance,
                )
                self.lost()
                self.instance, self.pulse = uuid.uuid4(), Pulse()
                await self._register_surely(connection)

    async def _register(self, connection: OwnConnection) -> None:
        me = Identity(
            self.instance, self.role, socket.gethostname(), os.getpid(), self.version, self.liveness.stale_after,
            self.kinds, self.queues, self._details(self.describe()[1]),
        )  # fmt: skip
        await register(await connection.session(), me)
        self.pulse.last_good = time.monotonic()

    async def _register_surely(self, connection: OwnConnection) -> None:
        while True:
            try:
                return await self._register(connection)
            except StoreError as error:
                logger.warning("cannot register: %s", error)
                await trio.sleep(1.0)

    async def _incarnation(self, connection: OwnConnection) -> None:
        token, changed = trio.lowlevel.current_trio_token(), trio.Event()

        def tell() -> None:
            # A beat that is under way while this process signs off finds its row gone, perhaps when Trio has ended.
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(changed.set)

        parameters = {"application_name": f"awa_actors {self.role} beat"}
        if not self.pool.settings.pooler:
            parameters |= session_parameters(self.pool.settings)
        beat = Beat(
            self.pool.url, parameters, self.pool.settings.pooler, self.instance, self.liveness, self.loop_stall_limit,
            self.pulse, tell,
        )  # fmt: skip
        stop = beat.start()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._turn, name="loop turns")
                nursery.start_soon(self._publish, connection, name="publish instance")
                await changed.wait()
                nursery.cancel_scope.cancel()
        finally:
            stop.set()

    def _details(self, described: dict[str, Any]) -> dict[str, Any]:
        """What the doctor asks of every process, beside what this one describes."""
        settings = self.pool.settings
        listens = settings.listens and self.listener is not None
        return described | {
            "pool_size": settings.pool_size,
            "pooler": settings.pooler,
            "listens": listens,
            "listener": self.listener.backend if self.listener is not None and listens else None,
        }

    async def sign_off(self, session: Session) -> None:
        """Say that this instance has ended, as the last thing it does: whatever it still holds may be taken at once."""
        await leave(session, self.instance)

    async def _turn(self) -> None:
        counted = 0
        while True:
            self.pulse.loop_turned = time.monotonic()
            if (stored := self.pulse.stored) > counted:
                self.meters.beaten(stored - counted)
                counted = stored
            await trio.sleep(TURN)

    async def _publish(self, connection: OwnConnection) -> None:
        while True:
            try:
                session = await connection.session()
                await self.look(session)
                lanes, details = self.describe()
                await publish(session, self.instance, self.state, lanes, self._details(details))
            except StoreError as error:
                logger.debug("instance row not published: %s", error)
            await trio.sleep(PUBLISH_EVERY)
