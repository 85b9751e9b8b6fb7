"""Callbacks from the side of the worker: a running attempt registers, waits inside its handler, or parks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import orjson

from awa_actors.jobs import JobRow
from awa_actors.store.pool import Session
from awa_actors.store.rows import job_row
from awa_actors.store.trace import Line, landed, step, watched

REGISTER = "SELECT awa_queue.register_callback($1, $2, $3, $4, $5::text::jsonb)"
UNREGISTER = "SELECT awa_queue.cancel_callback($1, $2, $3, $4)"
AWAIT = "SELECT status, payload, due_in, clock_timestamp() AS t FROM awa_queue.await_callback($1, $2, $3, $4, $5)"
LEAVE = "SELECT awa_queue.leave_callback($1, $2, $3, $4, $5)"
PARK = "SELECT job_id, outcome, job, clock_timestamp() AS t FROM awa_queue.park($1, $2::text::jsonb)"


@attrs.frozen
class Holder:
    """Whose callback it is: the identity of an attempt."""

    job_id: int
    run_lease: int
    instance: uuid.UUID


@attrs.frozen
class Look:
    """What a waiting handler sees.

    Args:
        status: waiting, resumed, expired, unknown or stale.
        payload: what the job was resumed with.
        due_in: seconds until the callback expires, while waiting.
    """

    status: str
    payload: Any
    due_in: float | None


@attrs.frozen
class Parked:
    """What became of an attempt that returned WaitForCallback: `parked`, `resumed`, `violation` or `duplicate`."""

    outcome: str
    job: JobRow


async def register(session: Session, holder: Holder, seconds: float, expressions: str | None) -> str | None:
    """Register a callback, replacing the job's earlier one; returns its id, or None when the attempt is stale.

    Shape: guarded by the lease (job_id, run_lease, instance) in state running -> one open callback.
    """
    found = await session.fetchval(REGISTER, holder.job_id, holder.run_lease, holder.instance, seconds, expressions)
    return None if found is None else str(found)


async def unregister(session: Session, callback_id: str, holder: Holder) -> bool:
    """Take a registration back; False when it is not open (any more)."""
    return bool(await session.fetchval(UNREGISTER, callback_id, holder.job_id, holder.run_lease, holder.instance))


async def look(session: Session, callback_id: str, holder: Holder, remaining: float | None) -> Look:
    """Look after a callback from inside its handler; the first look marks the job as waiting.

    Args:
        session: outside a transaction.
        callback_id: which.
        holder: the attempt.
        remaining: seconds left of the attempt's deadline, which stands still while it waits; None without one.
    """
    row = await session.fetchrow(AWAIT, callback_id, holder.job_id, holder.run_lease, holder.instance, remaining)
    if session.log is not None and row["status"] == "waiting":
        key = holder.job_id, holder.run_lease
        session.log.note([step(row["t"], *key, "running", "waiting_external", "await", holder.instance)])
    payload = None if row["payload"] is None else orjson.loads(row["payload"])
    return Look(row["status"], payload, row["due_in"])


async def leave(session: Session, callback_id: str, holder: Holder, remaining: float | None) -> None:
    """Stop waiting inside the handler without an answer; the callback stays open and the attempt runs on."""
    await session.execute(LEAVE, callback_id, holder.job_id, holder.run_lease, holder.instance, remaining)


async def park(session: Session, instance: uuid.UUID, entries: Sequence[Mapping[str, Any]]) -> dict[int, Parked]:
    """Park attempts whose handlers returned WaitForCallback.

    Args:
        session: any.
        instance: whose attempts.
        entries: job_id, run_lease, callback_id, and progress and metadata where the handler left some.

    Shape: leases that match (job_id, run_lease, instance) stay, in state waiting_external, without a deadline.

    Returns:
        What became of each, by job id; ids that are missing were stale.
    """
    with watched(session, "park"):
        rows = await session.fetch(PARK, instance, orjson.dumps(list(entries)).decode())
    parked = {row["job_id"]: Parked(row["outcome"], job_row(orjson.loads(row["job"]))) for row in rows}
    if session.log is not None:
        session.log.note(_line(row["t"], parked[row["job_id"]].job, row["outcome"], instance) for row in rows)
    return parked


def _line(at: Any, job: JobRow, outcome: str, instance: uuid.UUID) -> Line:
    state = job.state.value
    asked = {"parked": state, "resumed": "available", "violation": "failed"}.get(outcome, "cancelled")
    by = "duplicate" if outcome == "duplicate" else landed("park", asked, state)
    return step(at, job.id, job.run_lease, "running", state, by, instance)
