"""Every row of the outcome table, without a worker: what is recorded for every way an attempt can end."""

import datetime as dt
import math
from typing import Any

import pytest

from awa_actors.core.outcome import Cause, Decision, Ending, Outcome, args_misfit, decide
from awa_actors.errors import TerminalError, ValidationError
from awa_actors.jobs import CallbackToken, Cancel, FinalizationReceipt, RetryAfter, Snooze, WaitForCallback

ALL_BUT_CAUSES = (ValueError("boom"), None)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def test_returning_nothing_completes() -> None:
    assert decide(Ending()) == Decision(Outcome.COMPLETED)


@pytest.mark.parametrize("value", ["ok", 0, False, {"rows": 3}])
def test_returning_something_that_is_no_verdict_completes(value: object) -> None:
    assert decide(Ending(value=value)).outcome is Outcome.COMPLETED


def test_a_snooze_runs_again_uncounted_and_is_counted_as_a_snooze() -> None:
    assert decide(Ending(value=Snooze(5))) == Decision(
        Outcome.SNOOZED, {"state": "scheduled", "delay": 5.0, "uncount": True, "snooze": True}
    )


def test_the_last_attempt_may_snooze() -> None:
    assert decide(Ending(value=Snooze(5), attempt=3, max_attempts=3)).outcome is Outcome.SNOOZED


def test_a_delay_may_be_a_timedelta() -> None:
    assert decide(Ending(value=Snooze(dt.timedelta(minutes=2)))).fields["delay"] == 120.0


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, "soon", None])
@pytest.mark.parametrize("verdict", [Snooze, RetryAfter])
def test_a_delay_that_means_nothing_is_a_failed_attempt(verdict: Any, delay: object) -> None:
    decision = decide(Ending(value=verdict(delay)))
    assert decision.outcome is Outcome.RETRIED
    assert "a delay is" in decision.fields["error"]


def test_a_retry_after_counts_and_says_so() -> None:
    assert decide(Ending(value=RetryAfter(30))) == Decision(
        Outcome.RETRIED, {"state": "retryable", "error": "asked to run again", "delay": 30.0}
    )


def test_a_retry_after_gives_its_reason_as_the_error() -> None:
    assert decide(Ending(value=RetryAfter(30, "busy\x00"))).fields["error"] == "busy\ufffd"


def test_a_retry_after_of_the_last_attempt_exhausts_the_job() -> None:
    decision = decide(Ending(value=RetryAfter(0, "busy"), attempt=3, max_attempts=3))
    assert decision.outcome is Outcome.EXHAUSTED
    assert decision.fields["reason"] == "max_attempts_exhausted"
    assert decision.fields["error"] == "busy in 0 s, but this was the last attempt"


def test_a_cancel_ends_the_job_with_its_reason() -> None:
    assert decide(Ending(value=Cancel("mailbox gone"))) == Decision(
        Outcome.CANCELLED,
        {"state": "cancelled", "error": "cancelled: mailbox gone", "terminal": True, "reason": "mailbox gone"},
    )


def test_waiting_for_a_callback_parks_the_job() -> None:
    decision = decide(Ending(value=WaitForCallback(CallbackToken("c-1", 1, 1))))
    assert decision.outcome is Outcome.WAITING
    assert decision.fields["callback_id"] == "c-1"


def test_a_receipt_writes_nothing() -> None:
    for caller_owned in (True, False):
        decision = decide(Ending(value=FinalizationReceipt(1, 1), caller_owned=caller_owned))
        assert decision == Decision(Outcome.RECEIPT)


@pytest.mark.parametrize("value", [None, "done"])
def test_a_caller_owned_handler_that_returns_no_receipt_fails_for_good(value: object) -> None:
    decision = decide(Ending(value=value, caller_owned=True))
    assert decision.outcome is Outcome.EXHAUSTED
    assert "receipt" in decision.fields["error"]


def test_a_caller_owned_handler_may_return_another_verdict() -> None:
    assert decide(Ending(value=Snooze(1), caller_owned=True)).outcome is Outcome.SNOOZED


def test_raising_is_retried_with_backoff() -> None:
    decision = decide(Ending(error=ValueError("boom"), attempt=2, jitter=0.0))
    assert decision.outcome is Outcome.RETRIED
    assert decision.fields["state"] == "retryable"
    assert decision.fields["delay"] == 4.0
    assert decision.fields["error"].startswith("ValueError: boom")


def test_jitter_lengthens_the_backoff_by_at_most_a_quarter() -> None:
    delays = [decide(Ending(error=ValueError(), attempt=1, jitter=j)).fields["delay"] for j in (0.0, 0.5, 0.999)]
    assert delays == sorted(delays)
    assert 2.0 == delays[0] < delays[-1] < 2.5


def test_backoff_has_a_value_at_any_attempt() -> None:
    for attempt in (0, 17, 999, 32_767, 10**9):
        decision = decide(Ending(error=ValueError(), attempt=attempt, max_attempts=10**10))
        assert 0 < decision.fields["delay"] <= 86_400


def test_the_last_attempt_that_raises_exhausts_the_job() -> None:
    decision = decide(Ending(error=ValueError("boom"), attempt=25, max_attempts=25))
    assert decision.outcome is Outcome.EXHAUSTED
    assert decision.fields["state"] == "failed"
    assert decision.fields["terminal"] is True
    assert decision.fields["reason"] == "max_attempts_exhausted"


@pytest.mark.parametrize(
    "error",
    [
        TerminalError("no such user"),
        ExceptionGroup("both", [ValueError("a"), TerminalError("no such user")]),
        ExceptionGroup("deep", [ExceptionGroup("er", [TerminalError("no such user")])]),
    ],
    ids=["bare", "beside another", "nested"],
)
def test_a_terminal_error_ends_the_job_at_its_first_attempt(error: Exception) -> None:
    decision = decide(Ending(error=error, attempt=1))
    assert decision.outcome is Outcome.EXHAUSTED
    assert decision.fields["reason"] == "terminal_error"
    assert "no such user" in decision.fields["error"]


def test_a_group_without_a_terminal_error_is_retried_and_names_its_leaves() -> None:
    decision = decide(Ending(error=ExceptionGroup("both", [ValueError("one"), KeyError("two")])))
    assert decision.outcome is Outcome.RETRIED
    assert "ValueError: one" in decision.fields["error"]
    assert "KeyError: 'two'" in decision.fields["error"]


@pytest.mark.parametrize(
    "error",
    [
        Unprintable(),
        ValueError("a\x00b"),
        ValueError("lone \ud800 surrogate"),
        ValueError("x" * 5_000_000),
        SystemExit(3),
        BaseException(),
    ],
    ids=["unprintable", "nul", "surrogate", "five megabytes", "exit", "base"],
)
def test_any_error_has_a_bounded_text_that_can_be_stored(error: BaseException) -> None:
    decision = decide(Ending(error=error))
    assert decision.outcome is Outcome.RETRIED
    text = decision.fields["error"]
    assert 0 < len(text) <= 8192
    assert "\x00" not in text
    text.encode()


@pytest.mark.parametrize("cause", [Cause.CANCEL, Cause.LOST_LEASE])
@pytest.mark.parametrize("error", ALL_BUT_CAUSES)
def test_whoever_took_the_attempt_has_recorded_its_end(cause: Cause, error: Exception | None) -> None:
    assert decide(Ending(value=Snooze(1), error=error, cause=cause)) == Decision(Outcome.STALE)


def test_a_deadline_is_a_failure_of_the_attempt() -> None:
    decision = decide(Ending(cause=Cause.DEADLINE, attempt=1))
    assert decision.outcome is Outcome.RETRIED
    assert decision.fields["error"] == "deadline exceeded"


def test_a_deadline_of_the_last_attempt_exhausts_the_job() -> None:
    assert decide(Ending(cause=Cause.DEADLINE, attempt=2, max_attempts=2)).outcome is Outcome.EXHAUSTED


def test_a_deadline_wins_over_a_value_and_keeps_the_error() -> None:
    assert decide(Ending(cause=Cause.DEADLINE, value=Snooze(1))).fields["error"] == "deadline exceeded"
    text = decide(Ending(cause=Cause.DEADLINE, error=TerminalError("while cleaning up"))).fields["error"]
    assert text.startswith("deadline exceeded; then TerminalError: while cleaning up")


def test_a_shutdown_gives_the_job_back_uncounted_and_counts_the_interruption() -> None:
    assert decide(Ending(cause=Cause.SHUTDOWN)) == Decision(
        Outcome.INTERRUPTED, {"state": "available", "uncount": True, "interrupted": True}
    )


def test_a_shutdown_keeps_the_error_that_the_handler_raised_meanwhile() -> None:
    decision = decide(Ending(cause=Cause.SHUTDOWN, error=ValueError("no time to clean up")))
    assert decision.outcome is Outcome.INTERRUPTED
    assert decision.fields["error"].startswith("stopped with its worker; then ValueError: no time to clean up")


def test_interruptions_beyond_the_bound_count_as_failures() -> None:
    decision = decide(Ending(cause=Cause.SHUTDOWN, interrupted=20, interrupted_bound=20))
    assert decision.outcome is Outcome.RETRIED
    assert "interrupted by 20 stops" in decision.fields["error"]


def test_args_that_do_not_fit_fail_for_good_with_their_path() -> None:
    decision = args_misfit(ValidationError("must be an integer, not str", "$.user_id"))
    assert decision.outcome is Outcome.EXHAUSTED
    assert decision.fields["error"].startswith("$.user_id: must be an integer")
    assert decision.fields["reason"] == "terminal_error"
