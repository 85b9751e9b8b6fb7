"""What became of an attempt whose handler may have completed it in a transaction of its own."""

from __future__ import annotations

import datetime as dt
import uuid

from awa_actors.store.pool import Session
from awa_actors.store.trace import step

ATTEMPT_STATE = "SELECT state, at FROM awa.attempt_state($1, $2, $3)"


async def attempt_state(
    session: Session, job_id: int, run_lease: int, instance: uuid.UUID
) -> tuple[str, dt.datetime | None]:
    """What became of an attempt: `completed` (and when), `live` (still this instance's) or `stale`.

    Waits, up to the lock timeout, for a transaction that is just completing it.
    """
    row = await session.fetchrow(ATTEMPT_STATE, job_id, run_lease, instance)
    if session.log is not None and row["state"] == "completed":
        session.log.note([step(row["at"], job_id, run_lease, "running", "completed", "complete", instance)])
    return str(row["state"]), row["at"]
