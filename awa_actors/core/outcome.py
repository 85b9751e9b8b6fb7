"""The attempt boundary's table: what is recorded for every way an attempt can end. Pure; each row is a test.

The cause (deadline, cancel, shutdown, lost lease) is set on the attempt before its scope is cancelled, and it wins
over whatever the handler then does.
"""

from __future__ import annotations

import enum
from typing import Any

import attrs

from awa_actors.core.backoff import clamp_delay, retry_delay
from awa_actors.core.text import error_text, storable
from awa_actors.errors import TerminalError, ValidationError
from awa_actors.jobs import Cancel, FinalizationReceipt, RetryAfter, Snooze, WaitForCallback


class Cause(enum.Enum):
    """Why the runtime stopped an attempt."""

    DEADLINE = "deadline"
    CANCEL = "cancel"
    SHUTDOWN = "shutdown"
    LOST_LEASE = "lost_lease"


class Outcome(enum.Enum):
    """What becomes of an attempt."""

    COMPLETED = "completed"
    RETRIED = "retried"
    EXHAUSTED = "exhausted"
    SNOOZED = "snoozed"
    CANCELLED = "cancelled"
    WAITING = "waiting_for_callback"
    INTERRUPTED = "interrupted"
    GIVEN_BACK = "given_back"
    RECEIPT = "receipt"
    STALE = "stale"


@attrs.frozen
class Ending:
    """How one attempt ended.

    Args:
        value: what the handler returned (when `error` is None).
        error: what it raised, already freed of cancellations that the runtime caused.
        cause: why the runtime stopped it, if it did.
        attempt: number of this attempt.
        max_attempts: the budget.
        interrupted: how often this job was interrupted before.
        interrupted_bound: interruptions that are not counted as attempts.
        jitter: a random number in [0, 1).
        caller_owned: the handler must return a receipt.
    """

    value: Any = None
    error: BaseException | None = None
    cause: Cause | None = None
    attempt: int = 1
    max_attempts: int = 25
    interrupted: int = 0
    interrupted_bound: int = 20
    jitter: float = 0.0
    caller_owned: bool = False


@attrs.frozen
class Decision:
    """What to write. `fields` are those of one settle entry (`store.settle`), without the attempt's identity."""

    outcome: Outcome
    fields: dict[str, Any] = attrs.field(factory=dict)


NOTHING = Decision(Outcome.STALE)
COMPLETED = Decision(Outcome.COMPLETED)
GIVE_BACK = Decision(Outcome.GIVEN_BACK, {"give_back": True})
"""An attempt that never began: back to its place, uncounted."""


def decide(ending: Ending) -> Decision:
    """Decide what is recorded for an ending."""
    match ending.cause:
        case Cause.CANCEL | Cause.LOST_LEASE:
            return NOTHING  # whoever took the attempt has recorded its end
        case Cause.SHUTDOWN:
            return _interrupted(ending)
        case Cause.DEADLINE:
            return _failure(ending, _with_error("deadline exceeded", ending.error))
    if ending.error is not None:
        return _raised(ending, ending.error)
    return _returned(ending)


def _returned(ending: Ending) -> Decision:
    value = ending.value
    match value:
        case RetryAfter(delay=delay, reason=reason):
            return _delayed(ending, delay, reason)
        case Snooze(delay=delay):
            seconds = _seconds(delay)
            if isinstance(seconds, str):
                return _failure(ending, f"cannot snooze: {seconds}")
            return Decision(Outcome.SNOOZED, {"state": "scheduled", "delay": seconds, "uncount": True, "snooze": True})
        case Cancel(reason=reason):
            text = storable(reason)
            return Decision(
                Outcome.CANCELLED,
                {"state": "cancelled", "error": f"cancelled: {text}", "terminal": True, "reason": text},
            )
        case WaitForCallback(token=token):
            return Decision(Outcome.WAITING, {"callback_id": token.callback_id})
        case FinalizationReceipt():
            return Decision(Outcome.RECEIPT)
    if ending.caller_owned:
        return _terminal(ending, "a caller-owned handler must return the receipt of tx.complete(job)")
    return COMPLETED


def _raised(ending: Ending, error: BaseException) -> Decision:
    if _is_terminal(error):
        return _terminal(ending, error_text(error))
    return _failure(ending, error_text(error))


def _is_terminal(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is_terminal(leaf) for leaf in error.exceptions)
    return isinstance(error, TerminalError)


def _terminal(ending: Ending, text: str) -> Decision:
    return Decision(Outcome.EXHAUSTED, {"state": "failed", "error": text, "terminal": True, "reason": "terminal_error"})


def args_misfit(error: ValidationError) -> Decision:
    """The args do not fit the class any more: no retry can change that."""
    return _terminal(Ending(), str(error))


def _failure(ending: Ending, text: str) -> Decision:
    if ending.attempt >= ending.max_attempts:
        return Decision(
            Outcome.EXHAUSTED, {"state": "failed", "error": text, "terminal": True, "reason": "max_attempts_exhausted"}
        )
    return Decision(
        Outcome.RETRIED,
        {"state": "retryable", "error": text, "delay": retry_delay(ending.attempt, jitter=ending.jitter)},
    )


def _delayed(ending: Ending, delay: Any, reason: str | None) -> Decision:
    seconds = _seconds(delay)
    if isinstance(seconds, str):
        return _failure(ending, f"cannot retry: {seconds}")
    text = "asked to run again" if reason is None else storable(reason)
    if ending.attempt >= ending.max_attempts:
        return _failure(ending, f"{text} in {seconds:g} s, but this was the last attempt")
    return Decision(Outcome.RETRIED, {"state": "retryable", "error": text, "delay": seconds})


def _seconds(delay: Any) -> float | str:
    try:
        return clamp_delay(delay)
    except ValidationError as error:
        return str(error)


def _interrupted(ending: Ending) -> Decision:
    if ending.interrupted >= ending.interrupted_bound:
        return _failure(ending, _with_error(f"interrupted by {ending.interrupted} stops of its workers", ending.error))
    fields = {"state": "available", "uncount": True, "interrupted": True}
    if ending.error is not None:
        fields["error"] = _with_error("stopped with its worker", ending.error)
    return Decision(Outcome.INTERRUPTED, fields)


def _with_error(text: str, error: BaseException | None) -> str:
    return text if error is None else storable(f"{text}; then {error_text(error)}", 8192)
