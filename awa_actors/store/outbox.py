"""The outbox of rescues, and the follow-ups that are declared in the database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import orjson

from awa_actors.core.follow_up_template import DeclaredFollowUp
from awa_actors.core.json_text import json_text
from awa_actors.registry import FollowUpSpec
from awa_actors.store.follow_up_plan import read_declared
from awa_actors.store.pool import Session

# Not an upsert of every start: a row that is there already is only read, so starts do not wait for each other.
DECLARE_OUTBOX = """
INSERT INTO awa.outbox_kinds (kind, spec, declared_by)
SELECT d.kind, d.spec, $3 FROM unnest($1::pg_catalog.text[], $2::pg_catalog.text[]) AS d (kind, spec)
WHERE NOT EXISTS (SELECT FROM awa.outbox_kinds k WHERE k.kind = d.kind AND k.spec = d.spec)
ON CONFLICT DO NOTHING
"""
RETIRE_OUTBOX = "DELETE FROM awa.outbox_kinds WHERE kind = $1 AND spec = $2 RETURNING true"
DROP_ROWS = "DELETE FROM awa.rescue_outbox WHERE kind = $1 AND spec = $2 RETURNING id"
WAITING = """
SELECT DISTINCT o.kind, o.spec FROM awa.rescue_outbox o
WHERE o.spec = ANY ($1) AND o.next_try <= clock_timestamp()
"""
# Tries are counted and committed before anything is evaluated. Fresh rows are taken together, those that were tried
# before alone: what took its neighbours down once is not given the chance again.
TAKE = """
WITH picked AS MATERIALIZED (
    SELECT o.id FROM awa.rescue_outbox o
    WHERE o.kind = $1 AND o.spec = $2 AND o.next_try <= clock_timestamp() AND (o.tries = 0) = $3
    ORDER BY o.id LIMIT $4 FOR UPDATE SKIP LOCKED
)
UPDATE awa.rescue_outbox o SET tries = o.tries + 1, next_try = clock_timestamp() + pg_catalog.make_interval(secs => $5)
FROM picked p WHERE o.id = p.id
RETURNING o.id, o.job::pg_catalog.text AS job, o.reason, o.tries, o.error
"""
# Whoever deletes the row inserts its job, in the same transaction: one enqueue per rescue and spec.
FINISH = "DELETE FROM awa.rescue_outbox WHERE id = ANY ($1) RETURNING id"
PUT_OFF = """
UPDATE awa.rescue_outbox SET error = $3, next_try = clock_timestamp() + pg_catalog.make_interval(secs => $4)
WHERE id = $1 AND tries = $2
"""
COUNT = """
SELECT kind, spec, count(*) AS rows, max(tries) AS most_tries,
       extract(epoch FROM clock_timestamp() - min(created_at))::float8 AS oldest,
       (array_agg(error ORDER BY id) FILTER (WHERE error IS NOT NULL))[1] AS error
FROM awa.rescue_outbox GROUP BY kind, spec ORDER BY kind, spec
"""
PUBLISH = """
INSERT INTO awa.follow_up_specs AS s (application, name, version, kind, outcome, definition)
VALUES ($1, $2, $3, $4, $5, $6::pg_catalog.text::pg_catalog.jsonb)
ON CONFLICT (application, name) DO UPDATE
SET version = excluded.version, kind = excluded.kind, outcome = excluded.outcome, definition = excluded.definition,
    declared_at = clock_timestamp()
WHERE s.version < excluded.version
"""
DECLARED = """
SELECT application, name, version, kind, outcome, definition::pg_catalog.text AS definition
FROM awa.follow_up_specs ORDER BY application, name
"""
WITHDRAW = "DELETE FROM awa.follow_up_specs WHERE application = $1 AND name = $2 RETURNING true"


@attrs.frozen
class OutboxRow:
    """One rescue that one spec has not followed yet; `tries` counts this one."""

    id: int
    job: dict[str, Any]
    reason: str
    tries: int
    error: str | None


@attrs.frozen
class OutboxStatus:
    """What waits in the outbox for one spec; `oldest` in seconds."""

    kind: str
    spec: str
    rows: int
    most_tries: int
    oldest: float
    error: str | None


async def declare_outbox(session: Session, specs: Sequence[FollowUpSpec], application: str) -> None:
    """Say that rescues of these kinds must not lose these follow-ups, whoever leads."""
    await session.execute(DECLARE_OUTBOX, [spec.kind for spec in specs], [spec.name for spec in specs], application)


async def retire_outbox(session: Session, kind: str, spec: str) -> int | None:
    """Take a declaration back, with what waits for it; how many rows went, None when it was not declared."""
    if not await session.fetchval(RETIRE_OUTBOX, kind, spec):
        return None
    return len(await session.fetch(DROP_ROWS, kind, spec))


async def waiting(session: Session, specs: Sequence[str]) -> set[tuple[str, str]]:
    """Which of these specs have rows that are due: (kind, spec)."""
    return {(row["kind"], row["spec"]) for row in await session.fetch(WAITING, specs)}


async def take(session: Session, kind: str, spec: str, *, fresh: bool, rows: int, lease: float) -> list[OutboxRow]:
    """Take rows to evaluate, skipping what others have; committed at once.

    Args:
        session: outside a transaction.
        kind: of the rescued jobs.
        spec: what is to follow them.
        fresh: rows that were never tried; False for those that were.
        rows: most of them.
        lease: seconds until somebody else may try them.
    """
    found = await session.fetch(TAKE, kind, spec, fresh, rows, lease)
    return [OutboxRow(**{**row, "job": orjson.loads(row["job"])}) for row in found]


async def finish(session: Session, ids: Iterable[int]) -> set[int]:
    """Delete rows in the open transaction; returns those that were there: their jobs are the caller's to insert."""
    return {row["id"] for row in await session.fetch(FINISH, list(ids))}


async def put_off(session: Session, row: OutboxRow, error: str, delay: float) -> None:
    """Note why a row failed, and try it again after `delay` seconds."""
    await session.execute(PUT_OFF, row.id, row.tries, error, delay)


async def status(session: Session) -> list[OutboxStatus]:
    """What waits, by spec."""
    return [OutboxStatus(**row) for row in await session.fetch(COUNT)]


async def publish(session: Session, declared: DeclaredFollowUp) -> None:
    """Store a declaration unless a version as high is there already."""
    await session.execute(
        PUBLISH, declared.application, declared.name, declared.version, declared.kind, declared.outcome,
        json_text(declared.definition()),
    )  # fmt: skip


async def declared(session: Session) -> list[DeclaredFollowUp]:
    """Every declaration, by application and name."""
    rows = await session.fetch(DECLARED)
    return [read_declared({**row, "definition": orjson.loads(row["definition"])}) for row in rows]


async def withdraw(session: Session, application: str, name: str) -> bool:
    """Delete a declaration; False when there is none."""
    return bool(await session.fetchval(WITHDRAW, application, name))
