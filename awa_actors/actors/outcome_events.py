"""Lifecycle events from what the database returned about a transition."""

from __future__ import annotations

import datetime as dt
from typing import Any

import orjson

from awa_actors import events
from awa_actors.actors.messages import Ended
from awa_actors.codec import structure
from awa_actors.core.outcome import Outcome
from awa_actors.jobs import JobRow, JobState
from awa_actors.store.claim import Claimed
from awa_actors.store.rescue import RescuedJob


def claimed_row(claimed: Claimed, queue: str, state: JobState, at: dt.datetime | None) -> JobRow:
    """The row of a claimed attempt in a state it reached at a time of the database's; needs no second read."""
    extras: dict[str, Any] = {} if claimed.extras is None else orjson.loads(claimed.extras)
    return JobRow(
        id=claimed.job_id,
        kind=claimed.kind,
        queue=queue,
        args=orjson.loads(claimed.args),
        state=state,
        priority=claimed.priority,
        attempt=claimed.attempt,
        run_lease=claimed.run_lease,
        max_attempts=claimed.max_attempts,
        run_at=claimed.run_at or claimed.created_at,
        created_at=claimed.created_at,
        finalized_at=at if state.is_terminal else None,
        deadline_at=claimed.deadline_at,
        metadata=extras.get("metadata") or {},
        tags=tuple(extras.get("tags") or ()),
        errors=tuple(extras.get("errors") or ()),
        snoozes=extras.get("snoozes") or 0,
        rescues=extras.get("rescues") or 0,
        interrupted=extras.get("interrupted") or 0,
        unique_key=bytes.fromhex(extras["unique_key"]) if extras.get("unique_key") else None,
    )


def event_of(ended: Ended, landed: JobRow | dt.datetime) -> Any:
    """The event of a recorded end, or None for ends that have none (snooze, give-back).

    Args:
        ended: what was recorded.
        landed: the row as it landed, or for a completion the database's time of it.
    """
    attempt, decision = ended.attempt, ended.decision
    if isinstance(landed, JobRow):
        row = landed
    else:
        row = claimed_row(attempt.claimed, attempt.queue, JobState.COMPLETED, landed)
    args = attempt.job.args if attempt.job is not None else None
    error = decision.fields.get("error", "")
    match decision.outcome:
        case Outcome.COMPLETED:
            return events.Completed(job=row, args=args, duration=ended.duration)
        case Outcome.RETRIED if row.state is JobState.RETRYABLE:
            return events.Retried(job=row, args=args, error=error, attempt=row.attempt, next_run_at=row.run_at)
        case Outcome.EXHAUSTED if row.state is JobState.FAILED:
            return events.Exhausted(job=row, args=args, error=error, attempt=row.attempt)
        case Outcome.CANCELLED if row.state is JobState.CANCELLED:
            return events.Cancelled(job=row, args=args, reason=decision.fields.get("reason", ""))
        case Outcome.WAITING:
            return events.WaitingForCallback(job=row, args=args, callback_id=decision.fields["callback_id"])
    return None


def rescued_event(rescued: RescuedJob, args_type: type[Any]) -> events.Rescued[Any]:
    """The event of a committed rescue.

    Raises:
        ValidationError: the stored args do not fit the class.
    """
    return events.Rescued(job=rescued.job, args=structure(rescued.job.args, args_type), reason=rescued.reason)
