"""The real store, driven step by step as the queue machine goes, and read as the machine's state."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any, LiteralString

import attrs
import psycopg
from psycopg import Connection

from model.machine import Args
from model.machines.queue import Plane, Queue
from model.refinement.sessions import Rows, Session

QUEUE = "model"
LANE = 2
"""The usual priority, whose place among the hints is the same number while the queue has one shard."""
SLOTS = {"segments": 8, "ready": 8, "leases": 4}

VERDICTS: dict[str, dict[str, object]] = {
    "retryable": {"state": "retryable", "delay": 0, "error": "failed"},
    "give_back": {"give_back": True},
    "failed": {"state": "failed", "error": "failed", "terminal": True, "reason": "terminal_error"},
    "scheduled": {"state": "scheduled", "delay": 0, "uncount": True, "snooze": True},
    "interrupted": {"state": "available", "uncount": True, "interrupted": True},
}
JOBS: LiteralString = "SELECT id, state::text, run_lease, attempt, instance, rescues FROM awa.jobs ORDER BY id"
ORDER: LiteralString = """
SELECT job_id FROM (
    SELECT pos, job_id FROM awa_queue.ready UNION ALL SELECT pos, job_id FROM awa_queue.parked_ready) r ORDER BY pos
"""


@attrs.define(eq=False)
class Store:
    """A migrated database, one connection per session of the machine, and which job and instance is which.

    Args:
        url: of a migrated database without rows.
        machine: whose rules are followed.
    """

    url: str
    machine: Queue
    observer: Connection[Any] = attrs.field(init=False)
    sessions: list[Session] = attrs.field(init=False)
    instances: list[uuid.UUID] = attrs.field(init=False)
    ids: dict[int, int] = attrs.field(factory=dict)
    lslots: dict[tuple[int, int, int], int] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Connect, and register the instances."""
        self.observer = psycopg.connect(
            self.url, autocommit=True, application_name="model observer", options="-c statement_timeout=5s"
        )
        self.sessions = [Session(self.url, self.observer) for _ in range(self.machine.n_sessions)]
        self.instances = [uuid.uuid4() for _ in range(self.machine.n_instances)]
        for instance in self.instances:
            self.observer.execute(
                "INSERT INTO awa.instances (id, role, hostname, pid, version, stale_after)"
                " VALUES (%s, 'worker', 'model', 1, '0', interval '1 hour')",
                [instance],
            )

    def close(self) -> None:
        """Disconnect."""
        for session in self.sessions:
            session.close()
        self.observer.close()

    def jobs(self) -> dict[int, tuple[str, int, int, int | None, int]]:
        """Committed jobs as the machine numbers them: state, run_lease, attempt, owner, rescues."""
        rows = self.observer.execute(JOBS).fetchall()
        numbers = {job_id: j for j, job_id in self.ids.items()}
        found = {
            numbers[row[0]]: (row[1], row[2], row[3], self._owner(row[4] if row[1] == "running" else None), row[5])
            for row in rows
        }
        assert len(found) == len(rows), f"a job is in two places: {rows}"
        return found

    def _owner(self, instance: uuid.UUID | None) -> int | None:
        return None if instance is None else self.instances.index(instance)

    def order(self) -> list[int]:
        """Available jobs in the order of their positions."""
        numbers = {job_id: j for j, job_id in self.ids.items()}
        return [numbers[row[0]] for row in self.observer.execute(ORDER).fetchall()]

    def start(self, t: int, before: Plane, name: str, args: Args, *, opens: bool) -> bool:
        """Start an action on a session; whether it has ended. `opens`: the machine says that it changes something."""
        if opens and not before.sessions[t].open:
            self.sessions[t].run("BEGIN")
        statement, values = self._statement(t, name, args)
        return self.sessions[t].start(statement, values)

    def _statement(self, t: int, name: str, args: Args) -> tuple[LiteralString, Sequence[object]]:
        match name, args:
            case "insert", (_, _, state):
                opts = ['{"delay": 0}'] if state == "scheduled" else None
                return (
                    "SELECT ids[1] FROM awa.insert_jobs(ARRAY['{}'], ARRAY['k'], ARRAY[%s], ARRAY[2]::smallint[],"
                    " ARRAY[25]::smallint[], %s::text[])",
                    [QUEUE, opts],
                )
            case "claim", (_, i, j, skipped):
                hints: list[int | None] = [None, self._position(t, j) if skipped else None]
                return (
                    "SELECT job_ids, run_leases, lslots"
                    " FROM awa_queue.take(%s, 1, 1000000000, %s, 0, NULL, %s::bigint[])",
                    [QUEUE, self.instances[i], hints],
                )
            case "complete", (_, j, lease, i):
                return (
                    "SELECT completed FROM awa_queue.complete(%s::bigint[], %s::bigint[], %s::smallint[], %s)",
                    [[self.ids.get(j, 0)], [lease], [self.lslots.get((j, lease, i), 0)], self.instances[i]],
                )
            case "settle", (_, j, lease, i, verdict):
                entry = {"job_id": self.ids.get(j, 0), "run_lease": lease, **VERDICTS[verdict]}
                return "SELECT job_id FROM awa_queue.settle(%s, %s::jsonb)", [self.instances[i], json.dumps([entry])]
            case "cancel", (_, j):
                return "SELECT awa.cancel_job(%s)", [self.ids.get(j, 0)]
            case "retry", (_, j):
                return "SELECT awa.retry_job(%s)", [self.ids.get(j, 0)]
            case "promote", _:
                return "SELECT moved, failed FROM awa_queue.promote(100)", []
            case "rescue", _:
                return "SELECT r FROM awa_queue.rescue_stale(100, %s) r", [self.machine.bound]
            case "carry", (_, what):
                self.turn("leases" if what == "leases" else "segments")
                return CARRY[what], []
        raise LookupError(name)

    def _position(self, t: int, j: int) -> int:
        rows = self.sessions[t].run("SELECT pos FROM awa_queue.ready WHERE job_id = %s", [self.ids[j]])
        return int(rows[0][0])

    def turn(self, ring: LiteralString) -> None:
        """Turn a ring, if it has an empty slot."""
        self.observer.execute(
            "SELECT awa_queue.turn(%s, max(generation)) FROM awa_queue.ring_turns WHERE ring = %s", [ring, ring]
        )

    def truncate(self) -> list[str]:
        """Try to truncate every slot, with no retention and without waiting for it to settle; what became of them."""
        return [
            outcome
            for ring, slots in SLOTS.items()
            for slot in range(slots)
            for (outcome,) in self.observer.execute(
                "SELECT outcome FROM awa_queue.truncate_slot(%s, %s, interval '0', interval '0')", [ring, slot]
            ).fetchall()
        ]

    def learn(self, name: str, args: Args, rows: Rows) -> None:
        """Keep what the answer of an action says about ids and slots."""
        if name == "insert":
            self.ids[args[1]] = rows[0][0]
        elif name == "claim":
            _, i, j, _ = args
            assert rows[0][0] == [self.ids[j]], f"claimed {rows[0][0]} instead of job {j}, which is {self.ids[j]}"
            self.lslots[j, rows[0][1][0], i] = rows[0][2][0]


# The machine says that a carry locks every row it could carry; what is in the current slot already is locked beside it.
CARRY: dict[str, LiteralString] = {
    "leases": """
        SELECT (SELECT sum(awa_queue.carry_leases(s, 100)) FROM generate_series(0, 3) s),
               (SELECT count(*) FROM (SELECT FROM awa_queue.leases FOR UPDATE SKIP LOCKED) l)
    """,
    "bodies": """
        SELECT (SELECT sum(awa_queue.carry_bodies(s, 100)) FROM generate_series(0, 7) s),
               (SELECT count(*) FROM (SELECT FROM awa_queue.leases FOR UPDATE SKIP LOCKED) l),
               (SELECT count(*) FROM (SELECT FROM awa_queue.ready FOR UPDATE SKIP LOCKED) r)
    """,
}
