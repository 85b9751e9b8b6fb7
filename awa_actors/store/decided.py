"""What the expressions of a callback made of a payload, as users see it. Free of any driver."""

from __future__ import annotations

from typing import Any

import attrs

from awa_actors.core.callbacks import Complete, Fail, Ignore
from awa_actors.jobs import JobRow
from awa_actors.store.resolve import Resolved


@attrs.frozen
class ExternalOutcome:
    """What `resolve_external` made of a payload.

    Args:
        outcome: `completed`, `failed` or `ignored` (the callback stays open).
        job: the row as it landed, or as it is.
        payload: the result, transformed.
        reason: why it failed or was ignored.
    """

    outcome: str
    job: JobRow
    payload: Any = None
    reason: str | None = None


def outcome_of(resolved: Resolved) -> ExternalOutcome:
    """Read what came of a resolution that expressions decided."""
    match resolved.decision:
        case Complete():
            return ExternalOutcome("completed", resolved.job, payload=resolved.job.result)
        case Fail(error=error):
            return ExternalOutcome("failed", resolved.job, reason=error)
        case Ignore(reason=reason):
            return ExternalOutcome("ignored", resolved.job, reason=reason)
    raise AssertionError("nothing was decided")
