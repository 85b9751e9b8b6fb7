"""Settle: every end of an attempt but the happy one, and its notes while it runs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import orjson

from awa_actors.jobs import JobRow
from awa_actors.store.pool import Session
from awa_actors.store.rows import job_row
from awa_actors.store.trace import Line, landed, step, watched

SETTLE = "SELECT job_id, run_lease, job, clock_timestamp() AS t FROM awa_queue.settle($1, $2::text::jsonb)"
NOTE = "SELECT awa_queue.note($1, $2, $3, $4::text::jsonb, $5::text::jsonb)"
NOTE_BODY = "SELECT awa_queue.note_body($1, $2, $3, $4::text::jsonb)"
RELEASE = "SELECT awa_queue.release_instance($1)"
HELD = """
SELECT job_id, run_lease, lslot FROM awa_queue.leases WHERE instance = $1 AND state = 'running'
UNION ALL SELECT job_id, run_lease, -1 FROM awa.jobs_hot WHERE instance = $1 AND state = 'running'
"""
LOST = "SELECT job_id, run_lease, cancelled FROM awa_queue.lost($1, $2, $3)"


async def settle(session: Session, instance: uuid.UUID, outcomes: Sequence[dict[str, Any]]) -> dict[int, JobRow]:
    """End attempts as their outcomes say (`core.outcome` makes them).

    Shape: leases that match (job_id, run_lease, instance) -> deferred, terminal, dead-letter or ready rows. One that
    cannot be recorded as asked is recorded as failed; the others are not touched by that.

    Returns:
        The jobs as they landed, by id; ids that are missing were stale.
    """
    return {job_id: job_row(stored) for job_id, stored in (await settled(session, instance, outcomes)).items()}


async def settled(
    session: Session, instance: uuid.UUID, outcomes: Sequence[dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Do what `settle` does, and give the jobs as they are stored."""
    with watched(session, *{_who(entry) for entry in outcomes} if session.log is not None else ()):
        rows = await session.fetch(SETTLE, instance, orjson.dumps(outcomes).decode())
    stored = {row["job_id"]: orjson.loads(row["job"]) for row in rows}
    if session.log is not None:
        asked = {entry["job_id"]: entry for entry in outcomes}
        session.log.note(
            _line(row["t"], job_row(stored[row["job_id"]]), asked[row["job_id"]], instance) for row in rows
        )
    return stored


ENDS = {"retryable": "retry", "failed": "fail", "cancelled": "cancel", "scheduled": "snooze"}


def _who(entry: dict[str, Any]) -> str:
    if "give_back" in entry:
        return "give_back"
    if "interrupted" in entry or entry["state"] == "available":
        return "interrupt"
    return ENDS[entry["state"]]


def _line(at: Any, job: JobRow, entry: dict[str, Any], instance: uuid.UUID) -> Line:
    by = landed(_who(entry), entry.get("state", "available"), job.state.value)
    return step(at, job.id, job.run_lease, "running", job.state.value, by, instance)


async def note(
    session: Session, job_id: int, run_lease: int, instance: uuid.UUID, progress: str | None, metadata: str | None
) -> bool:
    """Store progress and metadata (JSON texts) of a running attempt; False when it is stale."""
    return bool(await session.fetchval(NOTE, job_id, run_lease, instance, progress, metadata))


async def lost(
    session: Session, instance: uuid.UUID, job_ids: Sequence[int], run_leases: Sequence[int]
) -> list[tuple[int, int, bool]]:
    """Which of these attempts are no longer the instance's: (job_id, run_lease, whether the job was cancelled)."""
    return [tuple(row) for row in await session.fetch(LOST, job_ids, run_leases, instance)]


async def note_body(
    session: Session, job_id: int, run_lease: int, instance: uuid.UUID, metadata: dict[str, Any]
) -> None:
    """Merge metadata into the body of an attempt that is about to complete, if it is still this instance's."""
    await session.execute(NOTE_BODY, job_id, run_lease, instance, orjson.dumps(metadata).decode())


async def release_instance(session: Session, instance: uuid.UUID) -> int:
    """Give back every running attempt this instance still holds, uncounted; returns how many."""
    if session.log is not None:
        held = [{**row, "give_back": True} for row in await session.fetch(HELD, instance)]
        return len(await settle(session, instance, held))
    return int(await session.fetchval(RELEASE, instance))
