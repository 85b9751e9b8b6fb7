"""One running attempt: its scope, the cause if the runtime stops it, and the boundary where any ending is judged."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import attrs
import trio

from awa_actors import codec
from awa_actors.core.outcome import Cause, Decision, Ending, Outcome, args_misfit, decide
from awa_actors.errors import StaleAttempt, ValidationError
from awa_actors.jobs import Completion, Job
from awa_actors.registry import WorkerSpec
from awa_actors.store.claim import Claimed

PARENT_IS_CANCELLED = -math.inf
"""Effective deadline of a task whose surrounding scope is cancelled."""


class CancelRequested(BaseException):
    """Raised by job.check_cancelled() inside a handler; not an Exception, so that a broad except lets it through."""


class Services(Protocol):
    """What an attempt may ask of its runtime."""

    @property
    def client(self) -> Any: ...  # noqa: D102 - see jobs.AttemptControl
    async def store_notes(self, attempt: Attempt) -> bool: ...  # noqa: D102


@attrs.define(eq=False, slots=True)
class Attempt:
    """A claimed attempt of this process. It is its job's :class:`~awa_actors.jobs.AttemptControl`."""

    claimed: Claimed
    queue: str
    instance: uuid.UUID
    spec: WorkerSpec
    services: Services
    deadline: float | None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    cause: Cause | None = None
    job: Job[Any] | None = None
    interrupted_bound: int = 20

    @property
    def key(self) -> tuple[int, int]:
        """(job_id, run_lease): this attempt among all of this process."""
        return self.claimed[:2]

    def stop(self, cause: Cause) -> None:
        """Cancel the handler; the first cause counts."""
        if self.cause is None:
            self.cause = cause
        self.scope.cancel()

    @property
    def client(self) -> Any:
        """The client this attempt runs on."""
        return self.services.client

    def is_cancelled(self) -> bool:
        """Whether the runtime asked the handler to stop."""
        return self.cause is not None

    def check_cancelled(self) -> None:
        """Raise if the runtime asked the handler to stop."""
        if self.cause is not None:
            raise CancelRequested(self.cause.value)

    async def flush(self, job: Job[Any]) -> None:
        """Store progress and metadata now."""
        if not await self.services.store_notes(self):
            raise StaleAttempt(f"job {job.id} is no longer run by this attempt; stop and change nothing")

    def _make_job(self) -> Job[Any]:
        claimed = self.claimed
        return Job(codec.decode(claimed.args, self.spec.args), self.queue, claimed, self)

    async def run(self, call: Callable[[Callable[[Any], Any], Job[Any]], Awaitable[Any]] | None) -> Decision:
        """Run the handler and decide what to record.

        Args:
            call: runs a plain `def` handler (in a thread); None for `async def`, which is awaited right here.

        Cancellation: a cancelled surrounding means shutdown; the decision is returned all the same, for the caller to
        record in a
            shielded, bounded step. KeyboardInterrupt gives the attempt back and goes on up.
        Source: the outcome table of core/outcome.py.
        """
        value: Any = None
        error: BaseException | None = None
        try:
            self.job = self._make_job()
        except ValidationError as misfit:
            return args_misfit(misfit)
        if self.deadline is not None:
            self.scope.deadline = trio.current_time() + self.deadline
        try:
            with self.scope:
                if call is None:
                    value = await self.spec.handler(self.job)
                else:
                    value = await call(self.spec.handler, self.job)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # the attempt boundary: nothing a handler does may end the worker
            error = raised
        if (
            error is None
            and value is None
            and self.cause is None
            and not self.scope.cancel_called
            and self.spec.completion is Completion.RUNTIME
            and trio.current_effective_deadline() != PARENT_IS_CANCELLED
        ):
            return _COMPLETED
        return self._judge(value, error)

    def _judge(self, value: Any, error: BaseException | None) -> Decision:
        if isinstance(error, BaseExceptionGroup) and _has(error, KeyboardInterrupt):
            raise error
        cause = self.cause
        if cause is None and self.scope.cancel_called and self.deadline is not None:
            cause = Cause.DEADLINE
        if cause is None and trio.current_effective_deadline() == PARENT_IS_CANCELLED:
            # A thread cannot be cancelled: one that returned has done its work, and that is what is recorded.
            cause = None if error is None and not self.spec.is_async else Cause.SHUTDOWN
        job = self.job
        return decide(
            Ending(
                value=value,
                error=_own_errors(error),
                cause=cause,
                attempt=self.claimed.attempt,
                max_attempts=self.claimed.max_attempts,
                interrupted=0 if job is None else int(job._extra("interrupted") or 0),
                interrupted_bound=self.interrupted_bound,
                jitter=random.random(),
                caller_owned=self.spec.completion is Completion.CALLER_OWNED,
            )
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


_COMPLETED = Decision(Outcome.COMPLETED)


def _has(error: BaseException, kind: type[BaseException]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_has(leaf, kind) for leaf in error.exceptions)
    return isinstance(error, kind)


def _own_errors(error: BaseException | None) -> BaseException | None:
    """The handler's own errors: cancellations are left out of a group that holds other things too."""
    if isinstance(error, BaseExceptionGroup):
        rest = error.subgroup(lambda leaf: not isinstance(leaf, trio.Cancelled))
        return error if rest is None else rest
    return error
