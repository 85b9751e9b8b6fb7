"""Jobs that wait for a callback, made by statements alone: for tests that want locks and moments to themselves."""

from __future__ import annotations

import uuid
from typing import Any, LiteralString

import attrs
import psycopg
from psycopg.types.json import Jsonb

from awa_actors.store.claim import ANSWER

CLAIM: LiteralString = f"CALL awa_queue.claim(%s, 1, 1000000, %s, 0, NULL, NULL, {ANSWER})"
INSTANCE: LiteralString = """
INSERT INTO awa.instances (id, role, hostname, pid, version, stale_after) VALUES (%s, 'worker', 'here', 1, '0', %s)
"""


@attrs.frozen
class CallbackJob:
    """One claimed job with a registered callback."""

    job_id: int
    run_lease: int
    instance: uuid.UUID
    callback_id: str

    @property
    def holder(self) -> tuple[int, int, uuid.UUID]:
        """The identity of its attempt."""
        return (self.job_id, self.run_lease, self.instance)


def value(connection: psycopg.Connection[Any], statement: LiteralString, *args: object) -> Any:
    """The first column of a statement's first row."""
    row = connection.execute(statement, args).fetchone()
    return row and row[0]


def alive(connection: psycopg.Connection[Any], stale_after: str = "1 hour") -> uuid.UUID:
    """Register a worker's instance."""
    instance = uuid.uuid4()
    connection.execute(INSTANCE, (instance, stale_after))
    return instance


def claimed(connection: psycopg.Connection[Any], **opts: object) -> tuple[int, int, uuid.UUID]:
    """Insert a job and claim it for an instance of its own; the connection is in autocommit."""
    instance, queue = alive(connection), f"q-{uuid.uuid4()}"
    job_id = value(
        connection,
        "SELECT id FROM awa.insert_job('errand', '{}', %s)",
        Jsonb({"queue": queue, **opts}),
    )
    row = connection.execute(CLAIM, (queue, instance)).fetchone()
    assert row is not None
    assert row[0] == [job_id], row
    return job_id, row[1][0], instance


def registered(
    connection: psycopg.Connection[Any], state: str = "running", seconds: float = 3600.0, **opts: object
) -> CallbackJob:
    """A job whose handler has registered a callback: it still runs, waits inside, or is parked."""
    job_id, run_lease, instance = claimed(connection, **opts)
    callback_id = value(
        connection, "SELECT awa_queue.register_callback(%s, %s, %s, %s, NULL)", job_id, run_lease, instance, seconds
    )
    job = CallbackJob(job_id, run_lease, instance, str(callback_id))
    if state == "inside":
        assert look(connection, job) == "waiting"
    elif state == "parked":
        assert park(connection, job) == "parked"
    return job


def dying(connection: psycopg.Connection[Any]) -> CallbackJob:
    """A parked job on a queue that keeps dead letters."""
    job = registered(connection, "parked")
    connection.execute(
        "INSERT INTO awa.queues (queue, dlq_enabled) SELECT queue, true FROM awa.jobs WHERE id = %s", [job.job_id]
    )
    return job


def look(connection: psycopg.Connection[Any], job: CallbackJob) -> str:
    """What a handler that waits inside sees."""
    status: str = value(
        connection, "SELECT status FROM awa_queue.await_callback(%s, %s, %s, %s, NULL)", job.callback_id, *job.holder
    )
    return status


def park(connection: psycopg.Connection[Any], job: CallbackJob) -> str | None:
    """Park a job whose handler has returned; None when its attempt is stale."""
    entry = {"job_id": job.job_id, "run_lease": job.run_lease, "callback_id": job.callback_id}
    outcome: str | None = value(connection, "SELECT outcome FROM awa_queue.park(%s, %s)", job.instance, Jsonb([entry]))
    return outcome


def found(connection: psycopg.Connection[Any], job_id: int) -> dict[str, Any]:
    """The job, wherever it is."""
    stored: dict[str, Any] = value(connection, "SELECT awa.find_job(%s)", job_id)
    return stored
