"""What a job is: its states, the options of an insert, the verdicts of a handler, the row that is stored."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import attrs


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


Verdict: TypeAlias = RetryAfter | Snooze | Cancel | WaitForCallback | FinalizationReceipt | None
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
    """One job as stored, whichever table it lives in. Instants are the database's.

    Shape: `errors` are attempts that failed or were taken away; `past` those that ended otherwise and were not counted
    (snoozed, interrupted, resumed). ``client.admin.history`` tells both in one.
    """

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
    past: tuple[dict[str, Any], ...] = ()
    progress: dict[str, Any] | None = None
    result: Any = None
    unique_key: bytes | None = None
    snoozes: int = 0
    rescues: int = 0
    interrupted: int = 0
    instance: str | None = None
    callback_id: str | None = None
    dlq_reason: str | None = None
