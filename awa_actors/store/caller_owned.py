"""Completion in the handler's own transaction, and the look at what became of it."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, Protocol

from awa_actors.store.pool import Session
from awa_actors.store.settle import note_body

COMPLETE_ATTEMPT = "SELECT awa.complete_attempt($1, $2, $3)"
ATTEMPT_STATE = "SELECT state, at FROM awa.attempt_state($1, $2, $3)"


class LiveAttempt(Protocol):
    """What the guard needs to know of a running attempt, and what its handler noted."""

    @property
    def key(self) -> tuple[int, int]: ...  # noqa: D102
    @property
    def instance(self) -> uuid.UUID: ...  # noqa: D102
    def notes(self) -> dict[str, Any]: ...  # noqa: D102


async def complete_attempt(session: Session, attempt: LiveAttempt) -> None:
    """Complete an attempt in the transaction that is open on the session, with the metadata its handler noted.

    Raises:
        StaleAttempt: the attempt is not this instance's any more; the transaction must be rolled back.
    """
    job_id, run_lease = attempt.key
    if (metadata := attempt.notes().get("metadata")) is not None:
        await note_body(session, job_id, run_lease, attempt.instance, metadata)
    await session.execute(COMPLETE_ATTEMPT, job_id, run_lease, attempt.instance)


async def attempt_state(
    session: Session, job_id: int, run_lease: int, instance: uuid.UUID
) -> tuple[str, dt.datetime | None]:
    """What became of an attempt: `completed` (and when), `live` (still this instance's) or `stale`.

    Waits, up to the lock timeout, for a transaction that is just completing it.
    """
    row = await session.fetchrow(ATTEMPT_STATE, job_id, run_lease, instance)
    return str(row["state"]), row["at"]
