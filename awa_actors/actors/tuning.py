"""Hands the runtime overrides of queues to the dispatchers of this worker: one look at all, every few seconds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Protocol

import attrs
import trio

from awa_actors.errors import StoreError
from awa_actors.store.overrides import NONE, Overrides, overrides_of
from awa_actors.store.pool import Pool

REFRESH = 8.0
"""Seconds between looks, so that workers follow within ten."""

logger = logging.getLogger("awa_actors.worker")


class Tunable(Protocol):
    """A dispatcher, as far as overrides go."""

    def tune(self, overrides: Overrides) -> None:
        """Follow these from now on; without any, the worker's own settings."""


@attrs.frozen(eq=False)
class Tuning:
    """Reads overrides and passes on what has changed.

    Args:
        pool: for one short query at a time.
        dispatchers: by queue.
        refresh: seconds between looks.
    """

    pool: Pool
    dispatchers: Mapping[str, Tunable]
    refresh: float = REFRESH

    async def run(self) -> None:
        """Look until cancelled. An outage leaves everything as it was."""
        known = dict.fromkeys(self.dispatchers, NONE)
        while True:
            try:
                async with self.pool.acquire() as session:
                    found = await overrides_of(session, list(self.dispatchers))
            except StoreError as error:
                logger.debug("cannot look at overrides: %s", error)
            else:
                for queue, dispatcher in self.dispatchers.items():
                    wanted = found.get(queue, NONE)
                    if wanted != known[queue]:
                        known[queue] = wanted
                        dispatcher.tune(wanted)
                        logger.info("queue %s: overrides are now %s", queue, wanted)
            await trio.sleep(self.refresh)
