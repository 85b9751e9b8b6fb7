"""Runtime overrides of a queue: what running workers follow instead of their own settings."""

from __future__ import annotations

import datetime as dt

import attrs

from awa_actors.store.pool import Session

# The whole row at once: what is not said is not overridden.
SET = """
INSERT INTO awa.queues (queue, override_poll_interval_ms, override_claim_batch, override_rate_limit,
    override_deadline_ms, overrides_updated_at) VALUES ($1, $2, $3, $4, $5, clock_timestamp())
ON CONFLICT (queue) DO UPDATE SET override_poll_interval_ms = excluded.override_poll_interval_ms,
    override_claim_batch = excluded.override_claim_batch, override_rate_limit = excluded.override_rate_limit,
    override_deadline_ms = excluded.override_deadline_ms, overrides_updated_at = excluded.overrides_updated_at
"""
CLEAR = """
UPDATE awa.queues SET override_poll_interval_ms = NULL, override_claim_batch = NULL, override_rate_limit = NULL,
    override_deadline_ms = NULL, overrides_updated_at = clock_timestamp()
WHERE queue = $1 AND num_nonnulls(override_poll_interval_ms, override_claim_batch, override_rate_limit,
    override_deadline_ms) > 0
RETURNING queue
"""
SHOW = """
SELECT queue, override_poll_interval_ms / 1000.0::float8 AS poll_interval, override_claim_batch, override_rate_limit,
       override_deadline_ms / 1000.0::float8 AS deadline, overrides_updated_at
FROM awa.queues WHERE queue = ANY ($1)
"""


@attrs.frozen
class Overrides:
    """What is overridden; None leaves it to each worker. Intervals in seconds, the rate in starts per second."""

    poll_interval: float | None = None
    claim_batch: int | None = None
    rate_limit: float | None = None
    deadline: float | None = None
    updated_at: dt.datetime | None = attrs.field(default=None, eq=False)


NONE = Overrides()


async def set_overrides(session: Session, queue: str, wanted: Overrides) -> None:
    """Replace all overrides of a queue."""
    await session.execute(
        SET, queue, _milliseconds(wanted.poll_interval), wanted.claim_batch, wanted.rate_limit,
        _milliseconds(wanted.deadline),
    )  # fmt: skip


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))


async def clear_overrides(session: Session, queue: str) -> bool:
    """Take all overrides back; False when there were none."""
    return bool(await session.fetch(CLEAR, queue))


async def overrides_of(session: Session, queues: list[str]) -> dict[str, Overrides]:
    """What is overridden now, by queue; queues without settings are missing."""
    return {row["queue"]: Overrides(*row[1:]) for row in await session.fetch(SHOW, queues)}
