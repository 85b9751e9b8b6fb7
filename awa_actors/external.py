"""Resolving callbacks: the verbs that a client and its transactions share."""

from __future__ import annotations

import datetime as dt
from abc import abstractmethod
from typing import Any

from awa_actors.jobs import JobRow
from awa_actors.store import resolve as resolutions
from awa_actors.store.resolve import Resolution


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
        """Fail the job for good; where its queue keeps dead letters it becomes one."""
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
