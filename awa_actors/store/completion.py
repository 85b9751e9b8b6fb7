"""Completion in the handler's own transaction: one statement for every driver, so this brings no Trio along."""

from __future__ import annotations

from typing import Any

import orjson

from awa_actors.errors import UsageError
from awa_actors.jobs import Completion, FinalizationReceipt

COMPLETE_ATTEMPT = "SELECT awa.complete_attempt($1, $2, $3, $4::pg_catalog.text::pg_catalog.jsonb)"


def completion(job: Any) -> tuple[Any, ...]:
    """Give the arguments of :data:`COMPLETE_ATTEMPT`: whose attempt, and the metadata that its handler noted.

    Args:
        job: the :class:`awa_actors.Job` whose handler this is.

    Raises:
        UsageError: the handler is not registered as one that completes its jobs itself.
    """
    attempt = job._control  # only the attempt knows whose it is
    spec = job.client.registry.workers.get(job.kind)
    if spec is None or spec.completion is not Completion.CALLER_OWNED:
        raise UsageError(
            f"to complete {job.kind!r} jobs yourself, register with completion=awa.Completion.CALLER_OWNED"
        )
    metadata = attempt.notes().get("metadata")
    return (job.id, job.run_lease, attempt.instance, None if metadata is None else orjson.dumps(metadata).decode())


def receipt(job: Any) -> FinalizationReceipt:
    """What the handler returns."""
    return FinalizationReceipt(job.id, job.run_lease)
