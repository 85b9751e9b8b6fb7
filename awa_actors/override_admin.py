"""Runtime overrides of queues, reached as ``client.admin.overrides``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from awa_actors.core.validation import check_queue, positive_seconds
from awa_actors.errors import ValidationError

if TYPE_CHECKING:
    from awa_actors.store.overrides import Overrides
    from awa_actors.store.pool import Pool

LONGEST = 2_000_000.0
"""Seconds that fit the column of milliseconds."""


@attrs.frozen(eq=False)
class OverrideAdmin:
    """Tune queues of running workers; each worker follows within ten seconds."""

    _pool: Pool

    async def set(
        self,
        queue: str,
        *,
        poll_interval: float | None = None,
        claim_batch: int | None = None,
        rate_limit: float | None = None,
        deadline: float | None = None,
    ) -> Overrides:
        """Replace all overrides of a queue: what is not said goes back to each worker's own setting.

        Args:
            queue: which.
            poll_interval: seconds between looks when nothing wakes a dispatcher.
            claim_batch: most jobs of one claim.
            rate_limit: starts per second in each process.
            deadline: seconds an attempt may run unless its job says otherwise; for attempts that begin from now on.

        Raises:
            ValidationError: a value is not above 0.
        """
        from awa_actors.store import overrides

        if claim_batch is not None and (isinstance(claim_batch, bool) or not 1 <= claim_batch <= 100_000):
            raise ValidationError(f"must be from 1 to 100000, not {claim_batch!r}", "$.claim_batch")
        wanted = overrides.Overrides(
            _seconds(poll_interval, "$.poll_interval"),
            claim_batch,
            None if rate_limit is None else positive_seconds(rate_limit, path="$.rate_limit"),
            _seconds(deadline, "$.deadline"),
        )
        name = check_queue(queue)
        async with self._pool.acquire() as session:
            await overrides.set_overrides(session, name, wanted)
        return wanted

    async def clear(self, queue: str) -> bool:
        """Take all overrides of a queue back; False when there were none."""
        from awa_actors.store import overrides

        async with self._pool.acquire() as session:
            return await overrides.clear_overrides(session, check_queue(queue))

    async def show(self, queue: str) -> Overrides:
        """What is overridden now."""
        from awa_actors.store import overrides

        async with self._pool.acquire() as session:
            found = await overrides.overrides_of(session, [check_queue(queue)])
        return found.get(queue, overrides.NONE)


def _seconds(value: float | None, path: str) -> float | None:
    if value is None:
        return None
    if positive_seconds(value, path=path) > LONGEST:
        raise ValidationError(f"must be at most {LONGEST:.0f} seconds, not {value!r}", path)
    return float(value)
