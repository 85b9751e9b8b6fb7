"""Callbacks from the outside: one statement resolves one, and its follow-ups go into the same transaction.

Free of any driver: bridges and other frameworks run the same statements and read the same answers.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import attrs
import orjson

from awa_actors.codec import structure
from awa_actors.core.backoff import clamp_delay
from awa_actors.core.callbacks import (
    Complete,
    DefaultAction,
    Fail,
    Ignore,
    check_callback_id,
    decide,
    default_action,
    payload_text,
)
from awa_actors.core.expressions import evaluate, require
from awa_actors.core.follow_up_template import DeclaredFollowUp
from awa_actors.core.json_text import JSON_LIMIT
from awa_actors.core.text import storable
from awa_actors.errors import AwaError, CallbackNotFound, FollowUpError, TransientStoreError, ValidationError
from awa_actors.events import Completed, Event, Exhausted, Retried
from awa_actors.jobs import JobRow, JobState
from awa_actors.registry import Registry
from awa_actors.store.follow_up_plan import SpecFailed, plan, read_declared
from awa_actors.store.insert import NewJob, inserted, parameters, statement
from awa_actors.store.rows import job_row
from awa_actors.store.sqlstates import HasFollowUps
from awa_actors.store.stepping import Steps, run_steps_async
from awa_actors.store.trace import NOW, Line, Log, landed, step, watched

# Types are qualified: these run on sessions of other people, with a search_path of theirs.
_ID = "$1::pg_catalog.text::pg_catalog.uuid"
_JSON = "$2::pg_catalog.text::pg_catalog.jsonb"
COMPLETE = f"SELECT awa.complete_external({_ID}, {_JSON})::pg_catalog.text"
FAIL = f"SELECT awa.fail_external({_ID}, $2::pg_catalog.text)::pg_catalog.text"
RETRY = f"SELECT awa.retry_external({_ID})::pg_catalog.text"
RESUME = f"SELECT awa.resume_external({_ID}, {_JSON})::pg_catalog.text"
HEARTBEAT = f"SELECT awa.heartbeat_callback({_ID}, $2::pg_catalog.float8)::pg_catalog.text"
OPEN = f"SELECT awa.open_callback({_ID})::pg_catalog.text"
BEGINNING = b"SELECT 1"
"""Makes a driver that begins transactions by itself begin one."""
SAVEPOINT, KEEP, UNDO = "SAVEPOINT resolution", "RELEASE SAVEPOINT resolution", "ROLLBACK TO SAVEPOINT resolution"
ALONE = "SELECT awa.unless_followed(({})::pg_catalog.jsonb, ${}::pg_catalog.text[])::pg_catalog.text"


class Statements(Protocol):
    """One connection, whatever loop it lives on: :class:`awa_actors.store.pool.Session` is one."""

    @property
    def broken(self) -> bool: ...  # noqa: D102 - the names say it, here and below
    @property
    def log(self) -> Log | None: ...  # noqa: D102
    async def fetchval(self, sql: str, *args: Any) -> Any: ...  # noqa: D102
    async def fetchrow(self, sql: str, *args: Any) -> Any: ...  # noqa: D102
    async def execute(self, sql: str, *args: Any) -> str: ...  # noqa: D102
    async def compute(self, asked: Callable[[], Any]) -> Any: ...  # noqa: D102
    def transaction(self) -> AbstractAsyncContextManager[Any]: ...  # noqa: D102


@attrs.frozen
class Asked:
    """What the expressions of a callback decide about."""

    payload: Any
    default: DefaultAction
    limit: int

    def decided(self, expressions: dict[str, str]) -> Complete | Fail | Ignore:
        """Evaluate them; how long that takes is up to the payload.

        Raises:
            UsageError: there are expressions, and the 'cel' extra is not installed here.
        """
        if expressions:
            require()
        return decide(expressions, self.payload, self.default, evaluate)


@attrs.frozen
class Resolution:
    """One statement that resolves a callback on anybody's connection.

    Args:
        callback_id: which.
        sql: the statement, with ``$1`` placeholders.
        arguments: its text and float arguments.
        error: what a failure says, for its event.
        asked: the statement only locks, and what happens then is for the callback's expressions to decide.
    """

    callback_id: str
    sql: str
    arguments: tuple[Any, ...]
    error: str = ""
    asked: Asked | None = None


@attrs.frozen
class Resolved:
    """A callback that was resolved (or extended): the job as it landed, and what follows from that.

    Args:
        job: the row after the transition.
        came_from: the state it was in.
        outcome: whose follow-ups belong to it: completed, exhausted, retried, or None.
        error: what an exhausted or retried event says.
        attempt: number of the attempt that ended.
        declared: follow-ups of that outcome and kind that the database declares.
        decision: of the expressions, where they were asked; after `Ignore` nothing has changed.
    """

    job: JobRow
    came_from: JobState
    outcome: str | None
    error: str
    attempt: int
    declared: tuple[DeclaredFollowUp, ...]
    decision: Complete | Fail | Ignore | None = None


def complete(callback_id: object, payload: Any = None, *, limit: int = JSON_LIMIT) -> Resolution:
    """Complete the job with the payload as its result.

    Raises:
        ValidationError: not a callback id, or a payload that cannot be stored; nothing was sent.
    """
    checked = check_callback_id(callback_id)
    return Resolution(checked, COMPLETE, (checked, payload_text(payload, limit=limit)))


def fail(callback_id: object, error: object) -> Resolution:
    """Fail the job for good."""
    checked, text = check_callback_id(callback_id), storable(error)
    return Resolution(checked, FAIL, (checked, text), text)


def retry(callback_id: object) -> Resolution:
    """Run the waiting job again from the start."""
    checked = check_callback_id(callback_id)
    return Resolution(checked, RETRY, (checked,), "asked to run again by its callback")


def resume(callback_id: object, payload: Any = None, *, limit: int = JSON_LIMIT) -> Resolution:
    """Let the job go on with the payload."""
    checked = check_callback_id(callback_id)
    return Resolution(checked, RESUME, (checked, payload_text(payload, limit=limit)))


def heartbeat(callback_id: object, seconds: float | dt.timedelta) -> Resolution:
    """Let the callback expire `seconds` from now.

    Raises:
        ValidationError: not a finite number of seconds, or negative.
    """
    checked = check_callback_id(callback_id)
    return Resolution(checked, HEARTBEAT, (checked, clamp_delay(seconds, path="$.timeout_seconds")))


def by_expressions(
    callback_id: object, payload: Any = None, default: str | DefaultAction = "ignore", *, limit: int = JSON_LIMIT
) -> Resolution:
    """Let the callback's own expressions decide what the payload means; `default` is what happens when none does.

    Raises:
        ValidationError: not a callback id, or a payload that cannot be stored; nothing was sent.
        UsageError: a default that is none of complete, fail and ignore.
    """
    checked, action = check_callback_id(callback_id), default_action(default)
    payload_text(payload, limit=limit)
    return Resolution(checked, OPEN, (checked,), asked=Asked(payload, action, limit))


@attrs.frozen
class Opened:
    """A locked callback: its job, and the expressions it was registered with."""

    job: JobRow
    expressions: dict[str, str]


def read_open(answer: str | None, resolution: Resolution) -> Opened:
    """Read the answer of the statement that locks.

    Raises:
        CallbackNotFound: there is no open callback of this id.
    """
    stored = _stored(answer, resolution)
    return Opened(job_row(stored), stored["cel"] or {})


def _stored(answer: str | None, resolution: Resolution) -> dict[str, Any]:
    if answer is None:
        raise CallbackNotFound(
            f"there is no open callback {resolution.callback_id}: "
            "it is unknown, resolved, replaced, or its attempt has ended"
        )
    stored: dict[str, Any] = orjson.loads(answer)
    return stored


def read(answer: str | None, resolution: Resolution) -> Resolved:
    """Read the answer of a resolution.

    Raises:
        CallbackNotFound: nothing was changed.
    """
    stored = _stored(answer, resolution)
    job = job_row(stored)
    return Resolved(
        job,
        JobState(stored["came_from"]),
        stored["outcome"],
        resolution.error,
        stored.get("attempt_before", job.attempt),
        tuple(read_declared(spec) for spec in stored["specs"] or ()),
    )


def follow_ups(registry: Registry, resolved: Resolved) -> list[NewJob]:
    """Plan the follow-up jobs of a resolution, to be inserted in its transaction.

    Raises:
        FollowUpError: a closure failed; roll back, so that the callback stays open.

    Source: ADR-029, fact F16.
    """
    kind, outcome = resolved.job.kind, resolved.outcome
    own = (outcome, kind) in registry.follow_ups
    if outcome is None or not (own or resolved.declared):
        return []
    try:
        args = structure(resolved.job.args, registry.args_types[kind]) if own else resolved.job.args
    except ValidationError as error:
        raise FollowUpError(f"job {resolved.job.id}: its args do not fit its follow-ups: {error}") from error
    planned = plan(registry, outcome, _event(resolved, args), resolved.declared)
    if isinstance(planned, SpecFailed):
        raise FollowUpError(
            f"follow-up {planned.spec} of job {resolved.job.id} failed, nothing was changed: {planned.error}"
        )
    return planned.jobs


def _event(resolved: Resolved, args: Any) -> Event[Any]:
    job, attempt = resolved.job, resolved.attempt
    if resolved.outcome == "completed":
        return Completed(job=job, args=args, duration=0.0)
    if resolved.outcome == "exhausted":
        return Exhausted(job=job, args=args, error=resolved.error, attempt=attempt)
    return Retried(job=job, args=args, error=resolved.error, attempt=attempt, next_run_at=job.run_at)


def steps(resolution: Resolution, registry: Registry) -> Steps[Resolved]:
    """What a resolution and its follow-ups ask of the open transaction, statement by statement.

    Raises:
        CallbackNotFound: nothing was changed.
        FollowUpError: a follow-up or its insert failed; roll back.
    """
    if resolution.asked is not None:
        return (yield from _decided_steps(resolution, resolution.asked, registry))
    row = yield resolution.sql, resolution.arguments
    resolved = read(row[0], resolution)
    jobs = follow_ups(registry, resolved)
    if jobs:
        try:
            inserted(jobs, (yield statement(jobs), parameters(jobs)))
        except TransientStoreError:
            raise
        except AwaError as error:
            raise FollowUpError(f"a follow-up could not be enqueued, nothing was changed: {error}") from error
    return resolved


def _decided_steps(resolution: Resolution, asked: Asked, registry: Registry) -> Steps[Resolved]:
    row = yield resolution.sql, resolution.arguments
    opened = read_open(row[0], resolution)
    decision: Complete | Fail | Ignore = yield functools.partial(asked.decided, opened.expressions)
    match decision:
        case Complete(payload=result):
            chosen = complete(resolution.callback_id, result, limit=asked.limit)
        case Fail(error=error):
            chosen = fail(resolution.callback_id, error)
        case Ignore():
            return Resolved(opened.job, opened.job.state, None, "", opened.job.attempt, (), decision)
    return attrs.evolve((yield from steps(chosen, registry)), decision=decision)


async def resolve(session: Statements, registry: Registry, resolution: Resolution) -> Resolved:
    """Run a resolution and enqueue its follow-ups, in the transaction that is open on the session: both, or neither.

    Raises:
        CallbackNotFound, FollowUpError: as :func:`steps`.
    """
    if session.log is None:
        return await run_steps_async(steps(resolution, registry), session.fetchrow, session.compute)
    with watched(session, "resolve"):
        resolved = await run_steps_async(steps(resolution, registry), session.fetchrow, session.compute)
        if not isinstance(resolved.decision, Ignore):
            session.log.note([_line(await session.fetchval(NOW), resolved)])
    return resolved


def _line(at: Any, resolved: Resolved) -> Line:
    job, state = resolved.job, resolved.job.state.value
    # Each outcome has its state; without one the job goes on, unless the store overruled what was asked.
    by = "resolve" if resolved.outcome is not None else landed("resolve", _GOES_ON.get(state, ""), state)
    return step(at, job.id, job.run_lease, resolved.came_from.value, state, by)


_GOES_ON = {state: state for state in ("available", "running", "waiting_external")}


async def resolve_within(session: Statements, registry: Registry, resolution: Resolution) -> Resolved:
    """As :func:`resolve`, in a savepoint: when it raises, the callback is open and the transaction goes on."""
    await session.execute(SAVEPOINT)
    try:
        resolved = await resolve(session, registry, resolution)
    except AwaError:
        if not session.broken:
            await session.execute(UNDO)
        raise
    await session.execute(KEEP)
    return resolved


async def resolve_alone(session: Statements, registry: Registry, resolution: Resolution) -> Resolved:
    """Run a resolution as a transaction of its own: one round trip where nothing follows from it, as is usual.

    Raises:
        CallbackNotFound, FollowUpError: nothing was changed.
    """
    if session.log is not None or resolution.asked is not None:
        async with session.transaction():
            return await resolve(session, registry, resolution)
    followed = [f"{outcome}:{kind}" for outcome, kind in registry.follow_ups]
    sql = ALONE.format(resolution.sql, len(resolution.arguments) + 1)
    try:
        return read(await session.fetchval(sql, *resolution.arguments, followed), resolution)
    except HasFollowUps:
        async with session.transaction():
            return await resolve(session, registry, resolution)
