"""Databases in every state of a storage transition, and the processes that its gates ask for."""

import os
import uuid
from typing import LiteralString

import psycopg
from queue_plane import Plane

MAKE_CANONICAL: LiteralString = """
UPDATE awa.storage_transition_state SET state = 'canonical', current_engine = 'canonical', prepared_engine = NULL,
    transition_epoch = 0, finalized_at = NULL, details = '{"schema": "awa_queue"}'
"""

EMPTY: LiteralString = """
TRUNCATE awa.instances, awa.jobs_hot, awa.scheduled_jobs, awa.job_unique_claims, awa_queue.bodies, awa_queue.ready,
    awa_queue.leases, awa_queue.done, awa_queue.deferred_jobs, awa_queue.terminal
"""


def make_canonical(url: str) -> None:
    """Turn a fresh database into one of an installation that has not moved yet."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(MAKE_CANONICAL)


def start_again(session: Plane) -> None:
    """Make a database that a test has used as good as a new installation that has not moved yet."""
    session.rows(EMPTY)
    session.rows(MAKE_CANONICAL)


def live(session: Plane, capability: str | None = "queue_storage", role: str = "worker") -> uuid.UUID:
    """Register a process that has just beaten; without a capability it is one of an older release."""
    instance = uuid.uuid4()
    session.rows(
        "INSERT INTO awa.instances (id, role, hostname, pid, version, stale_after, details)"
        " VALUES (%s, %s, 'here', %s, '0', interval '1 hour',"
        " CASE WHEN %s::text IS NULL THEN '{}' ELSE jsonb_build_object('storage', %s::text) END)",
        instance, role, os.getpid(), capability, capability,
    )  # fmt: skip
    return instance


def gone(session: Plane, instance: uuid.UUID) -> None:
    """Take a process away."""
    session.rows("UPDATE awa.instances SET dead_at = clock_timestamp() WHERE id = %s", instance)


def step(session: Plane, name: LiteralString, *values: object) -> str:
    """Take a step of the transition by its SQL function; returns the state after it."""
    marks = ", ".join(["%s"] * len(values))
    state: str = session.row(f"SELECT * FROM awa.storage_{name}({marks})", *values)["state"]
    return state


def enter_mixed(session: Plane) -> None:
    """Go from canonical to mixed, with a worker that lives for that moment only."""
    step(session, "prepare", "queue_storage")
    worker = live(session)
    step(session, "enter_mixed_transition")
    gone(session, worker)
