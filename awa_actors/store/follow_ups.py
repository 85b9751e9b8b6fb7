"""Follow-up jobs inside somebody's transaction, and the record of those that failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from awa_actors.store.insert import INSERT_JOBS, NewJob, parameters
from awa_actors.store.pool import Session

FAILURES_KEY = "awa:follow_up_failures"
DEPTH_KEY = "awa:follow_up_depth"

RECORD_FAILURE = """
INSERT INTO awa.follow_up_failures (job_id, kind, outcome, spec, error) VALUES ($1, $2, $3, $4, $5)
"""
LIST_FAILURES = """
SELECT id, job_id, kind, outcome, spec, error, failed_at FROM awa.follow_up_failures ORDER BY id DESC LIMIT $1
"""


class Failure(Protocol):
    """What is known of a failed follow-up."""

    @property
    def spec(self) -> str: ...  # noqa: D102
    @property
    def error(self) -> str: ...  # noqa: D102


async def insert(session: Session, jobs: Sequence[NewJob]) -> None:
    """Insert follow-up jobs by the ordinary bulk insert, in the transaction that is open on the session."""
    await session.fetchrow(INSERT_JOBS, *parameters(jobs))


async def record_failure(session: Session, job_id: int, kind: str, outcome: str, failure: Failure) -> None:
    """Record a follow-up that is missing although its outcome was committed, where operators see and replay it."""
    await session.execute(RECORD_FAILURE, job_id, kind, outcome, failure.spec, failure.error)


async def failures(session: Session, limit: int = 100) -> list[dict[str, Any]]:
    """The newest recorded failures."""
    return [dict(row) for row in await session.fetch(LIST_FAILURES, limit)]
