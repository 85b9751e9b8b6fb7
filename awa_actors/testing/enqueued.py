"""What a test says about jobs that wait."""

from __future__ import annotations

from typing import Any

import attrs

from awa_actors import codec
from awa_actors.client import Client
from awa_actors.errors import UsageError
from awa_actors.jobs import JobRow

LISTED = 5
"""Jobs that a failure lists: enough to see what is wrong."""


async def assert_enqueued(client: Client, args_type: type[Any], /, **fields: Any) -> JobRow:
    """Fail unless a job of these args waits: available, scheduled or retryable.

    Args:
        client: whose database it is.
        args_type: class of the args.
        fields: what their fields must be; fields that are not named may be anything.

    Returns:
        The oldest such job, for a closer look (its queue, priority, run_at).

    Raises:
        AssertionError: there is none; the message lists what waits instead.
        UsageError: the class has no such field.
    """
    jobs, found = await _look(client, args_type, fields)
    if found is None:
        wanted = f" with {_described(fields)}" if fields else ""
        raise AssertionError(f"no {args_type.__name__} is enqueued{wanted}; {_listed(args_type, jobs)}")
    return found


async def refute_enqueued(client: Client, args_type: type[Any], /, **fields: Any) -> None:
    """Fail if a job of these args waits.

    Raises:
        AssertionError: there is one.
        UsageError: the class has no such field, so that the answer would always be no.
    """
    _, found = await _look(client, args_type, fields)
    if found is not None:
        raise AssertionError(f"{args_type.__name__} is enqueued: {_one(found)}")


async def _look(client: Client, args_type: type[Any], fields: dict[str, Any]) -> tuple[list[JobRow], JobRow | None]:
    from awa_actors.store.rehearsal import waiting

    kind = codec.args_type(args_type).kind
    for name in fields:
        if name not in _field_names(args_type):
            raise UsageError(f"{args_type.__name__} has no field {name!r}")
    wanted = {name: codec.to_json_value(value) for name, value in fields.items()}
    async with client.pool.acquire() as session:
        jobs = await waiting(session, kind)
    return jobs, next((job for job in jobs if _fits(job, wanted)), None)


def _fits(job: JobRow, wanted: dict[str, Any]) -> bool:
    return isinstance(job.args, dict) and all(
        name in job.args and job.args[name] == value for name, value in wanted.items()
    )


def _field_names(args_type: type[Any]) -> set[str]:
    if attrs.has(args_type):
        return {field.alias for field in attrs.fields(args_type)} | {field.name for field in attrs.fields(args_type)}
    return set(args_type.__dataclass_fields__)


def _described(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in fields.items())


def _listed(args_type: type[Any], jobs: list[JobRow]) -> str:
    if not jobs:
        return f"no job of kind {codec.args_type(args_type).kind!r} waits"
    more = f" and {len(jobs) - LISTED} more" if len(jobs) > LISTED else ""
    return f"what waits: {'; '.join(map(_one, jobs[:LISTED]))}{more}"


def _one(job: JobRow) -> str:
    return f"job {job.id} {job.args} ({job.state.value} on {job.queue})"
