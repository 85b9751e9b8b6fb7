"""Cron: declared schedules, the mark up to which their fires are decided, and what operators do to them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import attrs
import blake3
import orjson

from awa_actors.core.cron import CronExpression, decided_until
from awa_actors.core.json_text import canonical_json
from awa_actors.core.trace_context import TRACEPARENT_KEY
from awa_actors.errors import NotFound, ValidationError
from awa_actors.jobs import InsertedJob
from awa_actors.registry import CronSpec
from awa_actors.store.ambient_trace import ambient_trace
from awa_actors.store.pool import Session

STALE_AFTER = 300.0
"""Seconds after which a schedule that no leading process declares any more is shown as stale."""

DECLARE = "SELECT awa.cron_declare($1, $2, $3::text::jsonb, $4)"
READ = """
SELECT name, application, digest, expression, timezone, missed_fire, jitter, created_at, mark,
       paused_at IS NOT NULL AS paused, last_error, clock_timestamp() AS read_at
FROM awa.cron_schedules WHERE name = ANY ($1) ORDER BY name
"""
FIRE = "SELECT outcome, enqueued, skipped, taken, refused FROM awa.cron_fire($1, $2, $3, $4, $5, $6)"
LIST = """
SELECT name, application, expression, timezone, missed_fire, overlap, jitter, kind, queue, created_at, updated_at,
       declared_at, paused_at, paused_by, mark, last_fire, last_job_id, enqueued, skipped, taken, refused, last_error,
       declared_at < clock_timestamp() - make_interval(secs => $1) AS stale
FROM awa.cron_schedules ORDER BY name
"""
PAUSE = """
UPDATE awa.cron_schedules SET paused_at = coalesce(paused_at, clock_timestamp()), paused_by = $2 WHERE name = $1
RETURNING true
"""
RESUME = """
WITH before AS (SELECT s.name, s.paused_at IS NOT NULL AS paused FROM awa.cron_schedules s WHERE s.name = $1 FOR UPDATE)
UPDATE awa.cron_schedules s SET paused_at = NULL, paused_by = NULL FROM before b WHERE s.name = b.name
RETURNING b.paused
"""
REMOVE = "DELETE FROM awa.cron_schedules WHERE name = $1 RETURNING true"
TRIGGER = "SELECT id, kind, queue, coalesce(inserted, true) AS inserted FROM awa.cron_trigger($1, $2::text::jsonb)"


@attrs.frozen
class Schedule:
    """A stored schedule, as its evaluation needs it. `read_at` is the database's time."""

    name: str
    application: str
    digest: str
    expression: str
    timezone: str
    missed_fire: str
    jitter: float
    created_at: dt.datetime
    mark: dt.datetime | None
    paused: bool
    last_error: str | None
    read_at: dt.datetime


@attrs.frozen
class Fired:
    """What became of the fires of one schedule in one pass.

    Args:
        outcome: `fired`, `lost` (another evaluator was first, or it was paused or changed) or `busy` (locked: later).
        enqueued: jobs that were inserted.
        skipped: fires left out because the job of the last one is alive.
        taken: fires left out because another job holds the unique key.
        refused: fires whose job the database cannot store.
    """

    outcome: str
    enqueued: int
    skipped: int
    taken: int
    refused: int


@attrs.frozen
class CronSchedule:
    """A schedule, for people.

    Args:
        mark: nominal time up to which fires are decided; None before the first.
        last_fire: nominal time of the last fire that became a job, which is `last_job_id`.
        next_fire: nominal time of the next one; in the past when it is due, None while paused or when `last_error` says
            why there is none.
        enqueued, skipped, taken, refused: fires since it was first declared, by what became of them.
        last_error: why the last fire could not be enqueued, or what is wrong with the stored expression.
        stale: no leading process has declared it for STALE_AFTER seconds.
    """

    name: str
    application: str
    expression: str
    timezone: str
    missed_fire: str
    overlap: str
    jitter: float
    kind: str
    queue: str
    created_at: dt.datetime
    updated_at: dt.datetime
    declared_at: dt.datetime
    paused_at: dt.datetime | None
    paused_by: str | None
    mark: dt.datetime | None
    last_fire: dt.datetime | None
    last_job_id: int | None
    enqueued: int
    skipped: int
    taken: int
    refused: int
    last_error: str | None
    stale: bool
    next_fire: dt.datetime | None


def digest(application: str, spec: CronSpec) -> str:
    """Tell two definitions apart, the same way in every process."""
    return blake3.blake3(canonical_json([application, _definition(spec)])).hexdigest()


def _definition(spec: CronSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "expression": spec.expression.text,
        "timezone": spec.expression.timezone,
        "missed_fire": spec.missed_fire.value,
        "overlap": spec.overlap.value,
        "jitter": spec.jitter,
        "kind": spec.job.kind,
        "queue": spec.job.queue,
        "args": orjson.loads(spec.job.args),
        "priority": spec.job.priority,
        "max_attempts": spec.job.max_attempts,
        "options": orjson.loads(spec.job.options or "{}"),
    }


async def declare(session: Session, application: str, spec: CronSpec, *, fresh: bool) -> None:
    """Store a definition, if the name is free or this application's.

    Args:
        session: outside a transaction.
        application: owner of the definition.
        spec: the definition.
        fresh: whether it replaces another one of the same application; otherwise that one stays, and nothing happens.
    """
    definition = orjson.dumps(_definition(spec)).decode()
    await session.execute(DECLARE, application, digest(application, spec), definition, fresh)


async def read(session: Session, names: Sequence[str]) -> list[Schedule]:
    """Read the stored schedules of these names."""
    return [Schedule(*row) for row in await session.fetch(READ, list(names))]


async def fire(
    session: Session, schedule: Schedule, mark: dt.datetime, fires: Sequence[dt.datetime], delays: Sequence[float]
) -> Fired:
    """Enqueue fires and move the mark, if it still is where it was read.

    Shape: the schedule's row, guarded by (digest, mark, not paused) -> one job per fire, all or nothing.

    Args:
        session: outside a transaction.
        schedule: as it was read.
        mark: where the mark stands afterwards.
        fires: nominal times, oldest first.
        delays: seconds of jitter, one per fire.
    """
    row = await session.fetchrow(FIRE, schedule.name, schedule.digest, schedule.mark, mark, list(fires), list(delays))
    return Fired(*row)


async def list_schedules(session: Session) -> list[CronSchedule]:
    """Every stored schedule, by name."""
    found = []
    for row in await session.fetch(LIST, STALE_AFTER):
        values = dict(row)
        try:
            times = CronExpression.parse(values["expression"], values["timezone"])
            upcoming = times.next_after(decided_until(values["mark"], values["created_at"]))
        except ValidationError as error:
            upcoming, values["last_error"] = None, str(error)
        found.append(CronSchedule(**values, next_fire=None if values["paused_at"] else upcoming))
    return found


async def pause(session: Session, name: str, by: str | None) -> None:
    """Stop the fires of a schedule; the mark stays.

    Raises:
        NotFound: there is no such schedule.
    """
    _known(name, await session.fetchval(PAUSE, name, by))


async def resume(session: Session, name: str) -> bool:
    """Undo a pause: the missed-fire policy decides about what came due meanwhile. False when it was not paused.

    Raises:
        NotFound: there is no such schedule.
    """
    return bool(_known(name, await session.fetchval(RESUME, name)))


async def trigger(session: Session, name: str) -> InsertedJob:
    """Enqueue the job of a schedule now, paused or not; its mark stays. It belongs to the trace that is active here.

    Raises:
        NotFound: there is no such schedule.
        UniqueConflict: another job holds its unique key.
    """
    trace = ambient_trace()
    noted = {} if trace is None else {TRACEPARENT_KEY: trace}
    row = await session.fetchrow(TRIGGER, name, orjson.dumps(noted).decode())
    _known(name, row["id"])
    return InsertedJob(row["id"], row["kind"], row["queue"], row["inserted"])


async def remove(session: Session, name: str) -> None:
    """Forget a schedule and its mark. A leading process that still declares it brings it back.

    Raises:
        NotFound: there is no such schedule.
    """
    _known(name, await session.fetchval(REMOVE, name))


def _known(name: str, answer: object) -> object:
    if answer is None:
        raise NotFound(f"there is no schedule {name!r}")
    return answer
