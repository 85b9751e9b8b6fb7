"""Completion in the handler's own transaction, and the look at what became of it."""

from __future__ import annotations

import uuid

from awa_actors.store.pool import Session

COMPLETE_ATTEMPT = "SELECT awa.complete_attempt($1, $2, $3)"
ATTEMPT_STATE = "SELECT awa.attempt_state($1, $2, $3)"


async def complete_attempt(session: Session, job_id: int, run_lease: int, instance: uuid.UUID) -> None:
    """Complete an attempt in the transaction that is open on the session.

    Raises:
        StaleAttempt: the attempt is not this instance's any more; the transaction must be rolled back.
    """
    await session.execute(COMPLETE_ATTEMPT, job_id, run_lease, instance)


async def attempt_state(session: Session, job_id: int, run_lease: int, instance: uuid.UUID) -> str:
    """`completed`, `live` (still this instance's) or `stale`."""
    return str(await session.fetchval(ATTEMPT_STATE, job_id, run_lease, instance))
