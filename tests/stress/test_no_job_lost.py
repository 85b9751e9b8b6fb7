"""Producers, claimers and all of maintenance at once: no job is lost, doubled or made up.

Everything random comes from one seed, which is printed; AWA_STRESS_SEED runs the same decisions again.
"""

import asyncio
import json
import os
import random
import uuid
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import asyncpg
import attrs
import pytest

from awa_actors.store.claim import ANSWER

pytestmark = pytest.mark.stress

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:  # generic in its stubs only
    Connection = asyncpg.Connection

INSERT = (
    "SELECT unnest(ids) FROM awa.insert_jobs(array_fill('{}'::text, ARRAY[$1::int]), ARRAY['email'], ARRAY[$2], $3, $4)"
)
INSERT_LATER = """
SELECT unnest(ids) FROM awa.insert_jobs(array_fill('{}'::text, ARRAY[$1::int]), ARRAY['email'], ARRAY[$2], $3, $4,
                                        array_fill('{"delay": 0.02}'::text, ARRAY[$1::int]))
"""
CLAIM = f"CALL awa_queue.claim($1, $2, 8388608, $3, 60, NULL, $4, {ANSWER})"
COMPLETE = "SELECT completed FROM awa_queue.complete($1, $2, $3, $4)"
SETTLE = "SELECT job_id FROM awa_queue.settle($1, $2::text::jsonb)"
REGISTER = """
INSERT INTO awa.instances (id, role, hostname, pid, version, stale_after) VALUES ($1, 'worker', '', 1, '', '1 hour')
"""
KILL = "UPDATE awa.instances SET last_beat_at = '-infinity' WHERE id = $1"
LEFT = """
SELECT (SELECT count(*) FROM awa_queue.ready) + (SELECT count(*) FROM awa_queue.parked_ready)
     + (SELECT count(*) FROM awa_queue.leases) + (SELECT count(*) FROM awa_queue.deferred_jobs)
"""
TURN = "SELECT awa_queue.turn($1, (SELECT max(generation) FROM awa_queue.ring_turns WHERE ring = $1))"
TRUNCATE = "SELECT outcome FROM awa_queue.truncate_slot($1, $2, '0', '0')"
QUEUES = ["default", "email", "reports"]
SLOTS = {"ready": 8, "leases": 4, "segments": 8}

WAYS_BACK: list[dict[str, Any]] = [
    {"state": "retryable", "delay": 0.0, "error": "it broke"},
    {"state": "retryable", "delay": 0.03, "error": "it broke"},
    {"state": "scheduled", "delay": 0.01, "uncount": True, "snooze": True},
    {"state": "available", "uncount": True, "interrupted": True},
    {"give_back": True},
]
ENDS: list[dict[str, Any]] = [
    {"state": "failed", "error": "it broke", "terminal": True, "reason": "terminal_error"},
    {"state": "cancelled", "error": "cancelled", "terminal": True},
]


@attrs.define(eq=False)
class Run:
    """One run and all that it remembers of what the database told it.

    Args:
        url: the database.
        jobs: how many are committed at least.
        seed: of every decision.
        truncate: the statement that gives a slot back.
    """

    url: str
    jobs: int
    seed: int
    truncate: str = TRUNCATE
    producers: int = 8
    claimers: int = 4
    committed: set[int] = attrs.field(factory=set)
    undone: set[int] = attrs.field(factory=set)
    claims: dict[int, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    completed: Counter[int] = attrs.field(factory=Counter)
    stats: Counter[str] = attrs.field(factory=Counter)
    produced: bool = False
    over: bool = False

    async def run(self) -> None:
        """Produce and claim until nothing is left, with maintenance all the while."""
        await asyncio.wait_for(self._run(), 300)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as maintenance:
            for step in (self._rotate, self._carry, self._move, self._rescue, self._operate):
                maintenance.create_task(self._repeat(step))
            async with asyncio.TaskGroup() as claiming:
                for number in range(self.claimers):
                    claiming.create_task(self._connected(self._claim, number))
                async with asyncio.TaskGroup() as producing:
                    for number in range(self.producers):
                        producing.create_task(self._connected(self._produce, number))
                self.produced = True
            self.over = True

    def dice(self, name: str) -> random.Random:
        """A generator for one actor, so that a seed means the same whatever the order they run in."""
        return random.Random(f"{self.seed} {name}")

    async def _connected(self, actor: Callable[[Connection, int], Coroutine[Any, Any, None]], number: int) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await actor(connection, number)
        finally:
            await connection.close()

    async def _repeat(self, step: Callable[[Connection, random.Random], Awaitable[None]]) -> None:
        connection, dice = await asyncpg.connect(self.url), self.dice(step.__name__)
        try:
            while not self.over:
                await step(connection, dice)
                await asyncio.sleep(0.02)
        finally:
            await connection.close()

    async def _produce(self, connection: Connection, number: int) -> None:
        dice, share, mine = self.dice(f"producer {number}"), self.jobs / self.producers, 0
        while mine < share:
            ids: list[int] = []
            transaction = connection.transaction()
            await transaction.start()
            for _ in range(dice.randint(1, 3)):
                sql = INSERT_LATER if dice.random() < 0.1 else INSERT
                rows = await connection.fetch(sql, dice.randint(1, 80), dice.choice(QUEUES), [dice.randint(1, 4)], [25])
                ids += [row[0] for row in rows]
                if dice.random() < 0.3:
                    await asyncio.sleep(dice.random() * 0.05)
            if number == 0 and dice.random() < 0.05:
                await asyncio.sleep(1.0)
            if dice.random() < 0.2:
                await transaction.rollback()
                self.undone.update(ids)
            else:
                await transaction.commit()
                self.committed.update(ids)
                mine += len(ids)

    async def _claim(self, connection: Connection, number: int) -> None:
        dice, instance = self.dice(f"claimer {number}"), uuid.uuid4()
        hints: dict[str, list[int]] = {}
        await connection.execute(REGISTER, instance)
        idle = 0
        while idle < 3 or not self.produced or await connection.fetchval(LEFT):
            queue = dice.choice(QUEUES)
            row = await connection.fetchrow(CLAIM, queue, dice.randint(1, 100), instance, hints.get(queue, []))
            assert row is not None
            hints[queue] = row["hints"] if row["job_ids"] and dice.random() < 0.9 else []
            if not row["job_ids"]:
                idle += 1
                await asyncio.sleep(0.003)
                continue
            idle = 0
            attempts = list(zip(row["job_ids"], row["run_leases"], row["lslots"], strict=True))
            for job_id, run_lease, _ in attempts:
                self.claims[job_id].append(run_lease)
            self.stats["claims"] += 1
            if dice.random() < 0.02:
                # This process dies, and its last words arrive when it is dead, or not at all.
                await connection.execute(KILL, instance)
                zombie, instance = instance, uuid.uuid4()
                await connection.execute(REGISTER, instance)
                if dice.random() < 0.5:
                    await asyncio.sleep(dice.random() * 0.1)
                    await self._complete(connection, zombie, attempts)
                continue
            await self._end(connection, dice, instance, attempts)

    async def _end(
        self, connection: Connection, dice: random.Random, instance: uuid.UUID, attempts: list[tuple[int, int, int]]
    ) -> None:
        happy, others = [], []
        for job_id, run_lease, lslot in attempts:
            fate = dice.random()
            if fate < 0.85:
                happy.append((job_id, run_lease, lslot))
            else:
                outcome = dice.choice(WAYS_BACK if fate < 0.97 else ENDS)
                others.append({"job_id": job_id, "run_lease": run_lease, **outcome})
        if dice.random() < 0.2:
            await asyncio.sleep(dice.random() * 0.1)
        await self._complete(connection, instance, happy)
        if others:
            settled = await connection.fetch(SETTLE, instance, json.dumps(others))
            self.stats["stale"] += len(others) - len(settled)

    async def _complete(
        self, connection: Connection, instance: uuid.UUID, attempts: list[tuple[int, int, int]]
    ) -> None:
        if attempts:
            job_ids, run_leases, lslots = zip(*attempts, strict=True)
            done = await connection.fetchval(COMPLETE, job_ids, run_leases, lslots, instance) or []
            self.completed.update(done)
            self.stats["stale"] += len(attempts) - len(done)

    async def _rotate(self, connection: Connection, dice: random.Random) -> None:
        for ring, slots in SLOTS.items():
            if await connection.fetchval(TURN, ring) is not None:
                self.stats[f"turns of {ring}"] += 1
            for slot in range(slots):
                outcome = await connection.fetchval(self.truncate, ring, slot)
                self.stats[f"{ring} {outcome}"] += 1

    async def _carry(self, connection: Connection, dice: random.Random) -> None:
        for slot in range(8):
            self.stats["carried bodies"] += await connection.fetchval("SELECT awa_queue.carry_bodies($1, 50)", slot)
            self.stats["parked"] += await connection.fetchval("SELECT awa_queue.park_ready($1, 50)", slot)
        for slot in range(4):
            self.stats["carried leases"] += await connection.fetchval("SELECT awa_queue.carry_leases($1, 50)", slot)

    async def _move(self, connection: Connection, dice: random.Random) -> None:
        self.stats["promoted"] += await connection.fetchval("SELECT moved FROM awa_queue.promote(200)")

    async def _rescue(self, connection: Connection, dice: random.Random) -> None:
        await connection.execute("SELECT awa.bury_instances()")
        self.stats["rescued"] += len(await connection.fetch("SELECT awa_queue.rescue_stale(100, 1000)"))
        await connection.execute("SELECT awa_queue.rescue_deadlines(100, 0, 5)")

    async def _operate(self, connection: Connection, dice: random.Random) -> None:
        paused = not self.produced and dice.random() < 0.3
        await connection.execute(
            "INSERT INTO awa.queues (queue, paused) VALUES ('reports', $1)"
            " ON CONFLICT (queue) DO UPDATE SET paused = excluded.paused",
            paused,
        )
        for job_id in dice.sample(sorted(self.committed), min(2, len(self.committed))):
            cancelled = await connection.fetchval("SELECT awa.cancel_job($1)", job_id)
            self.stats["cancelled by hand"] += cancelled is not None
        failed = await connection.fetchval("SELECT job_id FROM awa_queue.terminal WHERE state = 'failed' LIMIT 1")
        if failed is not None and not self.produced:
            self.stats["retried by hand"] += await connection.fetchval("SELECT awa.retry_job($1)", failed) is not None
        await asyncio.sleep(0.05)

    def faults(self, ended: set[int]) -> dict[str, list[int]]:
        """What went wrong: job ids by kind of fault. `ended`: jobs that failed or were cancelled."""
        return {
            fault: sorted(ids)
            for fault, ids in {
                "lost": self.committed - set(self.completed) - ended,
                "made up": (set(self.claims) | set(self.completed) | ended) - self.committed,
                "of a rolled-back producer": self.undone & set(self.claims),
                "completed twice": {job_id for job_id, times in self.completed.items() if times > 1},
                "ended in two ways": set(self.completed) & ended,
                # Every availability is claimed once: the numbers of a job's claims are 1, 2, 3 …
                "claimed twice": {
                    job_id
                    for job_id, leases in self.claims.items()
                    if sorted(leases) != list(range(1, len(leases) + 1))
                },
            }.items()
            if ids
        }


def outcome_of(run: Run) -> dict[str, list[int]]:
    """Run it, and look at what became of the jobs."""

    async def all_of_it() -> dict[str, list[int]]:
        await run.run()
        connection = await asyncpg.connect(run.url)
        rows = await connection.fetch("SELECT job_id FROM awa_queue.terminal")
        await connection.close()
        return run.faults({row["job_id"] for row in rows})

    print(f"seed {run.seed}")
    # Not asyncio.run: once trio_asyncio is imported, that one runs inside Trio.
    loop = asyncio.SelectorEventLoop()
    try:
        faults = loop.run_until_complete(all_of_it())
    finally:
        loop.close()
    print(len(run.committed), "committed,", len(run.undone), "rolled back,", dict(run.stats))
    return faults


@pytest.fixture
def seed() -> int:
    return int(os.environ.get("AWA_STRESS_SEED", random.randrange(1_000_000)))


def test_no_job_is_lost_doubled_or_made_up(database: str, seed: int) -> None:
    run = Run(database, 30_000, seed)
    assert outcome_of(run) == {}
    assert len(run.committed) >= 30_000
    for busy in (
        "ready truncated",
        "leases truncated",
        "segments truncated",
        "carried bodies",
        "carried leases",
        "rescued",
    ):
        assert run.stats[busy] > 0, busy


BROKEN_TRUNCATION = """
CREATE FUNCTION public.truncate_without_a_look(p_ring text, p_slot integer) RETURNS text LANGUAGE plpgsql AS $$
DECLARE v_name text := CASE p_ring WHEN 'segments' THEN 'bodies' ELSE p_ring END || '_' || p_slot;
BEGIN
    IF awa_queue.current_slot(p_ring) <> p_slot THEN
        EXECUTE format('LOCK TABLE awa_queue.%I IN ACCESS EXCLUSIVE MODE', v_name);
        EXECUTE format('TRUNCATE awa_queue.%I', v_name);
    END IF;
    RETURN 'truncated';
END $$
"""


def test_a_rotation_that_does_not_look_before_it_truncates_is_caught(database: str, seed: int) -> None:
    """The broken twin: the same run finds what it loses."""

    async def break_it() -> None:
        connection = await asyncpg.connect(database)
        await connection.execute(BROKEN_TRUNCATION)
        await connection.close()

    loop = asyncio.SelectorEventLoop()
    loop.run_until_complete(break_it())
    loop.close()
    run = Run(database, 2_000, seed, truncate="SELECT public.truncate_without_a_look($1, $2)")
    faults: dict[str, list[int]] = {}
    try:
        faults = outcome_of(run)
    except* asyncpg.PostgresError as found:
        # Somebody met it first: a body that is gone is an error, never a job that is left out.
        _, others = found.split(lambda error: getattr(error, "sqlstate", None) == "AWA01")
        faults = {"lost": []} if others is None else {}
    assert "lost" in faults
