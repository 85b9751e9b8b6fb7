"""One running attempt: its scope, the cause if the runtime stops it, and the boundary where any ending is judged."""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import attrs
import trio

from awa_actors import codec
from awa_actors.actors.callbacks import Callbacks
from awa_actors.core.json_text import json_text
from awa_actors.core.outcome import COMPLETED, GIVE_BACK, Cause, Decision, Ending, args_misfit, decide
from awa_actors.core.text import shown
from awa_actors.errors import CallbackNotFound, StaleAttempt, UsageError, ValidationError
from awa_actors.jobs import CallbackToken, Completion
from awa_actors.registry import WorkerSpec
from awa_actors.running_job import Job
from awa_actors.store.callbacks import Holder
from awa_actors.store.claim import Claimed

PARENT_IS_CANCELLED = -math.inf
"""Effective deadline of a task whose surrounding scope is cancelled."""


class CancelRequested(BaseException):
    """Raised by job.check_cancelled() inside a handler; not an Exception, so that a broad except lets it through."""


class Services(Protocol):
    """What an attempt may ask of its runtime."""

    @property
    def client(self) -> Any: ...  # noqa: D102 - see running_job.AttemptControl
    @property
    def callbacks(self) -> Callbacks: ...  # noqa: D102
    async def store_notes(self, attempt: Attempt) -> bool: ...  # noqa: D102
    def recorded(self, attempts: Iterable[Attempt]) -> None: ...  # noqa: D102


@attrs.define(eq=False, slots=True)
class Attempt:
    """A claimed attempt of this process. It is its job's :class:`~awa_actors.running_job.AttemptControl`."""

    claimed: Claimed
    queue: str
    instance: uuid.UUID
    spec: WorkerSpec
    services: Services
    deadline: float | None
    call: Callable[[Callable[[Any], Any], Job[Any]], Awaitable[Any]] | None = None
    scope: trio.CancelScope | None = None
    cause: Cause | None = None
    job: Job[Any] | None = None
    interrupted_bound: int = 20
    waited: bool = False
    """Whether the handler has let others run; one that never did cannot have been cancelled."""
    expires: float | None = None
    """Monotonic seconds of the deadline: a thread can neither read Trio's clock nor see that its scope has expired."""

    @property
    def key(self) -> tuple[int, int]:
        """(job_id, run_lease): this attempt among all of this process."""
        return self.claimed[:2]

    def stop(self, cause: Cause) -> None:
        """Cancel the handler; the first cause counts."""
        if self.cause is None:
            self.cause = cause
        if self.scope is not None:
            self.scope.cancel()

    @property
    def client(self) -> Any:
        """The client this attempt runs on."""
        return self.services.client

    def is_cancelled(self) -> bool:
        """Whether the runtime asked the handler to stop."""
        return self.cause is not None or (self.expires is not None and time.monotonic() >= self.expires)

    def check_cancelled(self) -> None:
        """Raise if the runtime asked the handler to stop."""
        if self.is_cancelled():
            raise CancelRequested((self.cause or Cause.DEADLINE).value)

    def check_note(self, note: Any) -> None:
        """Raise if the database could not store this."""
        json_text(note)

    async def flush(self, job: Job[Any]) -> None:
        """Store progress and metadata now."""
        if not await self.services.store_notes(self):
            raise StaleAttempt(f"job {job.id} is no longer run by this attempt; stop and change nothing")

    async def register_callback(self, expires_in: Any, expressions: dict[str, str | None]) -> CallbackToken:
        """Register a callback of this attempt."""
        callback_id = await self.services.callbacks.register(self._holder, expires_in, expressions)
        return CallbackToken(callback_id, *self.key)

    async def wait_for_callback(self, token: CallbackToken) -> Any:
        """Wait for a callback of this attempt. The deadline stands still meanwhile, here and in the database."""
        if (token.job_id, token.run_lease) != self.key:
            raise CallbackNotFound(f"the token is of another attempt than this one of job {self.key[0]}")
        scope = self.scope
        assert scope is not None
        remaining = max(0.0, scope.deadline - trio.current_time())
        scope.deadline, self.expires = math.inf, None
        try:
            left = None if math.isinf(remaining) else remaining
            return await self.services.callbacks.wait(token.callback_id, self._holder, left)
        finally:
            self._allow(scope, remaining)

    async def cancel_callback(self, token: CallbackToken) -> bool:
        """Take a registration of this attempt back."""
        return await self.services.callbacks.cancel(token.callback_id, self._holder)

    @property
    def _holder(self) -> Holder:
        return Holder(*self.key, self.instance)

    def _make_job(self) -> Job[Any]:
        claimed = self.claimed
        return Job(codec.decode(claimed.args, self.spec.args), self.queue, claimed, self)

    async def run(self, scope: trio.CancelScope) -> Decision:
        """Run the handler and decide what to record.

        Args:
            scope: entered by the caller; cancelling it stops the handler.

        Cancellation: a cancelled surrounding means shutdown; the decision is returned all the same, for the caller to
            record. KeyboardInterrupt goes on up.
        Source: the outcome table of core/outcome.py.
        """
        value: Any = None
        error: BaseException | None = None
        self.scope = scope
        if self.cause is not None:  # stopped before it began
            return GIVE_BACK if self.cause is Cause.SHUTDOWN else self._judge(None, None)
        try:
            self.job = self._make_job()
        except ValidationError as misfit:
            return args_misfit(misfit)
        if self.deadline is not None:
            self._allow(scope, self.deadline)
        try:
            if self.call is None:
                value = await self.spec.handler(self.job)
            else:
                value = await self.call(self.spec.handler, self.job)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # the attempt boundary: nothing a handler does may end the worker
            error = raised
        if (
            error is None
            and value is None
            and self.cause is None
            and self.spec.completion is Completion.RUNTIME
            # To ask costs as much as a small handler.
            and (not self.waited or trio.current_effective_deadline() != PARENT_IS_CANCELLED)
        ):
            return COMPLETED
        return self._judge(value, error)

    def _allow(self, scope: trio.CancelScope, seconds: float) -> None:
        scope.deadline = trio.current_time() + seconds
        self.expires = None if math.isinf(seconds) else time.monotonic() + seconds

    def _judge(self, value: Any, error: BaseException | None) -> Decision:
        if isinstance(error, BaseExceptionGroup) and _has(error, KeyboardInterrupt):
            raise error
        cause, scope = self.cause, self.scope
        if cause is None and scope is not None and (scope.cancel_called or _has(error, CancelRequested)):
            cause = Cause.DEADLINE  # nobody else cancels this scope, or asks to stop, without naming a cause
        elif cause is None and trio.current_effective_deadline() == PARENT_IS_CANCELLED:
            cause = Cause.SHUTDOWN
        if cause is Cause.SHUTDOWN and error is None and not self.spec.is_async:
            cause = None  # a thread cannot be cancelled: one that returned has done its work
        try:
            return decide(self._ending(cause, value=value, error=_own_errors(error, cause)))
        except Exception as refusal:  # an application without type checks may return a verdict that is none
            unfit = UsageError(f"the handler returned a verdict that cannot be recorded: {shown(value)}")
            unfit.__cause__ = refusal
            return decide(self._ending(cause, error=unfit))

    def _ending(self, cause: Cause | None, *, value: Any = None, error: BaseException | None) -> Ending:
        job = self.job
        return Ending(
            value=value,
            error=error,
            cause=cause,
            attempt=self.claimed.attempt,
            max_attempts=self.claimed.max_attempts,
            interrupted=0 if job is None else int(job._extra("interrupted") or 0),
            interrupted_bound=self.interrupted_bound,
            jitter=random.random(),
            caller_owned=self.spec.completion is Completion.CALLER_OWNED,
        )

    def failed_with(self, text: str) -> Decision:
        """The decision for an attempt that turned out to have failed after its handler returned."""
        return self._judge(None, RuntimeError(text))

    def notes(self) -> dict[str, Any]:
        """Progress and metadata that were not stored yet, as fields of a settle entry."""
        job, fields = self.job, {}
        if job is not None and job._progress is not None:
            fields["progress"] = job._progress
        if job is not None and job._metadata_patch is not None:
            fields["metadata"] = job._metadata_patch
        return fields


def _has(error: BaseException | None, kind: type[BaseException]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_has(leaf, kind) for leaf in error.exceptions)
    return isinstance(error, kind)


def _own_errors(error: BaseException | None, cause: Cause | None) -> BaseException | None:
    """The handler's own errors: what the runtime caused is left out, and so is a Cancelled that came with others."""
    if isinstance(error, BaseExceptionGroup):
        rest = error.subgroup(lambda leaf: not isinstance(leaf, trio.Cancelled | CancelRequested))
        return error if rest is None and cause is None else rest
    return None if cause is not None and isinstance(error, trio.Cancelled | CancelRequested) else error
