"""The queue plane as tests speak to it: one method per verb, on a session whose transactions the test decides about."""

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString, TypeVar

import attrs
import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from awa_actors.store.claim import ANSWER

T = TypeVar("T")

ROOM = 8_388_608
"""Bytes of args per claim where a test does not care."""

CLAIM = f"CALL awa_queue.claim(%s, %s, %s, %s, %s, %s, %s::bigint[], {ANSWER})"
CLAIM_PLANES = f"CALL awa.claim_planes(%s, %s, %s, %s, %s, %s, %s::bigint[], %s, {ANSWER})"
COLUMNS = {
    "job_ids": "job_id",
    "run_leases": "run_lease",
    "lslots": "lslot",
    "attempts": "attempt",
    "priorities": "priority",
    "kinds": "kind",
    "args": "args",
    "extras": "extras",
    "deadline_at": "deadline_at",
}
"""Arrays of a claim, and what one element of each is called."""

STATES = ("scheduled", "available", "running", "completed", "retryable", "failed", "cancelled", "waiting_external")
"""In the order of their bits in a unique mask."""

DEADLINE = 10.0
"""Seconds in which a session gets to the lock a test sends it to; it takes milliseconds."""


@attrs.frozen
class Attempt:
    """One claimed job. `kind` is None when it ended at the claim, as a duplicate."""

    job_id: int
    run_lease: int
    lslot: int
    attempt: int
    priority: int
    kind: str | None
    args: str
    extras: str | None
    deadline_at: Any


@attrs.frozen
class Claim:
    """One claim and the hints for the next."""

    attempts: list[Attempt]
    hints: list[int]

    @property
    def ids(self) -> list[int]:
        """Jobs in the order of the claim, those that ended in it left out."""
        return [attempt.job_id for attempt in self.attempts if attempt.kind is not None]


@attrs.define(eq=False)
class Plane:
    """One session, in autocommit mode unless the test opens a transaction on `connection`.

    Args:
        connection: owned by this object.
        instance: whose leases its claims become.
        both: None to claim from the queue plane alone, as finalized installations do; else from the canonical plane,
            and (True) then from the queue plane.
    """

    connection: psycopg.Connection[dict[str, Any]]
    instance: uuid.UUID = attrs.field(factory=uuid.uuid4)
    both: bool | None = None

    def rows(self, statement: LiteralString | sql.Composed, *values: object) -> list[dict[str, Any]]:
        """Run one statement; returns its rows."""
        cursor = self.connection.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def row(self, statement: LiteralString | sql.Composed, *values: object) -> dict[str, Any]:
        """Run one statement that has exactly one row."""
        (row,) = self.rows(statement, *values)
        return row

    def value(self, statement: LiteralString | sql.Composed, *values: object) -> Any:
        """Run one statement that has exactly one row of one column."""
        (value,) = self.row(statement, *values).values()
        return value

    @property
    def pid(self) -> int:
        """Of the server process."""
        return self.connection.info.backend_pid

    def register(self, stale_after: float = 30.0) -> uuid.UUID:
        """Register this session's instance."""
        self.rows(
            "INSERT INTO awa.instances (id, role, hostname, pid, version, stale_after)"
            " VALUES (%s, 'worker', 'here', 1, '0', make_interval(secs => %s))",
            self.instance,
            stale_after,
        )
        return self.instance

    def die(self) -> None:
        """Make this session's instance one whose beat is too old, and bury it."""
        self.rows("UPDATE awa.instances SET last_beat_at = '-infinity' WHERE id = %s", self.instance)
        assert self.instance in [row["bury_instances"] for row in self.rows("SELECT awa.bury_instances()")]

    def insert(self, count: int = 1, queue: str = "default", args: str = "{}", priority: int = 2) -> list[int]:
        """Insert plain jobs; returns their ids."""
        ids: list[int] = self.value(
            "SELECT ids FROM awa.insert_jobs(array_fill(%s::text, ARRAY[%s]), ARRAY['email'], ARRAY[%s],"
            " ARRAY[%s]::smallint[], ARRAY[25]::smallint[])",
            args,
            count,
            queue,
            priority,
        )
        return ids

    def job(self, kind: str = "email", **opts: Any) -> int:
        """Insert one job with options of awa.insert_job; returns its id."""
        job_id: int = self.value("SELECT id FROM awa.insert_job(%s, '{}', %s::jsonb)", kind, json.dumps(opts))
        return job_id

    def keyed(self, key: bytes, states: Iterable[str], *, queue: str = "default", delay: float | None = None) -> int:
        """Insert one job with a unique key and any mask at all, also one that no client would send; returns its id."""
        wanted = set(states)
        opts: dict[str, Any] = {
            "unique_key": key.hex(),
            "unique_states": "".join("01"[state in wanted] for state in STATES),
        }
        if delay is not None:
            opts["delay"] = delay
        (job_id,) = self.value(
            "SELECT ids FROM awa.insert_jobs(ARRAY['{}'], ARRAY['email'], ARRAY[%s], ARRAY[2]::smallint[],"
            " ARRAY[25]::smallint[], ARRAY[%s])",
            queue,
            json.dumps(opts),
        )
        return int(job_id)

    def claim(
        self,
        count: int = 100,
        queue: str = "default",
        *,
        hints: Sequence[int] = (),
        max_bytes: int = ROOM,
        aging: float = 0.0,
        deadline_ms: int | None = None,
    ) -> Claim:
        """Claim for this session's instance."""
        asked = (queue, count, max_bytes, self.instance, aging, deadline_ms, list(hints))
        row = self.row(CLAIM, *asked) if self.both is None else self.row(CLAIM_PLANES, *asked, self.both)
        if row["job_ids"] is None:
            return Claim([], row["hints"] or [])
        columns = zip(*(row[name] for name in COLUMNS), strict=True)
        attempts = [Attempt(**dict(zip(COLUMNS.values(), values, strict=True))) for values in columns]
        return Claim(attempts, row["hints"])

    def take(self, job_id: int, queue: str = "default") -> Attempt:
        """Claim one job that is the only one waiting in its queue."""
        (attempt,) = self.claim(1, queue).attempts
        assert attempt.job_id == job_id
        return attempt

    def complete(self, attempts: Sequence[Attempt], instance: uuid.UUID | None = None) -> set[int]:
        """Complete attempts; returns the ids that were."""
        row = self.row(
            "SELECT completed FROM awa_queue.complete(%s::bigint[], %s::bigint[], %s::smallint[], %s)",
            [attempt.job_id for attempt in attempts],
            [attempt.run_lease for attempt in attempts],
            [attempt.lslot for attempt in attempts],
            instance or self.instance,
        )
        return set(row["completed"] or ())

    def settle(self, *outcomes: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """End attempts of this session's instance; returns the jobs as they landed."""
        rows = self.rows(
            "SELECT job_id, job FROM awa_queue.settle(%s, %s::jsonb)", self.instance, json.dumps(list(outcomes))
        )
        return {row["job_id"]: row["job"] for row in rows}

    def end(self, attempt: Attempt, **outcome: Any) -> dict[str, Any] | None:
        """End one attempt; returns the job as it landed, or None when the attempt was stale."""
        return self.settle(outcome_of(attempt, **outcome)).get(attempt.job_id)

    def retry(self, attempt: Attempt, delay: float = 0.0) -> dict[str, Any] | None:
        """End one attempt as retryable."""
        return self.end(attempt, state="retryable", delay=delay, error="it broke")

    def fail(self, attempt: Attempt, reason: str = "terminal_error") -> dict[str, Any] | None:
        """End one attempt as failed."""
        return self.end(attempt, state="failed", error="it broke", terminal=True, reason=reason)

    def promote(self, rows: int = 1000) -> dict[str, Any]:
        """Promote what is due."""
        return self.row("SELECT moved, failed, next_due FROM awa_queue.promote(%s)", rows)

    def rescue_stale(self, rows: int = 1000, bound: int = 5) -> list[dict[str, Any]]:
        """Take back attempts of dead instances; returns the jobs as they landed."""
        return [row["r"] for row in self.rows("SELECT r FROM awa_queue.rescue_stale(%s, %s) r", rows, bound)]

    def rescue_deadlines(self, rows: int = 1000, margin: float = 0.0) -> list[dict[str, Any]]:
        """Take back attempts that are past their deadline; returns the jobs as they landed."""
        return [row["r"] for row in self.rows("SELECT r FROM awa_queue.rescue_deadlines(%s, %s, 5) r", rows, margin)]

    def current(self, ring: str) -> int:
        """The current slot of a ring."""
        slot: int = self.value("SELECT awa_queue.current_slot(%s)", ring)
        return slot

    def turn(self, ring: str) -> int | None:
        """Turn a ring."""
        slot: int | None = self.value(
            "SELECT awa_queue.turn(%s, (SELECT max(generation) FROM awa_queue.ring_turns WHERE ring = %s))", ring, ring
        )
        return slot

    def truncate(self, ring: str, slot: int, retention: float = 0.0) -> str:
        """Truncate a slot if it can be; returns the outcome."""
        outcome: str = self.row(
            "SELECT outcome FROM awa_queue.truncate_slot(%s, %s, make_interval(secs => %s))", ring, slot, retention
        )["outcome"]
        return outcome

    def stored(self, job_id: int) -> dict[str, Any]:
        """A job as awa.jobs shows it, exactly once."""
        return self.row("SELECT * FROM awa.jobs WHERE id = %s", job_id)

    def state(self, job_id: int) -> str:
        """The state of a job that awa.jobs shows exactly once."""
        state: str = self.stored(job_id)["state"]
        return state

    def holder(self, key: bytes) -> int | None:
        """The job that holds a unique key."""
        found = self.rows("SELECT job_id FROM awa.job_unique_claims WHERE unique_key = %s", key)
        return found[0]["job_id"] if found else None

    @contextmanager
    def transaction(self) -> Iterator["Plane"]:
        """Run the body in one transaction."""
        with self.connection.transaction():
            yield self

    def close(self) -> None:
        """End the session."""
        self.connection.close()


def outcome_of(attempt: Attempt, **outcome: Any) -> dict[str, Any]:
    """One entry of settle."""
    return {"job_id": attempt.job_id, "run_lease": attempt.run_lease, **outcome}


def open_plane(url: str) -> Plane:
    """Open a session."""
    return Plane(psycopg.connect(url, autocommit=True, row_factory=dict_row))


@attrs.define(eq=False)
class Waiting:
    """A call of another session that waits for a lock in the server.

    Args:
        thread: runs it.
        result: one value, when it is over.
    """

    thread: threading.Thread
    result: list[Any]
    errors: list[BaseException]

    def join(self) -> Any:
        """Wait for the end of the call; returns its result or raises its error."""
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive(), "still waiting for a lock"
        if self.errors:
            raise self.errors[0]
        return self.result[0]


def blocked(session: Plane, watcher: Plane, call: Callable[[], T]) -> Waiting:
    """Start a call on `session` in a thread, and return when the server says that it waits for a lock."""
    result: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    waits = "SELECT count(*) AS n FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
    while not watcher.value(waits, session.pid):
        assert thread.is_alive(), f"it did not wait for anybody: {result or errors}"
        watcher.rows("SELECT pg_sleep(0.002)")
    return Waiting(thread, result, errors)
