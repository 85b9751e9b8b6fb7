"""Resolutions that arrive while others are written wait for one another and are written together.

One that comes alone is resolved at once. Under load the database is asked as often as it can answer, for all who have
come meanwhile: the dearer a commit, the more of them share one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
import attrs

from awa_actors.errors import CallbackNotFound, TransientStoreError
from awa_actors.store.resolve import Resolution, Resolved
from awa_actors.store.resolve_together import Answer, Done, may_share

AT_ONCE = 2
"""Transactions under way: one is executed while the other is committed."""
MOST = 64
"""Resolutions in one of them, so that nobody waits long for the others."""


@attrs.define(eq=False)
class _Waiting:
    """Somebody's resolution, until somebody else has written it, or asks them to write it with others."""

    resolution: Resolution
    woken: anyio.Event = attrs.field(factory=anyio.Event)
    leads: bool = False
    was_lost: bool = False
    answer: Answer = None


@attrs.define(eq=False)
class Gathered:
    """Resolves on Trio and on asyncio alike.

    Args:
        alone: resolves one.
        together: resolves many; None for one that must be resolved alone.
    """

    alone: Callable[[Resolution], Awaitable[Done | Resolved]]
    together: Callable[[Sequence[Resolution]], Awaitable[list[Answer]]]
    _waiting: list[_Waiting] = attrs.field(factory=list)
    _under_way: int = 0

    async def resolve(self, resolution: Resolution) -> Done | Resolved:
        """Resolve one, with others where that is quicker.

        Raises:
            CallbackNotFound, FollowUpError: as a resolution that stands alone.
            TransientStoreError: also when whoever wrote it with others was cut off.

        Cancellation: a resolution that others are written with is written all the same.
        """
        if not may_share(resolution):
            return await self.alone(resolution)
        if self._under_way < AT_ONCE:
            self._under_way += 1
            try:
                return await self.alone(resolution)
            finally:
                self._pass_on()
        mine = _Waiting(resolution)
        self._waiting.append(mine)
        try:
            await mine.woken.wait()
        except BaseException:
            if mine.leads:
                self._pass_on()
            elif mine in self._waiting:
                self._waiting.remove(mine)
            raise
        if mine.leads:
            await self._lead(mine)
        if mine.was_lost:
            raise TransientStoreError("the connection was lost with the answer; try again")
        if isinstance(mine.answer, CallbackNotFound):
            raise mine.answer
        return mine.answer or await self.alone(resolution)

    async def _lead(self, mine: _Waiting) -> None:
        """Write what waits, ours among it."""
        batch = [mine, *self._waiting[: MOST - 1]]
        del self._waiting[: MOST - 1]
        for one in batch:
            one.was_lost = True
        try:
            # Those who wait for us have not gone away. The server's statement timeout bounds this.
            with anyio.CancelScope(shield=True):
                answers = await self.together([one.resolution for one in batch])
            for one, answer in zip(batch, answers, strict=True):
                one.was_lost, one.answer = False, answer
        finally:
            for one in batch[1:]:
                one.woken.set()
            self._pass_on()

    def _pass_on(self) -> None:
        """One is no longer under way: whoever has waited longest writes the next."""
        if self._waiting:
            following = self._waiting.pop(0)
            following.leads = True
            following.woken.set()
        else:
            self._under_way -= 1
