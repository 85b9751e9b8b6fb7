"""Complete: the happy end of many attempts in one guarded statement."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence

from awa_actors.store.pool import Session

# As text: the driver asks of every element of an array it encodes whether that is an array itself.
COMPLETE = """
SELECT completed, at FROM awa_queue.complete($1::text::bigint[], $2::text::bigint[], $3::text::smallint[], $4, $5)
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
    row = await session.fetchrow(COMPLETE, *keys, instance, results)
    return set(row["completed"] or ()), row["at"]


def _array(numbers: Sequence[int]) -> str:
    return f"{{{','.join(map(str, numbers))}}}"
