"""Enqueue on a Django database connection: the job exists when the surrounding ``transaction.atomic`` commits."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction
from django.utils.connection import ConnectionDoesNotExist

from awa_actors.bridge.statements import positional, translated
from awa_actors.errors import UsageError
from awa_actors.jobs import FinalizationReceipt, InsertedJob, InsertOpts, JobRow
from awa_actors.registry import Registry
from awa_actors.store import resolve as resolutions
from awa_actors.store.completion import COMPLETE_ATTEMPT, completion, receipt
from awa_actors.store.decided import ExternalOutcome, outcome_of
from awa_actors.store.insert import NewJob, admit, admit_many, inserted, parameters, statement
from awa_actors.store.stepping import run_steps


def insert(args: Any, opts: InsertOpts | None = None, *, using: str = DEFAULT_DB_ALIAS) -> InsertedJob:
    """Insert one job in the atomic block of this thread; outside one it is committed at once.

    Args:
        args: an instance of an args class.
        opts: how it differs from what the class declares.
        using: alias of a PostgreSQL database in ``DATABASES``, the one your own rows are in.

    Raises:
        ValidationError: something in it cannot be stored; nothing was sent.
        UniqueConflict: another job holds its unique key; nothing was inserted, and the transaction stays usable.
        UsageError: no such alias, or another database than PostgreSQL.
        StoreError: the database refused; the atomic block will be rolled back.
    """
    return _insert(_connection(using), [admit(args, opts)])[0]


def insert_many(
    jobs: Iterable[Any], opts: InsertOpts | None = None, *, using: str = DEFAULT_DB_ALIAS
) -> list[InsertedJob]:
    """Insert many jobs, all or none and in their order, as :func:`insert` does one.

    Args:
        jobs: instances of args classes, not necessarily of one.
        opts: options of every one of them.
        using: as there.
    """
    return _insert(_connection(using), admit_many(jobs, opts))


def resolve(
    resolution: resolutions.Resolution, *, registry: Registry | None = None, using: str = DEFAULT_DB_ALIAS
) -> resolutions.Resolved:
    """Run a resolution of a callback, with its follow-ups, in the atomic block of this thread; outside one it commits.

    Args:
        resolution: made by :mod:`awa_actors.store.resolve`, or by a web service that admitted a request.
        registry: whose follow-ups go into the same transaction; what the database declares goes there in any case.
        using: alias of the database.

    Raises:
        CallbackNotFound: there is no open callback of this id; the block stays usable.
        FollowUpError: a follow-up failed: the callback is open as before, and the block stays usable.
    """
    connection = _connection(using)
    with transaction.atomic(using=using):
        made = resolutions.steps(resolution, registry or Registry())
        return run_steps(made, functools.partial(fetch_row, connection))


def complete(job: Any, *, using: str = DEFAULT_DB_ALIAS) -> FinalizationReceipt:
    """Complete the job whose handler this is, in the transaction of this thread's atomic block; return the receipt.

    Args:
        job: of a kind registered with ``completion=awa.Completion.CALLER_OWNED``.
        using: alias of the database.

    Raises:
        StaleAttempt: the attempt was taken away; let it out, so that this transaction is rolled back.
        UsageError: the runtime completes jobs of this kind.
    """
    fetch_row(_connection(using), COMPLETE_ATTEMPT, *completion(job))
    return receipt(job)


def complete_external(
    callback_id: str, payload: Any = None, *, registry: Registry | None = None, using: str = DEFAULT_DB_ALIAS
) -> JobRow:
    """Complete the job of a callback with the payload as its result, as :func:`resolve` does it."""
    return resolve(resolutions.complete(callback_id, payload), registry=registry, using=using).job


def fail_external(
    callback_id: str, error: str, *, registry: Registry | None = None, using: str = DEFAULT_DB_ALIAS
) -> JobRow:
    """Fail the job of a callback for good."""
    return resolve(resolutions.fail(callback_id, error), registry=registry, using=using).job


def retry_external(callback_id: str, *, registry: Registry | None = None, using: str = DEFAULT_DB_ALIAS) -> JobRow:
    """Run the waiting job of a callback again from the start."""
    return resolve(resolutions.retry(callback_id), registry=registry, using=using).job


def resume_external(
    callback_id: str, payload: Any = None, *, registry: Registry | None = None, using: str = DEFAULT_DB_ALIAS
) -> JobRow:
    """Let the job of a callback go on with the payload."""
    return resolve(resolutions.resume(callback_id, payload), registry=registry, using=using).job


def resolve_external(
    callback_id: str,
    payload: Any = None,
    default_action: str = "ignore",
    *,
    registry: Registry | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> ExternalOutcome:
    """Let the callback's own expressions decide what the payload means; locked until the transaction ends."""
    asked = resolutions.by_expressions(callback_id, payload, default_action)
    return outcome_of(resolve(asked, registry=registry, using=using))


def heartbeat_callback(
    callback_id: str, seconds: float = 3600.0, *, registry: Registry | None = None, using: str = DEFAULT_DB_ALIAS
) -> JobRow:
    """Let a callback expire this many seconds from now instead."""
    return resolve(resolutions.heartbeat(callback_id, seconds), registry=registry, using=using).job


def fetch_row(connection: Any, sql: str, *values: Any) -> Sequence[Any]:
    """Run one statement that gives one row.

    Raises:
        AwaError: translated from what Django raises.
    """
    try:
        # Without a savepoint: an error marks the caller's block for rollback; else Django would commit it in vain.
        with transaction.atomic(using=connection.alias, savepoint=False), connection.cursor() as cursor:
            cursor.execute(positional(sql), values)
            row: Sequence[Any] = cursor.fetchone()
            return row
    except Error as error:
        raw = connection.connection
        raise translated(error, lost=raw is None or bool(raw.closed)) from error


def _insert(connection: Any, jobs: Sequence[NewJob]) -> list[InsertedJob]:
    if not jobs:
        return []
    return inserted(jobs, fetch_row(connection, statement(jobs), *parameters(jobs)))


def _connection(using: str) -> Any:
    try:
        connection = connections[using]
    except (ConnectionDoesNotExist, TypeError) as error:
        raise UsageError(f"using= names no database of DATABASES: {error}") from error
    if connection.vendor != "postgresql":
        raise UsageError(f"jobs are stored in PostgreSQL, and the database {using!r} is {connection.vendor}")
    return connection
