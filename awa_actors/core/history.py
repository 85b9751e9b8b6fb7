"""What happened to a job, read from what is stored of it."""

from __future__ import annotations

import datetime as dt
import heapq
from typing import Any

import attrs

from awa_actors.jobs import JobRow, JobState

ALIVE = {JobState.RUNNING: "running", JobState.WAITING_EXTERNAL: "waiting"}
NEVER = dt.datetime.min.replace(tzinfo=dt.UTC)


@attrs.frozen
class AttemptRecord:
    """One attempt, or an end without one (a cancellation while the job waited).

    Args:
        attempt: its number; one that was not counted (rescued, snoozed …) shares it with the next.
        started_at: when it was claimed; None where no attempt ran.
        ended_at: None while it runs.
        outcome: running, waiting, completed, retried, failed, cancelled or rescued; of those that are not counted
            snoozed, interrupted, resumed (it was parked, its callback let it go on) or given_back (an unknown kind).
        error: text, None without one.
        instance: the process that ran it; of a completed one whose process is long gone, ``#`` and its number.
        rescue: why it was taken from its process.
        reason: why it ended as it did, where that is no error.
        count: attempts that this stands for: those with one number, one after the other, that all ended like this. It
            started when the first of them did, and its end and its process are those of the last.
        first_ended_at: when the first of several ended.
    """

    attempt: int
    started_at: dt.datetime | None
    ended_at: dt.datetime | None
    outcome: str
    error: str | None = None
    instance: str | None = None
    rescue: str | None = None
    reason: str | None = None
    count: int = 1
    first_ended_at: dt.datetime | None = None


RESCUES = {
    "rescued: the worker instance stopped beating": "stale_instance",
    "hard deadline exceeded": "deadline_exceeded",
    "callback timed out": "expired_callback",
}
"""Texts of rescues that leave no other mark."""


def history(job: JobRow) -> tuple[AttemptRecord, ...]:
    """Attempts of a job, oldest first.

    Claims that never began are not told. Of more than a hundred errors, and of more than a hundred other ends, those
    in the middle are gone.
    """
    failed = (_from_error(entry) for entry in job.errors)
    others = (_from_past(entry) for entry in job.past)
    # Each is in its own order, which is right also where the clock was not.
    records = list(heapq.merge(failed, others, key=lambda one: one.ended_at or NEVER))
    if job.state in ALIVE:
        outcome = ALIVE[job.state]
        records.append(AttemptRecord(job.attempt, job.attempted_at, None, outcome, instance=job.instance))
    elif job.state is JobState.COMPLETED:
        records.append(
            AttemptRecord(job.attempt, job.attempted_at, job.finalized_at, "completed", instance=job.instance)
        )
    return tuple(records)


def _from_error(entry: dict[str, Any]) -> AttemptRecord:
    text = str(entry.get("error", ""))
    rescue = entry.get("rescue") or RESCUES.get(text)
    if (told := entry.get("outcome")) is not None:
        outcome = str(told)
    elif text.startswith("cancelled"):
        outcome = "cancelled"
    elif entry.get("terminal"):
        outcome = "failed"
    else:
        outcome = "rescued" if rescue else "retried"
    return AttemptRecord(
        int(entry.get("attempt", 0)),
        _instant(entry.get("started_at")),
        _instant(entry.get("at")),
        outcome,
        text,
        entry.get("instance"),
        rescue,
    )


def _from_past(entry: dict[str, Any]) -> AttemptRecord:
    return AttemptRecord(
        int(entry["attempt"]),
        _instant(entry.get("started_at")),
        _instant(entry.get("at")),
        entry["outcome"],
        instance=entry.get("instance"),
        reason=entry.get("reason"),
        count=entry.get("count", 1),
        first_ended_at=_instant(entry.get("first_at")),
    )


def _instant(text: Any) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if isinstance(text, str) else None


def timeline(job: JobRow, dead_since: dt.datetime | None = None) -> list[dict[str, Any]]:
    """Give what happened as entries with an instant, oldest first."""
    entries: list[dict[str, Any]] = [{"at": job.created_at, "what": "inserted"}]
    for one in history(job):
        if one.started_at is not None:
            entries.append({"at": one.started_at, "what": f"attempt {one.attempt} started", "instance": one.instance})
        if one.ended_at is not None:
            entries.append(_end(one))
    if job.state in (JobState.SCHEDULED, JobState.RETRYABLE):
        entries.append({"at": job.run_at, "what": "due"})
    if dead_since is not None:
        entries.append({"at": dead_since, "what": f"dead letter: {job.dlq_reason}"})
    return sorted(entries, key=lambda entry: entry["at"])


def _end(one: AttemptRecord) -> dict[str, Any]:
    times = f" {one.count} times" if one.count > 1 else ""
    entry = {"at": one.ended_at, "what": f"attempt {one.attempt} {one.outcome}{times}", "error": one.error}
    return entry if one.reason is None else {**entry, "reason": one.reason}


def summary(job: JobRow) -> dict[str, Any]:
    """Give what an operator asks first."""
    return {
        "can_retry": job.state not in (JobState.RUNNING, JobState.COMPLETED),
        "can_cancel": not job.state.is_terminal,
        "error_count": len(job.errors),
        "latest_error": str(job.errors[-1].get("error")) if job.errors else None,
        "snoozes": job.snoozes,
        "rescues": job.rescues,
        "interrupted": job.interrupted,
        # What a batch operation changed.
        "original_queue": job.metadata.get("_awa_original_queue", job.queue),
        "original_priority": job.metadata.get("_awa_original_priority", job.priority),
    }
