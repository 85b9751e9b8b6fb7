"""Resolving callbacks: the verbs that a client and its transactions share."""

from __future__ import annotations

import datetime as dt
import functools
from abc import abstractmethod
from typing import Any

import attrs
import trio

from awa_actors.core.callbacks import Complete, Fail, Ignore, decide, default_action, payload_text
from awa_actors.core.expressions import evaluate, require
from awa_actors.jobs import JobRow
from awa_actors.registry import Registry
from awa_actors.store import resolve as resolutions
from awa_actors.store.resolve import Resolution


@attrs.frozen
class ExternalOutcome:
    """What `resolve_external` made of a payload.

    Args:
        outcome: `completed`, `failed` or `ignored` (the callback stays open).
        job: the row as it landed, or as it is.
        payload: the result, transformed.
        reason: why it failed or was ignored.
    """

    outcome: str
    job: JobRow
    payload: Any = None
    reason: str | None = None


class ResolvesCallbacks:
    """Everything the outside world may do to a callback, at most one of it with effect.

    The registry's follow-ups of what happened are enqueued in the same transaction. All of these raise
    :class:`CallbackNotFound` when no open callback has this id, :class:`FollowUpError` when a follow-up failed, and
    :class:`ValidationError` for an id that is no UUID; then nothing was changed, and the callback is as open as before.

    Several in one transaction: in ascending order of job ids, or two such transactions may deadlock.
    """

    __slots__ = ()

    @abstractmethod
    async def _resolve(self, resolution: Resolution) -> JobRow:
        """Run one resolution with its follow-ups."""

    @property
    @abstractmethod
    def _payload_limit(self) -> int:
        """Most bytes of a payload."""

    async def complete_external(self, callback_id: str, payload: Any = None) -> JobRow:
        """Complete the job, parked or still running, with the payload as its result."""
        return await self._resolve(resolutions.complete(callback_id, payload, limit=self._payload_limit))

    async def fail_external(self, callback_id: str, error: str) -> JobRow:
        """Fail the job for good; it does not become a dead letter."""
        return await self._resolve(resolutions.fail(callback_id, error))

    async def retry_external(self, callback_id: str) -> JobRow:
        """Run the waiting job again from the start, attempt 0.

        Raises:
            TransientStoreError: its handler still runs; try again when the job waits.
        """
        return await self._resolve(resolutions.retry(callback_id))

    async def resume_external(self, callback_id: str, payload: Any = None) -> JobRow:
        """Let the job go on: a handler waiting inside gets the payload, a parked job runs again with it, uncounted."""
        return await self._resolve(resolutions.resume(callback_id, payload, limit=self._payload_limit))

    async def heartbeat_callback(self, callback_id: str, seconds: float | dt.timedelta = 3600.0) -> JobRow:
        """Let the callback expire this long from now instead."""
        return await self._resolve(resolutions.heartbeat(callback_id, seconds))


async def resolve_by_expressions(
    session: Any, registry: Registry, callback_id: str, payload: Any, default: Any, limit: int
) -> ExternalOutcome:
    """Let the callback's own expressions decide, under its lock, in the transaction that is open on the session.

    Args:
        session: a session in a transaction.
        registry: whose follow-ups are enqueued.
        callback_id: which.
        payload: JSON value.
        default: what happens when no expression decides: `complete`, `fail` or `ignore`.
        limit: most bytes of the result.

    Raises:
        CallbackNotFound, FollowUpError, ValidationError: as for every resolution.
        UsageError: the callback has expressions and the 'cel' extra is not installed here.
    """
    action, asked = default_action(default), resolutions.lock(callback_id)
    payload_text(payload, limit=limit)
    opened = resolutions.read_open(await session.fetchval(asked.sql, *asked.arguments), asked)
    if opened.expressions:
        require()
    # In a thread: how long an expression takes is up to the payload.
    decision = await trio.to_thread.run_sync(functools.partial(decide, opened.expressions, payload, action, evaluate))
    match decision:
        case Complete(payload=result):
            resolution = resolutions.complete(callback_id, result, limit=limit)
            resolved = await resolutions.resolve_within(session, registry, resolution)
            return ExternalOutcome("completed", resolved.job, payload=resolved.job.result)
        case Fail(error=error):
            resolved = await resolutions.resolve_within(session, registry, resolutions.fail(callback_id, error))
            return ExternalOutcome("failed", resolved.job, reason=error)
        case Ignore(reason=reason):
            return ExternalOutcome("ignored", opened.job, reason=reason)
