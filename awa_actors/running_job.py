"""A job as its handler sees it: the args, what the claim says, and the controls of the running attempt."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import orjson

from awa_actors.core.callbacks import RESULT_KEY
from awa_actors.jobs import CallbackToken

if TYPE_CHECKING:
    from awa_actors.client import Client

A_co = TypeVar("A_co", covariant=True)


class AttemptControl(Protocol):
    """What the runtime gives a running attempt; users meet it through :class:`Job`."""

    @property
    def client(self) -> Any:
        """The client that runs the attempt."""

    @property
    def instance(self) -> uuid.UUID:
        """The incarnation that holds the attempt's lease."""

    def is_cancelled(self) -> bool:
        """Whether the attempt was asked to stop."""

    def check_cancelled(self) -> None:
        """Raise if the attempt was asked to stop."""

    def check_note(self, note: Any) -> None:
        """Raise if the database could not store this."""

    async def flush(self, job: Job[Any]) -> None:
        """Store progress and metadata now."""

    async def register_callback(self, expires_in: Any, expressions: dict[str, str | None]) -> CallbackToken:
        """Register a callback of the attempt."""

    async def wait_for_callback(self, token: CallbackToken) -> Any:
        """Wait for a callback of the attempt."""

    async def cancel_callback(self, token: CallbackToken) -> bool:
        """Take a registration back."""


class ClaimedFields(Protocol):
    """What a job knows from its claim."""

    @property
    def job_id(self) -> int: ...  # noqa: D102 - the names say it, here and below
    @property
    def run_lease(self) -> int: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def priority(self) -> int: ...  # noqa: D102
    @property
    def attempt(self) -> int: ...  # noqa: D102
    @property
    def max_attempts(self) -> int: ...  # noqa: D102
    @property
    def created_at(self) -> dt.datetime: ...  # noqa: D102
    @property
    def run_at(self) -> dt.datetime | None: ...  # noqa: D102
    @property
    def deadline_at(self) -> dt.datetime | None: ...  # noqa: D102
    @property
    def extras(self) -> str | None: ...  # noqa: D102


class Job(Generic[A_co]):
    """What a handler is given: the job, its args as declared, and the attempt's controls.

    Progress and metadata are kept here and stored with the attempt's end, or at once by :meth:`flush_progress`.
    """

    __slots__ = ("_claimed", "_control", "_extras", "_metadata_patch", "_progress", "args", "queue")

    def __init__(self, args: A_co, queue: str, claimed: ClaimedFields, control: AttemptControl) -> None:
        self.args = args
        self.queue = queue
        self._claimed = claimed
        self._control = control
        self._extras: dict[str, Any] | None = None
        self._progress: dict[str, Any] | None = None
        self._metadata_patch: dict[str, Any] | None = None

    @property
    def id(self) -> int:
        """The job's id, the same for its whole life."""
        return self._claimed.job_id

    @property
    def kind(self) -> str:
        """Which handler it wants."""
        return self._claimed.kind

    @property
    def priority(self) -> int:
        """1 (most urgent) to 4, as inserted."""
        return self._claimed.priority

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self._claimed.attempt

    @property
    def max_attempts(self) -> int:
        """The budget of attempts."""
        return self._claimed.max_attempts

    @property
    def run_lease(self) -> int:
        """Fencing token of this attempt: grows with every claim of the job."""
        return self._claimed.run_lease

    @property
    def created_at(self) -> dt.datetime:
        """When the job was inserted, by the database's clock."""
        return self._claimed.created_at

    @property
    def run_at(self) -> dt.datetime:
        """When the job was due."""
        return self._claimed.run_at or self._claimed.created_at

    @property
    def deadline_at(self) -> dt.datetime | None:
        """When this attempt must have ended, or None."""
        return self._claimed.deadline_at

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.kind} attempt {self.attempt}/{self.max_attempts} queue={self.queue!r}>"

    def _extra(self, name: str) -> Any:
        if self._extras is None:
            text = self._claimed.extras
            self._extras = {} if text is None else orjson.loads(text)
        return self._extras.get(name)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata as stored at the claim, with this attempt's updates on top."""
        stored = self._extra("metadata") or {}
        return {**stored, **self._metadata_patch} if self._metadata_patch else stored

    @property
    def tags(self) -> tuple[str, ...]:
        """Labels given at the insert."""
        return tuple(self._extra("tags") or ())

    @property
    def errors(self) -> tuple[dict[str, Any], ...]:
        """Errors of earlier attempts, oldest first."""
        return tuple(self._extra("errors") or ())

    @property
    def progress(self) -> Mapping[str, Any] | None:
        """This attempt's progress, or what an earlier attempt left: a checkpoint."""
        return self._progress if self._progress is not None else self._extra("progress")

    @property
    def snoozes(self) -> int:
        """How often the job was snoozed."""
        return int(self._extra("snoozes") or 0)

    @property
    def rescues(self) -> int:
        """How often the job was taken back from a dead worker."""
        return int(self._extra("rescues") or 0)

    @property
    def client(self) -> Client:
        """The client that runs this attempt."""
        client: Client = self._control.client
        return client

    def set_progress(self, percent: float, message: str | None = None) -> None:
        """Note progress, 0 to 100 (clamped); stored with the attempt's end or by :meth:`flush_progress`.

        Raises:
            ValidationError: the message cannot be stored.
        """
        note: dict[str, Any] = {"percent": min(100, max(0, percent))}
        if message is not None:
            note["message"] = message
            self._control.check_note(note)
        if (checkpoint := (self.progress or {}).get("metadata")) is not None:
            note["metadata"] = checkpoint
        self._progress = note

    def set_checkpoint(self, **values: Any) -> None:
        """Merge values into the progress that the next attempt will see.

        Raises:
            ValidationError: a value cannot be stored; nothing is merged.
        """
        self._control.check_note(values)
        kept = dict(self.progress or {})
        kept["metadata"] = {**(kept.get("metadata") or {}), **values}
        self._progress = kept

    def update_metadata(self, **values: Any) -> None:
        """Merge values into the job's metadata (top level); keys that begin with ``awa:`` are reserved.

        Raises:
            ValidationError: a value cannot be stored; nothing is merged.
        """
        self._control.check_note(values)
        self._metadata_patch = {**(self._metadata_patch or {}), **values}

    async def flush_progress(self) -> None:
        """Store progress and metadata now.

        Raises:
            StaleAttempt: the attempt is no longer this process's.
        """
        await self._control.flush(self)

    @property
    def callback_result(self) -> Any:
        """What the outside world resumed this job with: for a job that was parked, and now runs again. Else None."""
        return self.metadata.get(RESULT_KEY)

    async def register_callback(
        self,
        *,
        expires_in: float | dt.timedelta = 3600.0,
        filter: str | None = None,
        on_complete: str | None = None,
        on_fail: str | None = None,
        transform: str | None = None,
    ) -> CallbackToken:
        """Register a callback: an id that the outside world resolves, once. Committed when this returns.

        A second registration voids the first. Tell the outside world the id, then return ``WaitForCallback(token)``,
        which holds no worker, or await :meth:`wait_for_callback`, which does.

        Args:
            expires_in: seconds until the wait ends by itself; the attempt then counts as failed.
            filter: CEL over ``payload``; false: the payload is ignored. These four are for `resolve_external` only.
            on_complete: true: the job completes.
            on_fail: true: the job fails for good.
            transform: what becomes of the payload before it is the job's result.

        Raises:
            ValidationError: the expiry is no positive number, or an expression does not compile.
            StaleAttempt: the attempt is no longer this process's.
        """
        expressions = {"filter": filter, "on_complete": on_complete, "on_fail": on_fail, "transform": transform}
        return await self._control.register_callback(expires_in, expressions)

    async def wait_for_callback(self, token: CallbackToken) -> Any:
        """Wait inside the handler until the job is resumed; returns the payload it was resumed with.

        The job is visibly `waiting_external` meanwhile, its deadline stands still, its permit is held. A worker that
        dies while it waits gives the job back, and the next attempt registers anew.

        Raises:
            CallbackExpired: nobody resolved it in time.
            CallbackNotFound: the token was replaced or taken back.
            StaleAttempt: the job was completed, failed, retried or cancelled instead: stop and change nothing.

        Cancellation: the callback stays open, and the handler runs on.
        """
        return await self._control.wait_for_callback(token)

    async def cancel_callback(self, token: CallbackToken) -> bool:
        """Take a registration back; False when it was already resolved or replaced."""
        return await self._control.cancel_callback(token)

    def is_cancelled(self) -> bool:
        """Whether this attempt was asked to stop (cancel, deadline, shutdown, lost lease)."""
        return self._control.is_cancelled()

    def check_cancelled(self) -> None:
        """Raise where a `def` handler can stop safely; an `async def` handler is cancelled in its scope instead."""
        self._control.check_cancelled()
