"""The move between storage planes, reached as ``client.admin.storage``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import attrs
import trio

from awa_actors.core.transition import READY_IN_A_ROW, Drain, Transition
from awa_actors.core.validation import positive_seconds
from awa_actors.errors import StorageGateClosed, TransientStoreError, ValidationError

if TYPE_CHECKING:
    from awa_actors.store.pool import Pool, Session

LOOK_EVERY = 1.0
"""Seconds between looks of whoever waits for the end."""


def _nobody_watches(now: Transition | None, drain: Drain, trouble: str | None) -> None:
    """Nothing."""


@attrs.frozen(eq=False)
class StorageAdmin:
    """Steps of the move, each one transaction. A step whose precondition does not hold says what it waits for."""

    _pool: Pool

    async def status(self) -> Transition:
        """How things stand, what is left to do, and what each step waits for."""
        from awa_actors.store import transition

        async with self._pool.acquire() as session:
            return await transition.status(session)

    async def planes(self) -> tuple[dict[str, int], dict[str, int]]:
        """Count what is in the two planes now: live canonical jobs by state, rows of the queue plane by table."""
        from awa_actors.store import transition

        async with self._pool.acquire() as session:
            return await transition.planes(session)

    async def status_with_rate(self, seconds: float = LOOK_EVERY) -> tuple[Transition, Drain]:
        """Look, and where jobs are leaving the canonical plane, look again to see how fast.

        Args:
            seconds: between the two looks.
        """
        drain = Drain()
        now = await self.status()
        drain.saw(now.canonical_live_backlog, trio.current_time())
        if now.state == "mixed_transition" and now.canonical_live_backlog:
            await trio.sleep(seconds)
            now = await self.status()
            drain.saw(now.canonical_live_backlog, trio.current_time())
        return now, drain

    async def prepare(self, engine: str = "queue_storage", details: dict[str, Any] | None = None) -> Transition:
        """Name the engine to move to. Nothing moves yet, and :meth:`abort` takes it back.

        Raises:
            ValidationError: there is no such engine, or it is the active one.
            StorageGateClosed: the move is further than that.
        """
        from awa_actors.store import transition

        return await self._step(lambda session: transition.prepare(session, engine, details or {}))

    async def prepare_schema(self, schema: str) -> bool:
        """Give the queue plane, which must be empty and unused, a schema of this name; False when it has that already.

        Raises:
            ValidationError: not a name for a schema.
            StorageGateClosed: the queue plane has jobs, processes use it, or the name is taken.
        """
        from awa_actors.store import transition

        async with self._pool.acquire() as session:
            made = await transition.prepare_schema(session, schema)
        self._pool.forget_schema()
        return made

    async def enter_mixed_transition(self) -> Transition:
        """Send new jobs to the queue plane from now on; what the canonical plane has leaves it.

        Raises:
            StorageGateClosed: nothing is prepared, nobody could run what is enqueued, or somebody could not see it.
        """
        from awa_actors.store import transition

        return await self._step(transition.enter_mixed_transition)

    async def finalize(self) -> Transition:
        """Give up the canonical plane. This is final.

        Raises:
            StorageGateClosed: it has live jobs, or the transition has not been entered.
        """
        from awa_actors.store import transition

        return await self._step(transition.finalize)

    async def finalize_when_ready(
        self,
        watch: Callable[[Transition | None, Drain, str | None], None] = _nobody_watches,
        *,
        look_every: float = LOOK_EVERY,
    ) -> Transition:
        """Wait until nothing is in the way at two looks in a row, and finalize. Fine when somebody else has done so.

        A database that is away for a while is waited for.

        Args:
            watch: called after every look with how things stand (None: not seen), the rate, and the trouble.
            look_every: seconds between looks.

        Raises:
            StorageGateClosed: the transition has not been entered, so that waiting is no use.

        Cancellation: nothing has changed, or the move has ended.
        """
        drain, ready = Drain(), 0
        while True:
            now, trouble = None, None
            try:
                now = await self.status()
                if now.state not in ("mixed_transition", "active"):
                    raise StorageGateClosed("; ".join(now.blockers["finalize"]))
                drain.saw(now.canonical_live_backlog, trio.current_time())
                ready = 0 if now.blockers["finalize"] else ready + 1
                if now.state == "mixed_transition" and ready >= READY_IN_A_ROW:
                    now = await self._finalized()
                    ready = 0
            except TransientStoreError as error:
                ready, trouble = 0, str(error)
            watch(now, drain, trouble)
            if now is not None and now.state == "active":
                return now
            await trio.sleep(look_every)

    async def _finalized(self) -> Transition:
        """Finalize, unless somebody else has, or something came in the way after all."""
        try:
            return await self.finalize()
        except StorageGateClosed:
            return await self.status()

    async def abort(self) -> Transition:
        """Go back to canonical, as long as that strands nothing; fine when nothing was prepared.

        Raises:
            StorageGateClosed: the queue plane has jobs, workers run it, or it is active, which is final.
        """
        from awa_actors.store import transition

        return await self._step(transition.abort)

    async def pause_mover(self) -> Transition:
        """Let jobs of the canonical plane where they are until they run; the mover stands still."""
        from awa_actors.store import transition

        return await self._step(lambda session: transition.pause_mover(session, True))

    async def resume_mover(self) -> Transition:
        """Let the mover go on."""
        from awa_actors.store import transition

        return await self._step(lambda session: transition.pause_mover(session, False))

    async def throttle_mover(self, rows_per_second: float | None) -> Transition:
        """Bound how many rows the mover takes per second; None takes the bound away.

        Raises:
            ValidationError: not above 0.
        """
        from awa_actors.store import transition

        if rows_per_second is not None and positive_seconds(rows_per_second, path="$.rows_per_second") < 0.001:
            raise ValidationError("must be at least 0.001", "$.rows_per_second")
        return await self._step(lambda session: transition.throttle_mover(session, rows_per_second))

    async def _step(self, step: Callable[[Session], Awaitable[None]]) -> Transition:
        from awa_actors.store import transition

        async with self._pool.acquire() as session:
            await step(session)
            return await transition.status(session)
