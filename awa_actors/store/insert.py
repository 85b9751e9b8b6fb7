"""Enqueue: turn args and options into the parameters of one statement. Pure: bridges share it with the client."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from awa_actors import codec
from awa_actors.core import unique
from awa_actors.core.backoff import clamp_delay
from awa_actors.core.json_text import JSON_LIMIT, json_text
from awa_actors.core.text import shown
from awa_actors.core.validation import (
    TRACEPARENT_KEY,
    aware_datetime,
    check_kind,
    check_max_attempts,
    check_metadata,
    check_ordering_key,
    check_priority,
    check_queue,
    check_tags,
    check_unique_key,
)
from awa_actors.errors import UniqueConflict, UsageError, ValidationError
from awa_actors.jobs import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    InsertedJob,
    InsertOpts,
    JobState,
    OnConflict,
    UniqueOpts,
)
from awa_actors.store.ambient_trace import ambient_trace

# Arrays that are long come as text. `text` is a name like any other and would be looked up on the caller's
# search_path; `smallint` is grammar.
_PARAMETERS = """$1::pg_catalog.text::pg_catalog.text[], $2::pg_catalog.text[], $3::pg_catalog.text[], $4::smallint[],
    $5::smallint[], $6::pg_catalog.text::pg_catalog.text[]"""
INSERT_ONE = """
SELECT id, inserted FROM awa.insert_one($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::smallint,
    $5::smallint, $6::pg_catalog.text)
"""
INSERT_JOBS = f"""
SELECT ids, inserted FROM awa.insert_jobs({_PARAMETERS})
"""
INSERT_JOBS_OR_CONFLICT = f"""
SELECT ids, inserted, conflict, holder FROM awa.insert_jobs_or_conflict({_PARAMETERS})
"""
_LISTED = {
    sql: sql.replace("::pg_catalog.text::pg_catalog.text[]", "::pg_catalog.text[]")
    for sql in (INSERT_JOBS, INSERT_JOBS_OR_CONFLICT)
}
"""The same with every array as such."""

CHUNK_JOBS = 5_000
"""Jobs in one statement of a bulk insert that may take several: no statement runs for long."""
CHUNK_CHARACTERS = 1024 * 1024
"""Characters of args in it, unless one job has more: what a server holds of a statement without a file (work_mem)."""
LONG_ARGS = 100
"""Characters of args per job from which a driver writes an array for less than its text costs both sides."""
STATEMENT_CHARACTERS = 256 * 1024 * 1024
"""Characters of JSON in a statement that cannot be split; Postgres takes less than a gigabyte in one value."""

NO_OPTIONS = InsertOpts()


class NewJob(NamedTuple):
    """One admitted job: everything checked, everything encoded. A tuple, since bulk inserts and follow-ups make many.

    `options` is the JSON text of what few jobs have, or None; `on_conflict` the policy of a unique job, else None.
    """

    kind: str
    queue: str
    args: str
    priority: int
    max_attempts: int
    options: str | None
    on_conflict: OnConflict | None = None


new_job = tuple.__new__
"""Makes a :class:`NewJob` of all its fields, without a call of Python's for each of many."""
USUAL = (DEFAULT_PRIORITY, DEFAULT_MAX_ATTEMPTS)


def admit(
    args: Any,
    opts: InsertOpts | None = None,
    *,
    limit: int = JSON_LIMIT,
    reserved: dict[str, Any] | None = None,
    on_conflict: OnConflict = OnConflict.RAISE,
    traced: bool = True,
) -> NewJob:
    """Check and encode one job.

    Args:
        args: an instance of an args class.
        opts: how it differs from what the class declares.
        limit: most bytes of args.
        reserved: metadata of the runtime's own (keys that users may not set).
        on_conflict: the policy where the options name none.
        traced: whether it belongs to the trace that is active here; not so for what is only declared here.

    Raises:
        ValidationError: a value cannot be stored; the path names it.
        UsageError: `args` is not an instance of an args class.
    """
    return _admit(args, opts, limit, reserved, on_conflict, ambient_trace() if traced else None)


def _admit(
    args: Any,
    opts: InsertOpts | None,
    limit: int,
    reserved: dict[str, Any] | None,
    on_conflict: OnConflict,
    trace: str | None,
) -> NewJob:
    declared = codec.args_type(type(args))
    text = codec.encode(args, limit)
    if (opts is None or opts == NO_OPTIONS) and reserved is None:
        # What a traced job carries beyond its args is known beforehand, too.
        options = None if trace is None else f'{{"metadata":{{"{TRACEPARENT_KEY}":"{trace}"}}}}'
        return new_job(NewJob, (declared.kind, declared.queue, text, *USUAL, options, None))
    values = functools.partial(codec.to_json_value, args)
    return _admitted(declared.kind, declared.queue, text, values, opts, limit, reserved, on_conflict, trace)


def admit_raw(
    kind: str,
    args: Any,
    opts: InsertOpts | None = None,
    *,
    limit: int = JSON_LIMIT,
    reserved: dict[str, Any] | None = None,
    on_conflict: OnConflict = OnConflict.RAISE,
) -> NewJob:
    """Check and encode one job of a kind that has no class in this process.

    Args:
        kind: of the job.
        args: plain JSON values.
        opts: its options; without a queue among them it goes to the default one.
        limit: most bytes of args.
        reserved: metadata of the runtime's own (keys that users may not set).
        on_conflict: the policy where the options name none.

    Raises:
        ValidationError: a value cannot be stored; the path names it.
    """
    text = json_text(args, limit=limit)
    return _admitted(check_kind(kind), DEFAULT_QUEUE, text, lambda: args, opts, limit, reserved, on_conflict)


def _admitted(
    kind: str,
    queue: str,
    text: str,
    values: Callable[[], Any],
    opts: InsertOpts | None,
    limit: int,
    reserved: dict[str, Any] | None,
    on_conflict: OnConflict,
    trace: str | None = None,
) -> NewJob:
    opts = NO_OPTIONS if opts is None else opts
    if not isinstance(opts, InsertOpts):
        raise UsageError(f"options are an awa.InsertOpts, not {shown(opts)}")
    queue = queue if opts.queue is None else check_queue(opts.queue)
    options: dict[str, Any] = {}
    if opts.run_at is not None:
        options.update(_when(opts.run_at))
    if opts.deadline is not None:
        options["deadline_ms"] = _deadline_ms(opts.deadline)
    metadata = {} if opts.metadata is None else check_metadata(opts.metadata)
    if trace is not None:
        metadata = {TRACEPARENT_KEY: trace, **metadata}  # a trace that the caller names wins
    if metadata or reserved:
        options["metadata"] = {**metadata, **(reserved or {})}
    if opts.tags:
        options["tags"] = check_tags(opts.tags)
    if opts.ordering_key is not None:
        options["ordering_key"] = check_ordering_key(opts.ordering_key).hex()
    policy = None
    if opts.unique is not None:
        if not isinstance(opts.unique, UniqueOpts):
            raise ValidationError(f"must be an awa.UniqueOpts, not {shown(opts.unique)}", "$.unique")
        policy = opts.unique.on_conflict or on_conflict
        options.update(_unique(opts.unique, kind, queue, values, opts.run_at is not None, policy))
    return NewJob(
        kind,
        queue,
        text,
        DEFAULT_PRIORITY if opts.priority is None else check_priority(opts.priority),
        DEFAULT_MAX_ATTEMPTS if opts.max_attempts is None else check_max_attempts(opts.max_attempts),
        json_text(options, path="$", limit=limit) if options else None,
        policy,
    )


def admit_many(jobs: Iterable[Any], opts: InsertOpts | None = None, *, limit: int = JSON_LIMIT) -> list[NewJob]:
    """Check and encode many jobs before anything is sent.

    Args:
        jobs: instances of args classes, not necessarily of one.
        opts: options of every one of them.
        limit: most bytes of the args of each.

    Raises:
        ValidationError: as :func:`admit`; the path begins with the index of the culprit, e.g. ``$[3].user_id``.
        UsageError: not an iterable, or one of its items is not an instance of an args class.
    """
    return list(admissions(jobs, opts, limit))


def admissions(jobs: Iterable[Any], opts: InsertOpts | None, limit: int) -> Iterator[NewJob]:
    """Check and encode jobs one by one, as :func:`admit_many` does it for all, which says what this raises."""
    trace = ambient_trace()
    for index, args in enumerate(all_of(jobs)):
        try:
            job = _admit(args, opts, limit, None, OnConflict.RAISE, trace)
        except ValidationError as error:
            raise ValidationError(error.reason, f"$[{index}]{(error.path or '$')[1:]}") from None
        except UsageError as error:
            raise UsageError(f"job {index}: {error}") from None
        yield job


def all_of(jobs: Iterable[Any]) -> Sequence[Any]:
    """Give the jobs that somebody passed as many.

    Raises:
        UsageError: it is one, or none.
    """
    if not isinstance(jobs, Iterable):
        raise UsageError(f"takes an iterable of job args, not {shown(jobs)}: one job goes through insert")
    return jobs if isinstance(jobs, list) else list(jobs)


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
    opts: UniqueOpts, kind: str, queue: str, values: Callable[[], Any], deferred: bool, policy: OnConflict
) -> dict[str, Any]:
    if not isinstance(policy, OnConflict):
        raise ValidationError(f"must be an awa.OnConflict, not {shown(policy)}", "$.unique.on_conflict")
    if opts.key is not None:
        key = check_unique_key(opts.key)
    else:
        key = unique.unique_key(
            kind,
            queue=queue if opts.by_queue else None,
            args=values() if opts.by_args else None,
            period=opts.by_period,
        )
    mask = unique.DEFAULT_MASK if opts.states is None else unique.state_mask(opts.states)
    first = JobState.SCHEDULED if deferred else JobState.AVAILABLE
    if not mask >> first.bit & 1:
        raise ValidationError(
            f"must include {first.value!r}, the state this job is inserted in: it would hold no key", "$.unique.states"
        )
    return {"unique_key": key.hex(), "unique_states": unique.mask_bits(mask), "on_conflict": policy.value}


def chunks(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """Split jobs into statements of one transaction.

    Unique jobs stay together, however many: keys are taken in one order within a statement, so that two bulk inserts
    with the same keys wait for each other; over several statements they would deadlock.
    """
    if any(job.on_conflict is not None for job in jobs):
        yield jobs
        return
    start = size = 0
    for end, job in enumerate(jobs):
        size += len(job.args)
        if end - start == CHUNK_JOBS or (size > CHUNK_CHARACTERS and end > start):
            yield jobs[start:end]
            start, size = end, len(job.args)
    if start < len(jobs):
        yield jobs[start:]


def statement(jobs: Sequence[NewJob]) -> str:
    """Choose between :data:`INSERT_ONE`, :data:`INSERT_JOBS` and :data:`INSERT_JOBS_OR_CONFLICT`.

    The last one reports a taken key instead of raising, so that the caller's transaction stays usable. It costs a
    subtransaction, and is therefore only for jobs that may conflict.
    """
    if _alone(jobs):
        return INSERT_ONE
    raises = any(job.on_conflict is OnConflict.RAISE for job in jobs)
    return INSERT_JOBS_OR_CONFLICT if raises else INSERT_JOBS


def call(jobs: Sequence[NewJob]) -> tuple[str, tuple[Any, ...]]:
    """Give the jobs' statement and its parameters for the driver of this runtime, which writes arrays in binary form.

    It asks of each element of a list whether it is a list itself: a text costs less where args are short. Where they
    are long, to quote them costs the client more than that, and to read them costs the server most.

    Raises:
        UsageError: too much for one statement.
    """
    sql = statement(jobs)
    if sql is INSERT_ONE or characters(jobs) < LONG_ARGS * len(jobs):
        return sql, parameters(jobs)
    return _LISTED[sql], parameters(jobs, list)


def characters(jobs: Sequence[NewJob]) -> int:
    """Give the characters of all args, without a call of Python's for each job."""
    return sum(map(len, [job.args for job in jobs]))


def _alone(jobs: Sequence[NewJob]) -> bool:
    return len(jobs) == 1 and jobs[0].on_conflict is not OnConflict.RAISE


def parameters(jobs: Sequence[NewJob], write: Callable[[Iterable[str]], Any] | None = None) -> tuple[Any, ...]:
    """Give the arguments of the jobs' statement. What all jobs share is sent once.

    Args:
        jobs: of one statement.
        write: what makes an array of the two that are long, for a statement that takes it; else they are texts.

    Shape: six values; for many jobs six arrays, args one per job, the others one per job or a single value for all.
    Options are None when no job has any.

    Raises:
        UsageError: too much for one statement.
    """
    size = characters(jobs)
    if size > STATEMENT_CHARACTERS:
        raise UsageError(
            f"{len(jobs):,} jobs with {size:,} characters of args are too much for one statement"
            f" (at most {STATEMENT_CHARACTERS:,}): insert them in several calls of one transaction"
        )
    if _alone(jobs):
        return jobs[0][:6]
    write = write or _array
    return (
        write([job.args for job in jobs]),
        _shared([job.kind for job in jobs]),
        _shared([job.queue for job in jobs]),
        _shared([job.priority for job in jobs]),
        _shared([job.max_attempts for job in jobs]),
        write([job.options or "{}" for job in jobs]) if any(job.options for job in jobs) else None,
    )


def _array(texts: Iterable[str]) -> str:
    """Write an array as text: the one form that no driver looks at, element by element, before it sends it."""
    quoted = ['"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts]
    return f"{{{','.join(quoted)}}}"


def _shared(values: list[Any]) -> list[Any]:
    return values[:1] if values.count(values[0]) == len(values) else values


def inserted(jobs: Sequence[NewJob], row: Iterable[Any]) -> list[InsertedJob]:
    """Read the answer of the jobs' statement, in their order.

    Raises:
        UniqueConflict: another job holds a key; nothing was inserted, and the transaction is as it was before.
    """
    ids, flags, *refusal = row
    if _alone(jobs):
        return [InsertedJob(ids, jobs[0].kind, jobs[0].queue, flags)]
    if ids is None:
        message, holder = refusal
        raise UniqueConflict(message, holder)
    if flags is None:
        return [InsertedJob(job_id, job.kind, job.queue) for job, job_id in zip(jobs, ids, strict=True)]
    return [InsertedJob(job_id, job.kind, job.queue, flag) for job, job_id, flag in zip(jobs, ids, flags, strict=True)]
