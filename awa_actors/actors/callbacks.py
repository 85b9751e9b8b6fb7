"""Callbacks from inside a handler: the registration, and the wait that keeps its permit."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import trio

from awa_actors.core.backoff import clamp_delay
from awa_actors.core.callbacks import check_expressions
from awa_actors.core.expressions import compile_expression
from awa_actors.errors import (
    CallbackExpired,
    CallbackNotFound,
    StaleAttempt,
    StoreError,
    TransientStoreError,
    ValidationError,
)
from awa_actors.store import callbacks
from awa_actors.store.callbacks import Holder, Look
from awa_actors.store.pool import Pool

LEAVE_BOUND = 1.0
"""Seconds a cancelled wait may take to say that it is over."""

logger = logging.getLogger("awa_actors.worker")


@attrs.define(eq=False)
class Callbacks:
    """What the running attempts of one process wait for.

    Args:
        pool: for single statements; a wait holds no connection.
        poll: seconds between looks while nothing is notified.
    """

    pool: Pool
    poll: float
    _waiting: dict[str, trio.Event] = attrs.field(factory=dict, init=False)

    def wake(self, callback_id: str | None) -> None:
        """A callback was resolved; None: notifications may have been missed, so everybody looks."""
        for name in list(self._waiting) if callback_id is None else [callback_id]:
            if (waiting := self._waiting.get(name)) is not None:
                waiting.set()

    async def register(self, holder: Holder, expires_in: Any, expressions: dict[str, str | None]) -> str:
        """Register a callback, committed when this returns; an earlier one of the job is void.

        Raises:
            ValidationError: the expiry is no positive number of seconds, or an expression does not compile.
            StaleAttempt: the attempt is no longer this process's.
        """
        seconds = clamp_delay(expires_in, path="$.expires_in")
        if seconds <= 0:
            raise ValidationError("must be greater than 0", "$.expires_in")
        stored = check_expressions(expressions, compile_expression)
        async with self.pool.acquire() as session:
            callback_id = await callbacks.register(session, holder, seconds, stored)
        if callback_id is None:
            raise StaleAttempt(f"job {holder.job_id} is no longer run by this attempt; stop and change nothing")
        return callback_id

    async def cancel(self, callback_id: str, holder: Holder) -> bool:
        """Take a registration back; False when it was resolved or replaced."""
        async with self.pool.acquire() as session:
            return await callbacks.unregister(session, callback_id, holder)

    async def wait(self, callback_id: str, holder: Holder, remaining: float | None) -> Any:
        """Wait until the job is resumed; returns the payload, also when it was there before the wait began.

        An outage of the database is waited out.

        Args:
            callback_id: which.
            holder: the attempt.
            remaining: seconds left of its deadline, which stands still meanwhile.

        Raises:
            CallbackNotFound: not registered, taken back or replaced.
            CallbackExpired: nobody resolved it in time.
            StaleAttempt: it was completed, failed, retried, cancelled or rescued meanwhile.

        Cancellation: the callback stays open, and the attempt counts as running again.
        """
        over = False
        try:
            while True:
                woken = self._waiting[callback_id] = trio.Event()
                seen = await self._look(callback_id, holder, remaining)
                if seen is not None and seen.status != "waiting":
                    over = True
                    return _answer(seen, callback_id, holder)
                due = self.poll if seen is None or seen.due_in is None else min(self.poll, max(seen.due_in, 0.0))
                with trio.move_on_after(due):
                    await woken.wait()
        finally:
            self._waiting.pop(callback_id, None)
            if not over:
                with trio.move_on_after(LEAVE_BOUND, shield=True):
                    await self._leave(callback_id, holder, remaining)

    async def _look(self, callback_id: str, holder: Holder, remaining: float | None) -> Look | None:
        try:
            async with self.pool.acquire() as session:
                return await callbacks.look(session, callback_id, holder, remaining)
        except TransientStoreError as error:
            logger.warning("job %d waits for its callback, cannot look now: %s", holder.job_id, error)
            return None

    async def _leave(self, callback_id: str, holder: Holder, remaining: float | None) -> None:
        try:
            async with self.pool.acquire() as session:
                await callbacks.leave(session, callback_id, holder, remaining)
        except StoreError as error:
            logger.warning("job %d does not wait any more, but still counts as waiting: %s", holder.job_id, error)


def _answer(seen: Look, callback_id: str, holder: Holder) -> Any:
    match seen.status:
        case "resumed":
            return seen.payload
        case "expired":
            raise CallbackExpired(f"nobody resolved callback {callback_id} of job {holder.job_id} in time")
        case "unknown":
            raise CallbackNotFound(f"callback {callback_id} is not registered, or a newer registration replaced it")
    raise StaleAttempt(f"job {holder.job_id} was ended or taken away while it waited; stop and change nothing")
