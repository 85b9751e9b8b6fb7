"""Lifecycle events: what an observer or a follow-up closure is given.

An event is built from the row that the transition returned, after it was written. Observers see events best effort: a
crash between the commit and the call loses them. What must not be lost is a follow-up job.
"""

from __future__ import annotations

import datetime as dt
from typing import Generic, TypeVar

import attrs

from awa_actors.jobs import JobRow

A_co = TypeVar("A_co", covariant=True)


@attrs.frozen(kw_only=True)
class Event(Generic[A_co]):
    """Something happened to a job of known args.

    Args:
        job: the row after the transition.
        args: its args as the class they were declared with.
    """

    job: JobRow
    args: A_co


@attrs.frozen(kw_only=True)
class Started(Event[A_co]):
    """An attempt begins; observation only."""


@attrs.frozen(kw_only=True)
class WaitingForCallback(Event[A_co]):
    """The job is parked."""

    callback_id: str


@attrs.frozen(kw_only=True)
class Completed(Event[A_co]):
    """The job succeeded; `duration` in seconds, 0.0 when it was completed from outside."""

    duration: float


@attrs.frozen(kw_only=True)
class Retried(Event[A_co]):
    """A counted attempt failed (or asked for another); the job runs again at `next_run_at`."""

    error: str
    attempt: int
    next_run_at: dt.datetime


@attrs.frozen(kw_only=True)
class Exhausted(Event[A_co]):
    """The job failed for good: no attempts left, a terminal error, or an external failure."""

    error: str
    attempt: int


@attrs.frozen(kw_only=True)
class Cancelled(Event[A_co]):
    """The job was cancelled by its handler or by an operator."""

    reason: str


@attrs.frozen(kw_only=True)
class Rescued(Event[A_co]):
    """Maintenance took the attempt back: `stale_instance`, `deadline_exceeded` or `expired_callback`."""

    reason: str


OUTCOME_EVENTS: dict[str, type[Event[object]]] = {
    "completed": Completed,
    "retried": Retried,
    "exhausted": Exhausted,
    "cancelled": Cancelled,
    "waiting_for_callback": WaitingForCallback,
    "rescued": Rescued,
}
"""Outcomes that may carry follow-ups, by the name used in `on_<outcome>_enqueue`."""
