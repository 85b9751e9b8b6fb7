"""Complete: the happy end of many attempts in one guarded statement."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

from awa_actors.store.pool import Session
from awa_actors.store.trace import step, watched

# As text: the driver asks of every element of an array it encodes whether that is an array itself.
COMPLETE = """
SELECT completed, at, clock_timestamp() AS t
FROM awa_queue.complete($1::text::bigint[], $2::text::bigint[], $3::text::smallint[], $4, $5)
"""


async def complete(
    session: Session,
    instance: uuid.UUID,
    job_ids: Sequence[int],
    run_leases: Sequence[int],
    lslots: Sequence[int],
    results: Sequence[str | None] | None = None,
) -> tuple[set[int], dt.datetime]:
    """Complete the attempts that are still this instance's.

    Shape: leases that match (job_id, run_lease, instance) -> done rows.

    Returns:
        Ids of the completed jobs, and when; the others are stale: somebody else ended or took them.
    """
    keys = (_array(job_ids), _array(run_leases), _array(lslots))
    with watched(session, "complete"):
        row = await session.fetchrow(COMPLETE, *keys, instance, results)
    done = set(row["completed"] or ())
    if session.log is not None:
        ended = [pair for pair in zip(job_ids, run_leases, strict=True) if pair[0] in done]
        session.log.note(step(row["t"], *pair, "running", "completed", "complete", instance) for pair in ended)
    return done, row["at"]


def _array(numbers: Sequence[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"
