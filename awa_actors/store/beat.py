"""The beat: one small write per process, from a thread of its own, with its own loop and connection.

A handler that blocks the event loop does not stop it, so the process does not look dead; the thread watches the loop,
so that a wedged process does not look alive for ever.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable

import asyncpg
import attrs

from awa_actors.core.liveness import Liveness
from awa_actors.store.instances import BEAT

logger = logging.getLogger("awa_actors.liveness")


@attrs.define(eq=False)
class Pulse:
    """What thread and loop know of each other; every field is a plain assignment of one of them.

    Args:
        last_good: when the last stored beat was SENT (monotonic seconds), written by the thread.
        loop_turned: when the event loop last turned (monotonic seconds), written by the loop.
        gone: the instance's row is dead or missing: its attempts belong to others now.
        skipped: beats that were left out because the loop had not turned.
        stored: beats of this incarnation that the database has taken, counted by the thread.
    """

    last_good: float = attrs.field(factory=time.monotonic)
    loop_turned: float = attrs.field(factory=time.monotonic)
    gone: bool = False
    skipped: int = 0
    stored: int = 0


@attrs.frozen(eq=False)
class Beat:
    """Everything the thread needs."""

    url: str | None
    parameters: dict[str, str]
    pooler: bool
    instance: uuid.UUID
    liveness: Liveness
    loop_stall_limit: float
    pulse: Pulse
    changed: Callable[[], None]

    def start(self) -> threading.Event:
        """Start the thread; setting the returned event ends it within a beat's timeout."""
        stop = threading.Event()
        threading.Thread(target=self._run, args=(stop,), name="awa beat", daemon=True).start()
        return stop

    def _run(self, stop: threading.Event) -> None:
        loop = asyncio.SelectorEventLoop()
        try:
            loop.run_until_complete(self._beat_until(stop))
        finally:
            loop.close()

    async def _beat_until(self, stop: threading.Event) -> None:
        connection: asyncpg.Connection[asyncpg.Record] | None = None
        while not stop.is_set() and not self.pulse.gone:
            sent = time.monotonic()
            if sent - self.pulse.loop_turned > self.loop_stall_limit:
                self.pulse.skipped += 1
                logger.error("the event loop has not turned for %.0f s: not beating", sent - self.pulse.loop_turned)
            else:
                connection = await self._beat(connection, sent)
            left = self.liveness.beat_every - (time.monotonic() - sent)
            await asyncio.get_running_loop().run_in_executor(None, stop.wait, max(0.01, left))
        if connection is not None:
            connection.terminate()

    async def _beat(
        self, connection: asyncpg.Connection[asyncpg.Record] | None, sent: float
    ) -> asyncpg.Connection[asyncpg.Record] | None:
        try:
            async with asyncio.timeout(self.liveness.beat_timeout):
                if connection is None or connection.is_closed():
                    connection = await asyncpg.connect(
                        self.url, server_settings=self.parameters, statement_cache_size=0 if self.pooler else 10
                    )
                alive = await connection.fetchval(BEAT, self.instance)
        except Exception as error:  # whatever is wrong with the database, the next beat tries again
            logger.warning("a beat was not stored: %s", str(error) or type(error).__name__)
            if connection is not None:
                connection.terminate()
            return None
        if alive:
            self.pulse.last_good = sent
            self.pulse.stored += 1
        else:
            self.pulse.gone = True
            self.changed()
        return connection
