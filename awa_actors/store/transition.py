"""The move between storage planes: how it stands, its steps, and what the mover is told."""

from __future__ import annotations

from typing import Any

import orjson

from awa_actors.core.transition import Mover, Transition
from awa_actors.store.pool import Session

STEPS = ("enter_mixed_transition", "finalize", "abort")
"""Steps that wait for something; what they wait for is asked by name."""
STATUS = """
SELECT s.*, awa.storage_schema() AS schema,
       (SELECT jsonb_object_agg(b.state, b.jobs) FROM awa.canonical_backlog_by_state() b)::text AS backlog,
       (SELECT jsonb_object_agg(q.name, q.rows) FROM awa.queue_plane_rows() q
        WHERE s.state <> 'active')::text AS queue_rows,
       (SELECT jsonb_object_agg(r.capability, r.processes) FROM (
            SELECT capability, count(*) AS processes FROM awa.storage_runtimes() GROUP BY capability) r
       )::text AS capabilities,
       (SELECT jsonb_object_agg(step, ARRAY(SELECT awa.storage_blockers(step))) FROM unnest($1::text[]) step
       )::text AS blockers
FROM awa.storage_status() s
"""
PLANES = """
SELECT (SELECT jsonb_object_agg(b.state, b.jobs) FROM awa.canonical_backlog_by_state() b)::text AS canonical,
       (SELECT jsonb_object_agg(q.name, q.rows) FROM awa.queue_plane_rows() q)::text AS queue
"""
PREPARE = "SELECT awa.storage_prepare($1, $2::text::jsonb)"
PREPARE_SCHEMA = "SELECT awa.storage_prepare_schema($1)"
ENTER = "SELECT awa.storage_enter_mixed_transition()"
FINALIZE = "SELECT awa.storage_finalize()"
ABORT = "SELECT awa.storage_abort()"
PAUSE_MOVER = "SELECT awa.storage_pause_mover($1)"
THROTTLE_MOVER = "SELECT awa.storage_throttle_mover($1)"


async def status(session: Session) -> Transition:
    """How things stand. Locks nothing, so it may be out of date when it arrives; the gates ask again."""
    row = await session.fetchrow(STATUS, list(STEPS))
    details = _json(row["details"])
    return Transition(
        state=row["state"],
        current_engine=row["current_engine"],
        active_engine=row["active_engine"],
        prepared_engine=row["prepared_engine"],
        epoch=row["transition_epoch"],
        schema=row["schema"],
        entered_at=row["entered_at"],
        finalized_at=row["finalized_at"],
        mover=Mover(bool(details.get("mover_paused")), details.get("mover_rows_per_second")),
        backlog=_json(row["backlog"]),
        queue_rows=_json(row["queue_rows"]),
        capabilities=_json(row["capabilities"]),
        blockers={step: tuple(reasons) for step, reasons in _json(row["blockers"]).items()},
    )


def _json(text: str | None) -> dict[str, Any]:
    return orjson.loads(text) if text else {}


async def planes(session: Session) -> tuple[dict[str, int], dict[str, int]]:
    """Count what is in the two planes: live canonical jobs by state, rows of the queue plane by table."""
    row = await session.fetchrow(PLANES)
    return _json(row["canonical"]), _json(row["queue"])


async def prepare(session: Session, engine: str, details: dict[str, Any]) -> None:
    """Name the engine to move to; the same again changes nothing."""
    await session.execute(PREPARE, engine, orjson.dumps(details).decode())


async def prepare_schema(session: Session, schema: str) -> bool:
    """Give the queue plane this schema; False when it has it."""
    return bool(await session.fetchval(PREPARE_SCHEMA, schema))


async def enter_mixed_transition(session: Session) -> None:
    """Send new jobs to the queue plane from now on."""
    await session.execute(ENTER)


async def finalize(session: Session) -> None:
    """Give up the canonical plane, which is empty."""
    await session.execute(FINALIZE)


async def abort(session: Session) -> None:
    """Go back to canonical."""
    await session.execute(ABORT)


async def pause_mover(session: Session, paused: bool) -> None:
    """Let the mover stand still, or go on."""
    await session.execute(PAUSE_MOVER, paused)


async def throttle_mover(session: Session, rows_per_second: float | None) -> None:
    """Bound how many rows the mover takes per second; None takes the bound away."""
    await session.execute(THROTTLE_MOVER, rows_per_second)
