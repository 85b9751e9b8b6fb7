"""What becomes of an attempt that asks to run again later: snooze, retry-after, back-off. Pure.

Where the transition stands decides where it lands, under its lock and in the attempt's own transaction: the database
says which of these it was, and the worker records an end of one plane as it does one of the other.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs

from awa_actors.jobs import JobRow, JobState


@attrs.frozen
class Rescheduled:
    """It waits in the plane it ran in."""

    job: JobRow


@attrs.frozen
class Migrated:
    """It ran in the canonical plane and waits in the queue plane, with everything it had."""

    job: JobRow


@attrs.frozen
class CancelledDuplicate:
    """A newer job holds the unique key it would need: that one wins, this one is kept as evidence."""

    job: JobRow


@attrs.frozen
class Refused:
    """It could not be recorded as asked, and failed visibly."""

    job: JobRow


@attrs.frozen
class Stale:
    """Somebody else has ended the attempt or taken it away: nothing was changed."""

    job_id: int
    run_lease: int


Result: TypeAlias = Rescheduled | Migrated | CancelledDuplicate | Refused | Stale


def result(job: JobRow, canonical: bool | None) -> Result:
    """Name what the database did.

    Args:
        job: the row as it landed.
        canonical: of an attempt of the canonical plane, whether the job is still there; None for one of the queue
            plane.
    """
    if job.state is JobState.FAILED:
        return Refused(job)
    if job.state is JobState.CANCELLED:
        return CancelledDuplicate(job)
    return Migrated(job) if canonical is False else Rescheduled(job)
