"""Enqueue: turn args and options into the parameters of one statement. Pure, so that bridges share it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from awa_actors import codec
from awa_actors.core import unique
from awa_actors.core.backoff import clamp_delay
from awa_actors.core.json_text import JSON_LIMIT, json_text
from awa_actors.core.validation import (
    aware_datetime,
    check_max_attempts,
    check_metadata,
    check_ordering_key,
    check_priority,
    check_queue,
    check_tags,
)
from awa_actors.errors import ValidationError
from awa_actors.jobs import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    InsertedJob,
    InsertOpts,
    JobState,
    OnConflict,
    UniqueOpts,
)

INSERT_JOBS = """
SELECT ids, inserted FROM awa.insert_jobs($1::text[], $2::text[], $3::text[], $4::smallint[], $5::smallint[],
$6::text[])
"""

NO_OPTIONS = InsertOpts()


@attrs.frozen
class NewJob:
    """One admitted job: everything checked, everything encoded.

    `options` is the JSON text of what few jobs have, or None.
    """

    kind: str
    queue: str
    args: str
    priority: int
    max_attempts: int
    options: str | None


def admit(
    args: Any,
    opts: InsertOpts | None = None,
    *,
    limit: int = JSON_LIMIT,
    reserved: dict[str, Any] | None = None,
    on_conflict: OnConflict = OnConflict.RAISE,
) -> NewJob:
    """Check and encode one job.

    Args:
        args: an instance of an args class.
        opts: how it differs from what the class declares.
        limit: most bytes of args.
        reserved: metadata of the runtime's own (keys that users may not set).
        on_conflict: the policy where the options name none.

    Raises:
        ValidationError: a value cannot be stored; the path names it.
        UsageError: `args` is not an instance of an args class.
    """
    declared = codec.args_type(type(args))
    text = codec.encode(args, limit)
    if (opts is None or opts == NO_OPTIONS) and reserved is None:
        return NewJob(declared.kind, declared.queue, text, DEFAULT_PRIORITY, DEFAULT_MAX_ATTEMPTS, None)
    opts = opts or NO_OPTIONS
    queue = declared.queue if opts.queue is None else check_queue(opts.queue)
    options: dict[str, Any] = {}
    if opts.run_at is not None:
        options.update(_when(opts.run_at))
    if opts.deadline is not None:
        options["deadline_ms"] = _deadline_ms(opts.deadline)
    metadata = {} if opts.metadata is None else check_metadata(opts.metadata)
    if metadata or reserved:
        options["metadata"] = {**metadata, **(reserved or {})}
    if opts.tags:
        options["tags"] = check_tags(opts.tags)
    if opts.ordering_key is not None:
        options["ordering_key"] = check_ordering_key(opts.ordering_key).hex()
    if opts.unique is not None:
        options.update(_unique(opts.unique, declared.kind, queue, args, opts.run_at is not None, on_conflict))
    return NewJob(
        declared.kind,
        queue,
        text,
        DEFAULT_PRIORITY if opts.priority is None else check_priority(opts.priority),
        DEFAULT_MAX_ATTEMPTS if opts.max_attempts is None else check_max_attempts(opts.max_attempts),
        json_text(options, path="$", limit=limit) if options else None,
    )


def _when(run_at: dt.datetime | dt.timedelta) -> dict[str, Any]:
    if isinstance(run_at, dt.timedelta):
        return {"delay": clamp_delay(run_at, path="$.run_at")}
    return {"run_at": aware_datetime(run_at).isoformat()}


def _deadline_ms(deadline: float | dt.timedelta) -> int:
    milliseconds = int(clamp_delay(deadline, path="$.deadline") * 1000)
    if milliseconds < 1:
        raise ValidationError("must be at least a millisecond", "$.deadline")
    return milliseconds


def _unique(
    opts: UniqueOpts, kind: str, queue: str, args: Any, deferred: bool, on_conflict: OnConflict
) -> dict[str, Any]:
    if opts.key is not None:
        key = opts.key.encode() if isinstance(opts.key, str) else bytes(opts.key)
        if not 1 <= len(key) <= 200:
            raise ValidationError("must have 1 to 200 bytes", "$.unique.key")
    else:
        key = unique.unique_key(
            kind,
            queue=queue if opts.by_queue else None,
            args=codec.to_json_value(args) if opts.by_args else None,
            period=opts.by_period,
        )
    mask = unique.DEFAULT_MASK if opts.states is None else unique.state_mask(opts.states)
    first = JobState.SCHEDULED if deferred else JobState.AVAILABLE
    if not mask >> first.bit & 1:
        raise ValidationError(
            f"must include {first.value!r}, the state this job is inserted in: it would hold no key", "$.unique.states"
        )
    return {
        "unique_key": key.hex(),
        "unique_states": unique.mask_bits(mask),
        "on_conflict": (opts.on_conflict or on_conflict).value,
    }


def parameters(jobs: Sequence[NewJob]) -> tuple[list[Any] | None, ...]:
    """Give the arguments of :data:`INSERT_JOBS`. What all jobs share is sent once.

    Shape: six arrays; args one per job, the others one per job or a single value for all; options None when no job has
    any.
    """
    return (
        [job.args for job in jobs],
        _shared([job.kind for job in jobs]),
        _shared([job.queue for job in jobs]),
        _shared([job.priority for job in jobs]),
        _shared([job.max_attempts for job in jobs]),
        [job.options or "{}" for job in jobs] if any(job.options for job in jobs) else None,
    )


def _shared(values: list[Any]) -> list[Any]:
    return values[:1] if values.count(values[0]) == len(values) else values


def inserted(jobs: Iterable[NewJob], ids: Sequence[int], flags: Sequence[bool] | None) -> list[InsertedJob]:
    """Read the answer of :data:`INSERT_JOBS`, in order of the jobs."""
    if flags is None:
        return [InsertedJob(job_id, job.kind, job.queue) for job, job_id in zip(jobs, ids, strict=True)]
    return [InsertedJob(job_id, job.kind, job.queue, flag) for job, job_id, flag in zip(jobs, ids, flags, strict=True)]
