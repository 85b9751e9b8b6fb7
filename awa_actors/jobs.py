"""What a job is: its states, the options of an insert, the verdicts of a handler, the row that is stored."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import attrs
import orjson

A_co = TypeVar("A_co", covariant=True)


class _DataclassInstance(Protocol):
    __dataclass_fields__: ClassVar[dict[str, Any]]


JobArgs: TypeAlias = attrs.AttrsInstance | _DataclassInstance
"""What job args are: an instance of an attrs class or of a dataclass."""
F_co = TypeVar("F_co", covariant=True, bound=JobArgs)


class JobState(enum.Enum):
    """The eight states; their order fixes the bit each has in a unique mask."""

    SCHEDULED = "scheduled"
    AVAILABLE = "available"
    RUNNING = "running"
    COMPLETED = "completed"
    RETRYABLE = "retryable"
    FAILED = "failed"
    CANCELLED = "cancelled"
    WAITING_EXTERNAL = "waiting_external"

    @property
    def bit(self) -> int:
        """Position in a unique mask, 0 to 7."""
        return _BITS[self]

    @property
    def is_terminal(self) -> bool:
        """True when nothing but an operator moves the job again."""
        return self in TERMINAL_STATES


_BITS = {state: position for position, state in enumerate(JobState)}
TERMINAL_STATES = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})


class OnConflict(enum.Enum):
    """What an insert does when another job holds its unique key."""

    RAISE = "raise"
    RETURN_EXISTING = "return_existing"
    SKIP = "skip"


class Completion(enum.Enum):
    """Who completes a job: the runtime after the handler, or the handler's own transaction."""

    RUNTIME = "runtime"
    CALLER_OWNED = "caller_owned"


class Delivery(enum.Enum):
    """How a rescued follow-up is delivered: after the commit, or through the outbox."""

    BEST_EFFORT = "best_effort"
    OUTBOX = "outbox"


@attrs.frozen
class UniqueOpts:
    """What makes a job unique.

    Args:
        by_queue: the queue is part of the key.
        by_args: the args are part of the key.
        by_period: a bucket number of the caller's (for example ``epoch // 3600``), part of the key when given.
        states: states in which a job holds its key; None takes the default (every state but failed and cancelled).
        key: an explicit key of 1 to 200 bytes instead of the derived one.
        on_conflict: what to do when the key is taken; None leaves it to the caller's default.
    """

    by_queue: bool = False
    by_args: bool = True
    by_period: int | None = None
    states: frozenset[JobState] | None = None
    key: bytes | str | None = None
    on_conflict: OnConflict | None = None


@attrs.frozen
class InsertOpts:
    """How one job differs from what its args class declares.

    Args:
        queue: instead of the class's queue.
        priority: 1 (most urgent) to 4.
        max_attempts: 1 to 1000.
        run_at: not before this instant (aware datetime), or this long from now (timedelta); the job is then
            `scheduled`.
        deadline: seconds (or timedelta) one attempt may run.
        metadata: JSON object beside the args; keys that begin with ``awa:`` are reserved.
        tags: up to 20 labels.
        unique: uniqueness, or None.
        ordering_key: jobs with one key share a shard, and so their order.
    """

    queue: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    run_at: dt.datetime | dt.timedelta | None = None
    deadline: float | dt.timedelta | None = None
    metadata: Mapping[str, Any] | None = None
    tags: Sequence[str] = ()
    unique: UniqueOpts | None = None
    ordering_key: str | bytes | None = None


DEFAULT_PRIORITY = 2
DEFAULT_MAX_ATTEMPTS = 25
DEFAULT_QUEUE = "default"


@attrs.frozen
class Enqueue(Generic[F_co]):
    """A follow-up with options: what a follow-up closure may return instead of bare args."""

    args: F_co
    opts: InsertOpts = InsertOpts()


@attrs.frozen
class RetryAfter:
    """Verdict: run again in `delay` seconds; the attempt counts."""

    delay: float | dt.timedelta
    reason: str | None = None


@attrs.frozen
class Snooze:
    """Verdict: run again in `delay` seconds; the attempt does not count."""

    delay: float | dt.timedelta


@attrs.frozen
class Cancel:
    """Verdict: end the job as cancelled."""

    reason: str = "cancelled by handler"


@attrs.frozen
class CallbackToken:
    """Names one registered callback of one attempt."""

    callback_id: str
    job_id: int
    run_lease: int


@attrs.frozen
class WaitForCallback:
    """Verdict: park the job until its callback is resolved; no worker is held meanwhile."""

    token: CallbackToken


@attrs.frozen
class FinalizationReceipt:
    """Proof that the handler's own transaction completed the job."""

    job_id: int
    run_lease: int


Verdict: TypeAlias = None | RetryAfter | Snooze | Cancel | WaitForCallback | FinalizationReceipt
"""What a handler may return; None is success."""


@attrs.frozen
class InsertedJob:
    """What an insert did.

    Shape: `inserted` is False when a unique key was taken and the policy was `return_existing` (`id` is the job that
    holds it) or `skip` (`id` is that job's, or None when it went away meanwhile).
    """

    id: int
    kind: str
    queue: str
    inserted: bool = True


@attrs.frozen(kw_only=True)
class JobRow:
    """One job as stored, whichever table it lives in. Instants are the database's."""

    id: int
    kind: str
    queue: str
    args: Any
    state: JobState
    priority: int
    attempt: int
    run_lease: int
    max_attempts: int
    run_at: dt.datetime
    created_at: dt.datetime
    attempted_at: dt.datetime | None = None
    finalized_at: dt.datetime | None = None
    deadline: dt.timedelta | None = None
    deadline_at: dt.datetime | None = None
    metadata: dict[str, Any] = attrs.field(factory=dict)
    tags: tuple[str, ...] = ()
    errors: tuple[dict[str, Any], ...] = ()
    progress: dict[str, Any] | None = None
    result: Any = None
    unique_key: bytes | None = None
    snoozes: int = 0
    rescues: int = 0
    interrupted: int = 0
    instance: str | None = None
    callback_id: str | None = None
    dlq_reason: str | None = None


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

    async def flush(self, job: Job[Any]) -> None:
        """Store progress and metadata now."""


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
    def client(self) -> Any:
        """The client that runs this attempt (an :class:`awa_actors.Client`)."""
        return self._control.client

    def set_progress(self, percent: float, message: str | None = None) -> None:
        """Note progress, 0 to 100 (clamped); stored with the attempt's end or by :meth:`flush_progress`."""
        note: dict[str, Any] = {"percent": min(100, max(0, percent))}
        if message is not None:
            note["message"] = message
        if (checkpoint := (self.progress or {}).get("metadata")) is not None:
            note["metadata"] = checkpoint
        self._progress = note

    def set_checkpoint(self, **values: Any) -> None:
        """Merge values into the progress that the next attempt will see."""
        kept = dict(self.progress or {})
        kept["metadata"] = {**(kept.get("metadata") or {}), **values}
        self._progress = kept

    def update_metadata(self, **values: Any) -> None:
        """Merge values into the job's metadata (top level); keys that begin with ``awa:`` are reserved."""
        self._metadata_patch = {**(self._metadata_patch or {}), **values}

    async def flush_progress(self) -> None:
        """Store progress and metadata now.

        Raises:
            StaleAttempt: the attempt is no longer this process's.
        """
        await self._control.flush(self)

    def is_cancelled(self) -> bool:
        """Whether this attempt was asked to stop (cancel, deadline, shutdown, lost lease)."""
        return self._control.is_cancelled()

    def check_cancelled(self) -> None:
        """Raise where a `def` handler can stop safely; an `async def` handler is cancelled in its scope instead."""
        self._control.check_cancelled()
