"""Batch operations: what operators change about many waiting jobs, done in bounded steps that anybody may repeat."""

from __future__ import annotations

import datetime as dt
from typing import Any

import attrs
import orjson

from awa_actors.jobs import JobState
from awa_actors.store.pool import Session

_COLUMNS = """id, op_kind, filter::pg_catalog.text AS filter, spec::pg_catalog.text AS spec, state, submitted_by,
    submitted_at, started_at, finalized_at, total_matched, total_is_exact, processed, skipped, errored,
    refused::pg_catalog.text AS refused, last_error, updated_at,
    CASE WHEN state = 'completed' OR upto_id <= from_id THEN 1
         ELSE least(1, (cursor - from_id)::pg_catalog.float8 / (upto_id - from_id)) END AS share"""
PAGE = "SELECT ids, reached FROM awa.waiting_page($1::pg_catalog.text::pg_catalog.jsonb, $2, $3::smallint, $4, $5, $6)"
BOUNDS = "SELECT awa.lowest_job() - 1 AS from_id, last_value AS upto_id FROM awa.job_id_seq"
# Those of long ago go when a new one comes: the table needs no lane of its own.
SUBMIT = f"""
WITH gone AS (
    DELETE FROM awa.batch_operations o WHERE o.finalized_at < clock_timestamp() - make_interval(secs => $9)
)
INSERT INTO awa.batch_operations
    (op_kind, filter, spec, submitted_by, from_id, cursor, upto_id, total_matched, total_is_exact)
VALUES ($1, $2::pg_catalog.text::pg_catalog.jsonb, $3::pg_catalog.text::pg_catalog.jsonb, $4, $5, $5, $6, $7, $8)
RETURNING {_COLUMNS}
"""
LIST = f"""
SELECT {_COLUMNS} FROM awa.batch_operations
WHERE ($1::pg_catalog.text IS NULL OR state = $1) AND ($2::bigint IS NULL OR id < $2) ORDER BY id DESC LIMIT $3
"""
SHOW = f"SELECT {_COLUMNS} FROM awa.batch_operations WHERE id = $1"
# A step holds the row until it has committed: once this has its answer, nothing more is changed.
CANCEL = f"""
UPDATE awa.batch_operations SET state = 'cancelled', finalized_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE id = $1 AND state IN ('pending', 'running') RETURNING {_COLUMNS}
"""
STEP = "SELECT op, changed, more FROM awa.batch_step($1)"

RETENTION = 30 * 86_400.0
"""Seconds that ended operations are kept."""
PREVIEW_PAGE = 5_000
"""Rows passed over in one statement of a preview."""
PREVIEW_PAGES = 40
"""Statements after which a preview stops counting and says "at least"."""
SAMPLE = 10
"""Ids that a preview names."""


@attrs.frozen
class JobFilter:
    """Which waiting jobs an operation is about; what is None does not matter.

    Args:
        kind, queue, tag: only jobs with it.
        state: `available`, `scheduled` or `retryable`; None for all that wait.
        since, until: inserted then or later; before then.
        ids: only these.
    """

    kind: str | None = None
    queue: str | None = None
    tag: str | None = None
    state: JobState | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    ids: tuple[int, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it lets everything through."""
        return all(value is None for value in self.stored.values())

    @property
    def stored(self) -> dict[str, Any]:
        """As JSON, in the form that `awa.waiting_page` reads; what is None is null."""
        return {
            "kind": self.kind,
            "queue": self.queue,
            "tag": self.tag,
            "state": None if self.state is None else self.state.value,
            "since": None if self.since is None else self.since.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "ids": None if self.ids is None else list(self.ids),
        }


@attrs.frozen
class Change:
    """What an operation makes of each job; None leaves it as it is."""

    queue: str | None = None
    priority: int | None = None

    @property
    def op_kind(self) -> str:
        """Name of the operation."""
        return "set_priority" if self.queue is None else "move_queue"


@attrs.frozen
class Preview:
    """What an operation would touch now.

    Args:
        matched: jobs.
        is_exact: False when counting stopped early: then there are at least so many.
        sample: ids of the first of them.
    """

    matched: int
    is_exact: bool
    sample: tuple[int, ...]


@attrs.frozen
class BatchOperation:
    """A stored operation and how far it has come.

    Args:
        op_kind: `set_priority` or `move_queue`.
        filter, spec: what was asked for.
        state: `pending`, `running`, `completed`, `cancelled` or `failed`.
        total_matched: jobs that matched when it was submitted, at least; exactly so many when `total_is_exact`.
        processed: jobs that were changed.
        skipped: jobs that no longer waited when their turn came.
        errored: jobs that could not be changed and stay as they were.
        refused: why, for about the first hundred, by job id.
        last_error: the latest of these, or why the whole operation failed.
        share: of the ids it has to look at, those that it has, 0 to 1.
    """

    id: int
    op_kind: str
    filter: dict[str, Any]
    spec: dict[str, Any]
    state: str
    submitted_by: str | None
    submitted_at: dt.datetime
    started_at: dt.datetime | None
    finalized_at: dt.datetime | None
    total_matched: int | None
    total_is_exact: bool
    processed: int
    skipped: int
    errored: int
    refused: dict[int, str]
    last_error: str | None
    updated_at: dt.datetime
    share: float

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will be changed."""
        return self.finalized_at is not None


@attrs.frozen
class Step:
    """What one step did; `operation` None: none was open, or somebody else is at it."""

    operation: int | None
    changed: int
    more: bool


def _text(values: dict[str, Any]) -> str:
    return orjson.dumps({name: value for name, value in values.items() if value is not None}).decode()


def _operation(row: Any) -> BatchOperation:
    values = dict(row)
    for name in ("filter", "spec", "refused"):
        values[name] = orjson.loads(values[name])
    values["refused"] = {one["job_id"]: one["reason"] for one in values["refused"]}
    return BatchOperation(**values)


async def preview(session: Session, wanted: JobFilter, change: Change) -> Preview:
    """Count the jobs that an operation would change now, in bounded statements, and as far as that is quick."""
    bounds = await session.fetchrow(BOUNDS)
    cursor, upto = bounds["from_id"], bounds["upto_id"]
    matched, sample = 0, list[int]()
    for _ in range(PREVIEW_PAGES):
        if cursor >= upto:
            break
        row = await session.fetchrow(
            PAGE, _text(wanted.stored), change.queue, change.priority, cursor, upto, PREVIEW_PAGE
        )
        cursor, ids = row["reached"], row["ids"] or []
        matched += len(ids)
        sample.extend(ids[: SAMPLE - len(sample)])
    return Preview(matched, cursor >= upto, tuple(sample))


async def submit(session: Session, wanted: JobFilter, change: Change, by: str | None, seen: Preview) -> BatchOperation:
    """Store an operation; the steps of maintenance do it. Jobs that are inserted from now on are left."""
    bounds = await session.fetchrow(BOUNDS)
    row = await session.fetchrow(
        SUBMIT, change.op_kind, _text(wanted.stored), _text(attrs.asdict(change)), by, bounds["from_id"],
        bounds["upto_id"], seen.matched, seen.is_exact, RETENTION,
    )  # fmt: skip
    return _operation(row)


async def operations(session: Session, state: str | None, before: int | None, limit: int) -> list[BatchOperation]:
    """Newest first."""
    return [_operation(row) for row in await session.fetch(LIST, state, before, limit)]


async def operation(session: Session, op: int) -> BatchOperation | None:
    """One operation; None when there is none (any more)."""
    row = await session.fetchrow(SHOW, op)
    return None if row is None else _operation(row)


async def cancel(session: Session, op: int) -> BatchOperation | None:
    """End an operation after the step that is under way; None when it has ended already or there is none."""
    row = await session.fetchrow(CANCEL, op)
    return None if row is None else _operation(row)


async def step(session: Session, rows: int) -> Step:
    """Do one step of the oldest open operation.

    Args:
        session: outside a transaction.
        rows: most jobs it changes, and most rows of each place that it passes over.

    Shape: waiting jobs of one page -> the same jobs with another queue or priority, at their old place and age; the
        cursor of the operation moves in the same transaction.
    """
    row = await session.fetchrow(STEP, rows)
    return Step(row["op"], row["changed"], row["more"])
