"""Lifecycle events from what the database returned about a transition."""

from __future__ import annotations

import datetime as dt
from typing import Any

import attrs
import orjson

from awa_actors import events
from awa_actors.actors.messages import Ended
from awa_actors.codec import structure
from awa_actors.core.outcome import Outcome
from awa_actors.jobs import JobRow, JobState
from awa_actors.store.claim import Claimed
from awa_actors.store.follow_up_plan import scope_of
from awa_actors.store.rescue import RescuedJob
from awa_actors.store.rows import job_row


class _LateRow(JobRow):
    """A row that is filled when somebody looks at more of it than what every event is asked for.

    One is made for every completion that something follows, and hardly any closure reads it: building all of it cost
    more than the closure and its job.
    """

    __slots__ = ("_source",)

    @property  # type: ignore[override]  # equal, printed and copied like any other row
    def __class__(self) -> type[JobRow]:
        return JobRow

    @__class__.setter
    def __class__(self, value: type[object]) -> None:
        raise TypeError("a row keeps its class")

    def __getattr__(self, name: str) -> Any:
        """Fill the row; only fields that are not set yet end up here."""
        if name.startswith("_"):
            raise AttributeError(name)
        JobRow.__init__(self, **_fields(*self._source))
        return object.__getattribute__(self, name)


def claimed_row(claimed: Claimed, queue: str, state: JobState, at: dt.datetime | None) -> JobRow:
    """The row of a claimed attempt in a state it reached at a time of the database's; needs no second read."""
    if claimed.extras is not None:
        return JobRow(**_fields(claimed, queue, state, at))
    row, put = _LateRow.__new__(_LateRow), object.__setattr__
    put(row, "_source", (claimed, queue, state, at))
    put(row, "id", claimed.job_id)
    put(row, "kind", claimed.kind)
    put(row, "state", state)
    put(row, "metadata", {})
    return row


def _fields(claimed: Claimed, queue: str, state: JobState, at: dt.datetime | None) -> dict[str, Any]:
    extras: dict[str, Any] = {} if claimed.extras is None else orjson.loads(claimed.extras)
    return {
        "id": claimed.job_id,
        "kind": claimed.kind,
        "queue": queue,
        "args": orjson.loads(claimed.args),
        "state": state,
        "priority": claimed.priority,
        "attempt": claimed.attempt,
        "run_lease": claimed.run_lease,
        "max_attempts": claimed.max_attempts,
        "run_at": claimed.run_at or claimed.created_at,
        "created_at": claimed.created_at,
        "finalized_at": at if state.is_terminal else None,
        "deadline_at": claimed.deadline_at,
        "metadata": extras.get("metadata") or {},
        "tags": tuple(extras.get("tags") or ()),
        "errors": tuple(extras.get("errors") or ()),
        "snoozes": extras.get("snoozes") or 0,
        "rescues": extras.get("rescues") or 0,
        "interrupted": extras.get("interrupted") or 0,
        "unique_key": bytes.fromhex(extras["unique_key"]) if extras.get("unique_key") else None,
    }


_MAY_LAND = {
    Outcome.COMPLETED: ("completed",),
    Outcome.RETRIED: ("retried", "exhausted"),
    Outcome.CANCELLED: ("cancelled", "exhausted"),
    Outcome.WAITING: ("waiting_for_callback", "completed", "retried", "exhausted"),
}


def possible_outcomes(outcome: Outcome) -> tuple[str, ...]:
    """What an ending may become in the database: one that cannot be recorded as asked is recorded as failed."""
    return _MAY_LAND.get(outcome, ("exhausted",))


def event_of(ended: Ended, landed: JobRow | dt.datetime) -> events.Event[Any] | None:
    """The event of a recorded end: what the row became counts, not what was asked for.

    None for ends without an event: snooze, give-back, a resume, and a retry that a newer holder of its unique key made
    a duplicate.

    Args:
        ended: what was recorded.
        landed: the row as it landed, or for a completion the database's time of it.
    """
    args = None if ended.attempt.job is None else ended.attempt.job.args
    if not isinstance(landed, JobRow):
        return events.Completed(job=completed_row(ended, landed), args=args, duration=ended.duration)
    row = landed
    fields = ended.decision.fields
    match row.state, ended.decision.outcome:
        case JobState.COMPLETED, _:
            return events.Completed(job=row, args=args, duration=ended.duration)
        case JobState.RETRYABLE, Outcome.RETRIED | Outcome.WAITING:
            return events.Retried(
                job=row, args=args, error=_error(row, fields), attempt=row.attempt, next_run_at=row.run_at
            )
        case JobState.FAILED, _:
            return events.Exhausted(job=row, args=args, error=_error(row, fields), attempt=row.attempt)
        case JobState.CANCELLED, Outcome.CANCELLED:
            return events.Cancelled(job=row, args=args, reason=fields.get("reason", ""))
        case JobState.WAITING_EXTERNAL, Outcome.WAITING:
            return events.WaitingForCallback(job=row, args=args, callback_id=fields["callback_id"])
    return None


def completed_row(ended: Ended, at: dt.datetime) -> JobRow:
    """The row of a completed attempt, with what its handler noted; no second read is needed for it."""
    attempt = ended.attempt
    row = claimed_row(attempt.claimed, attempt.queue, JobState.COMPLETED, at)
    noted = None if attempt.job is None else attempt.job._metadata_patch
    return row if noted is None else attrs.evolve(row, metadata={**row.metadata, **noted})


def _error(row: JobRow, fields: dict[str, Any]) -> str:
    return str(row.errors[-1].get("error", "")) if row.errors else str(fields.get("error", ""))


def rescued_event(rescued: RescuedJob, args_type: type[Any] | None) -> events.Rescued[Any]:
    """The event of a committed rescue.

    Args:
        rescued: what the database says.
        args_type: the class of its args, or None for a kind this process has no class for: then they stay plain JSON.

    Raises:
        ValidationError: the stored args do not fit the class.
    """
    args = rescued.job.args if args_type is None else structure(rescued.job.args, args_type)
    return events.Rescued(job=rescued.job, args=args, reason=rescued.reason)


def event_record(event: events.Event[Any]) -> dict[str, Any]:
    """An event as plain JSON, for :func:`recorded_event`."""
    scope = scope_of(event)
    return {"job": scope["job"], "outcome": scope["outcome"]}


def recorded_event(record: dict[str, Any], args_type: type[Any] | None) -> events.Event[Any]:
    """The event that :func:`event_record` wrote.

    Raises:
        ValidationError: the args do not fit the class (any more).
    """
    row = job_row(record["job"])
    context = dict(record["outcome"])
    made = events.OUTCOME_EVENTS[context.pop("name")]
    if "next_run_at" in context:
        context["next_run_at"] = dt.datetime.fromisoformat(context["next_run_at"])
    return made(job=row, args=row.args if args_type is None else structure(row.args, args_type), **context)
