"""Claim: ready rows become leases of one instance; the answer is decoded once, here."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, NamedTuple

import attrs

from awa_actors.core.storage import ClaimFrom
from awa_actors.store.pool import Session
from awa_actors.store.trace import Log, step, watched

ANSWER = ", ".join(["NULL"] * 15)
"""What stands in a call for the columns of its answer."""
# The call commits before it answers: a client that stops reading holds a lease, never an open transaction.
CLAIM = f"CALL awa_queue.claim($1, $2, $3, $4, $5, $6, $7, {ANSWER})"
# While jobs may be left in the canonical plane: those first; then ($8) the queue plane for the rest.
CLAIM_PLANES = f"CALL awa.claim_planes($1, $2, $3, $4, $5, $6, $7, $8, {ANSWER})"


ENDED_AT_CLAIM = ("duplicate", "postpone")
"""What else a claim does to a job, without saying which of the two it was."""


class Claimed(NamedTuple):
    """One claimed attempt, as the database gave it. `extras` is JSON text or None.

    A tuple, since a worker makes one for every job and nothing else here costs less.
    """

    job_id: int
    run_lease: int
    lslot: int
    attempt: int
    max_attempts: int
    priority: int
    kind: str
    args: str
    created_at: dt.datetime
    run_at: dt.datetime | None
    deadline_at: dt.datetime | None
    extras: str | None


@attrs.frozen
class Claim:
    """What one claim brought to an instance. `hints` say where this claimer last found work in each lane.

    `is_full`: as many jobs or bytes as were asked for, so that there may be more. `looked`: seconds that the server
    took to find the heads of the lanes.
    """

    attempts: list[Claimed]
    hints: list[int]
    claimed_at: dt.datetime | None = None
    is_full: bool = False
    looked: float = 0.0
    instance: uuid.UUID = attrs.field(kw_only=True)


async def claim(
    session: Session,
    queue: str,
    limit: int,
    instance: uuid.UUID,
    *,
    max_bytes: int,
    aging: float,
    deadline: float | None,
    hints: list[int],
    planes: ClaimFrom = ClaimFrom.QUEUE,
) -> Claim:
    """Take up to `limit` jobs of a queue for an instance.

    Args:
        session: outside a transaction.
        queue: which queue.
        limit: most jobs.
        instance: whose leases they become.
        max_bytes: most bytes of args (one job is always taken).
        aging: seconds of waiting that make a job one priority more urgent; 0 turns it off.
        deadline: seconds an attempt may run unless its job says otherwise.
        hints: from the previous claim, or empty to look from the beginning. Wrong hints cost time, never jobs.
        planes: where to look; what has been finalized has one plane.

    Shape: ready rows -> leases (attempt + 1, run_lease + 1). Empty while the queue is paused.

    Cancellation: a claim whose answer is lost stays leased to the instance; it gives back what it does not know it has.
    """
    deadline_ms = None if deadline is None else int(deadline * 1000)
    asked = (queue, limit, max_bytes, instance, aging, deadline_ms, hints)
    with watched(session, "claim", *ENDED_AT_CLAIM):
        if planes is ClaimFrom.QUEUE:
            row = await session.fetchrow(CLAIM, *asked)
        else:
            row = await session.fetchrow(CLAIM_PLANES, *asked, planes is ClaimFrom.BOTH)
    return claim_of(session, row, instance, limit, max_bytes)


def claim_of(session: Session, row: Any, instance: uuid.UUID, limit: int = 1, max_bytes: int = 1) -> Claim:
    """Read what a claim of the server gave, and note it in the log of the run."""
    looked = 0.0 if row is None else (row["looked_ms"] or 0.0) / 1000
    if row is None or row["job_ids"] is None:
        return Claim([], [], looked=looked, instance=instance)
    if session.log is not None:
        _trace(session.log, row, instance)
    columns = (
        row["job_ids"], row["run_leases"], row["lslots"], row["attempts"], row["max_attempts"], row["priorities"],
        row["kinds"], row["args"], row["created_at"], row["run_at"], row["deadline_at"], row["extras"],
    )  # fmt: skip
    return Claim(
        # A row without a kind ended at the claim, as a duplicate.
        [tuple.__new__(Claimed, values) for values in zip(*columns, strict=True) if values[6] is not None],
        row["hints"] or [],
        row["claimed_at"],
        len(row["job_ids"]) >= limit or _bytes_of(row["args"], row["extras"], max_bytes) >= max_bytes,
        looked,
        instance=instance,
    )


def _bytes_of(args: list[str], extras: list[str | None], enough: int) -> int:
    """How many bytes the server counted against the claim's bound; an estimate from above where that is not reached."""
    texts = [*args, *(extra for extra in extras if extra is not None)]
    most = 4 * sum(map(len, texts))
    return most if most < enough else sum(len(text.encode()) for text in texts)


def _trace(log: Log, row: Any, instance: uuid.UUID) -> None:
    at, leases = row["claimed_at"], zip(row["job_ids"], row["run_leases"], strict=True)
    log.note(step(at, job, lease, "available", "running", "claim", instance) for job, lease in leases)
    if None in row["kinds"]:
        log.unseen(ENDED_AT_CLAIM)
