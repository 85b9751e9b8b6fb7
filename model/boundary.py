"""The attempt boundary as a table: for every way in which an attempt can end, what must be recorded.

Written from the rules and not from the code, and compared with ``core.outcome.decide`` for every combination of cause,
value or error, and budget. The first row that matches counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from awa_actors.core.outcome import Cause, Ending, Outcome
from awa_actors.errors import TerminalError
from awa_actors.jobs import CallbackToken, Cancel, FinalizationReceipt, RetryAfter, Snooze, WaitForCallback

LONGEST_TEXT = 16_384
"""Characters of an error that are stored at most, whatever was raised."""


class Unprintable(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no text")


@attrs.frozen
class Row:
    """One rule of the boundary.

    Args:
        sentence: the rule.
        applies: to which endings.
        outcome: what becomes of the attempt.
        state: of the job afterwards; None when nothing is written, or when another verb writes it.
        counts: whether the attempt is spent.
    """

    sentence: str
    applies: Callable[[Ending], bool]
    outcome: Outcome
    state: str | None = None
    counts: bool = True


def last(ending: Ending) -> bool:
    """Whether the budget ends with this attempt."""
    return ending.attempt >= ending.max_attempts


def terminal(error: BaseException | None) -> bool:
    """Whether an error, or any leaf of a group, forbids a retry."""
    if isinstance(error, BaseExceptionGroup):
        return any(terminal(leaf) for leaf in error.exceptions)
    return isinstance(error, TerminalError)


def unusable(delay: object) -> bool:
    """Whether a delay cannot be added to now."""
    return not isinstance(delay, int | float) or not 0 <= delay < math.inf


def returned(ending: Ending, kind: type[Any]) -> bool:
    """Whether the handler returned a verdict of this kind."""
    return ending.error is None and isinstance(ending.value, kind)


def failed(ending: Ending) -> bool:
    """Whether the attempt failed in a way that a retry may cure.

    An error, a deadline, an interruption too many, a bad delay.
    """
    bad_delay = isinstance(ending.value, RetryAfter | Snooze) and unusable(ending.value.delay)
    return ending.cause is not None or ending.error is not None or bad_delay


TAKEN = (Cause.CANCEL, Cause.LOST_LEASE)

ROWS = (
    Row("who took the attempt has recorded its end", lambda e: e.cause in TAKEN, Outcome.STALE),
    Row(
        "a stop of the worker costs no attempt, as long as it does not happen too often",
        lambda e: e.cause is Cause.SHUTDOWN and e.interrupted < e.interrupted_bound,
        Outcome.INTERRUPTED, "available", counts=False,
    ),
    Row(
        "an error that forbids a retry ends the job, unless the runtime had stopped the attempt",
        lambda e: e.cause is None and terminal(e.error), Outcome.EXHAUSTED, "failed",
    ),
    Row("a failure without budget ends the job", lambda e: failed(e) and last(e), Outcome.EXHAUSTED, "failed"),
    Row("a failure with budget is retried", failed, Outcome.RETRIED, "retryable"),
    Row(
        "RetryAfter without budget ends the job",
        lambda e: returned(e, RetryAfter) and last(e), Outcome.EXHAUSTED, "failed",
    ),
    Row("RetryAfter with budget is retried", lambda e: returned(e, RetryAfter), Outcome.RETRIED, "retryable"),
    Row("Snooze costs no attempt", lambda e: returned(e, Snooze), Outcome.SNOOZED, "scheduled", counts=False),
    Row("Cancel ends the job", lambda e: returned(e, Cancel), Outcome.CANCELLED, "cancelled"),
    Row("WaitForCallback parks the job", lambda e: returned(e, WaitForCallback), Outcome.WAITING),
    Row(
        "a receipt says that the handler's transaction completed the job",
        lambda e: returned(e, FinalizationReceipt), Outcome.RECEIPT,
    ),
    Row(
        "a caller-owned handler without a receipt has completed nothing",
        lambda e: e.caller_owned, Outcome.EXHAUSTED, "failed",
    ),
    Row("whatever else is returned completes the job", lambda e: True, Outcome.COMPLETED),
)  # fmt: skip


def expected(ending: Ending) -> Row:
    """The rule for an ending."""
    return next(row for row in ROWS if row.applies(ending))


VALUES = (None, "text", 0, RetryAfter(1.5), RetryAfter(0), Snooze(60.0), Snooze(1e12), Cancel("no longer wanted"),
          WaitForCallback(CallbackToken("an id", 7, 3)), FinalizationReceipt(7, 3))  # fmt: skip
BAD_VALUES = (RetryAfter(math.nan), Snooze(-1.0), Snooze(math.inf), RetryAfter("soon"))  # type: ignore[arg-type]
ERRORS = (
    None,
    ValueError("plain"),
    TerminalError("for good"),
    ExceptionGroup("several", [ValueError("one"), TerminalError("two")]),
    ExceptionGroup("several", [ValueError("one"), KeyError("two")]),
    BaseExceptionGroup("deep", [ExceptionGroup("inner", [TerminalError("leaf")])]),
    SystemExit(3),
    Unprintable(),
    ValueError("nul \x00, surrogate \ud800, " + "long " * 100_000),
)


def endings() -> Iterator[Ending]:
    """Every combination that the boundary can meet."""
    budgets = ((1, 1), (1, 2), (2, 2), (3, 2), (32_767, 1_000))
    outcomes = [(value, None) for value in (*VALUES, *BAD_VALUES)] + [(None, error) for error in ERRORS[1:]]
    for (value, error), cause, (attempt, most), interrupted, owned in itertools.product(
        outcomes, (None, *Cause), budgets, (0, 19, 20, 21), (False, True)
    ):
        yield Ending(
            value=value, error=error, cause=cause, attempt=attempt, max_attempts=most,
            interrupted=interrupted, jitter=0.5, caller_owned=owned,
        )  # fmt: skip
