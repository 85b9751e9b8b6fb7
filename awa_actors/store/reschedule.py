"""Reschedule: attempts that run again later, and where they wait until then."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from awa_actors.core.reschedule import Result, Stale, result
from awa_actors.store.pool import Session
from awa_actors.store.rows import job_row
from awa_actors.store.settle import settled


async def reschedule(session: Session, instance: uuid.UUID, outcomes: Sequence[dict[str, Any]]) -> dict[int, Result]:
    """End attempts that are to run again after a while, and say of each what became of it.

    Args:
        session: any; the transition's state is read under its lock, in this transaction.
        instance: whose attempts.
        outcomes: of snoozes and retries (`core.outcome` makes them), each with its lease: job_id, run_lease, lslot.

    Shape: leases of either plane that match (job_id, run_lease, instance) -> deferred rows of the plane new jobs go to,
    with the same id, attempt, errors, progress, lease, times, tags, metadata and unique key. Instants are the
    database's.
    """
    found = await settled(session, instance, outcomes)
    results: dict[int, Result] = {}
    for outcome in outcomes:
        job_id, stored = outcome["job_id"], found.get(outcome["job_id"])
        results[job_id] = (
            Stale(job_id, outcome["run_lease"]) if stored is None else result(job_row(stored), stored.get("canonical"))
        )
    return results
