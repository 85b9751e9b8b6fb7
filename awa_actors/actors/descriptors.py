"""Publishes what a process declares about its queues and kinds, at its start and from time to time.

Every process that declares does it for itself, worker or maintenance, leading or not: what it says is about its own
code, a leader may be of another application or know no code at all, and two processes that say different things can
only be told apart if each of them speaks. A publication is idempotent, so none needs to be elected for it.
"""

from __future__ import annotations

import logging

import attrs
import trio

from awa_actors.errors import StoreError
from awa_actors.registry import Registry
from awa_actors.store.descriptors import publish
from awa_actors.store.pool import Pool

PUBLISH_EVERY = 60.0
"""Seconds; what three publications in a row do not say any more is stale."""
RETRY_AFTER = 5.0

logger = logging.getLogger("awa_actors.descriptors")


@attrs.frozen
class Descriptors:
    """Borrows a connection of the pool for one statement a minute; a reserved one would be idle for the rest of it.

    Args:
        pool: lends the connection.
        registry: what this process declares.
        every: seconds between publications.
    """

    pool: Pool
    registry: Registry
    every: float = PUBLISH_EVERY

    async def run(self) -> None:
        """Publish until cancelled. A database that is away delays it, and nothing else."""
        if not self.registry.queue_descriptors and not self.registry.kind_descriptors:
            return
        told: str | None = None
        while True:
            try:
                await self.publish()
                told, rest = None, self.every
            except StoreError as error:
                if told != str(error):
                    logger.warning("descriptors are not published: %s", error)
                told, rest = str(error), min(RETRY_AFTER, self.every)
            await trio.sleep(rest)

    async def publish(self) -> None:
        """Publish once."""
        queues, kinds = self.registry.queue_descriptors.values(), self.registry.kind_descriptors.values()
        async with self.pool.acquire() as session:
            await publish(session, self.registry.application, queues, kinds, self.every)
