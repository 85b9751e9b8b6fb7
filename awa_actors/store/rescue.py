"""Rescue: attempts of dead instances, past deadlines or expired callbacks go back to the queue, or fail visibly."""

from __future__ import annotations

from typing import Any

import attrs
import orjson

from awa_actors.jobs import JobRow, JobState
from awa_actors.store.pool import Session
from awa_actors.store.rows import job_row
from awa_actors.store.trace import Line, landed, step, watched

BURY = "SELECT awa.bury_instances()"
# Each part isolates its own rows; one statement for all keeps an idle leader quiet.
SWEEP = """
SELECT r, clock_timestamp() AS t FROM awa_queue.rescue_stale($1, $2) r
UNION ALL SELECT r, clock_timestamp() FROM awa_queue.rescue_deadlines($1, $3, $2) r
UNION ALL SELECT r, clock_timestamp() FROM awa_queue.rescue_callbacks($1, $2) r
UNION ALL SELECT r, clock_timestamp() FROM awa.rescue_canonical_stale($1, $2) r
UNION ALL SELECT r, clock_timestamp() FROM awa.rescue_canonical_deadlines($1, $3, $2) r
"""
STEPS = {
    "stale_instance": ("rescue", "running"),
    "deadline_exceeded": ("deadline", "running"),
    "expired_callback": ("expire", "waiting_external"),
}
"""For the log: who takes an attempt back for a reason, and from which state."""


@attrs.frozen
class RescuedJob:
    """One rescued job as it landed, and why: `stale_instance`, `deadline_exceeded` or `expired_callback`."""

    job: JobRow
    reason: str


def _rescued(rows: list[Any]) -> list[RescuedJob]:
    stored = [orjson.loads(row["r"]) for row in rows]
    return [RescuedJob(job_row(job), job["rescue_reason"]) for job in stored]


async def bury_instances(session: Session) -> list[str]:
    """Declare instances dead whose stored beat is older than they allow, by the database's clock; returns their ids."""
    return [str(row[0]) for row in await session.fetch(BURY)]


async def sweep(session: Session, rows: int, bound: int, margin: float) -> list[RescuedJob]:
    """All rescues of both planes, up to `rows` of each, in one transaction."""
    with watched(session, "rescue", "deadline", "expire"):
        found = await session.fetch(SWEEP, rows, bound, margin)
    rescued = _rescued(found)
    if session.log is not None:
        session.log.note(_line(row["t"], one) for row, one in zip(found, rescued, strict=True))
    return rescued


def _line(at: Any, one: RescuedJob) -> Line:
    (by, before), job = STEPS[one.reason], one.job
    by = by if job.state is JobState.FAILED else landed(by, "retryable", job.state.value)
    return step(at, job.id, job.run_lease, before, job.state.value, by, job.instance)
