"""The queue plane under fire: nothing committed is lost, nothing is claimed twice, nothing comes from nowhere.

Producers pause and roll back inside their transactions; claimers end attempts in every way, and some die with them;
rings turn, slots are carried and truncated, jobs are promoted, rescued and cancelled, all at once and much faster than
in production.
"""

import datetime as dt
import random
from collections import Counter
from contextlib import suppress

import attrs
import pytest
import trio
from small_load import COMPLETE, FAIL, GIVE_BACK, RETRY, SNOOZE, new_instance, take

import awa_actors as awa
from awa_actors.actors.hygiene import Hygiene
from awa_actors.store.complete import complete
from awa_actors.store.pool import Session
from awa_actors.store.promote import promote
from awa_actors.store.rescue import sweep
from awa_actors.store.settle import settle

JOBS = 30_000
PRODUCERS, CLAIMERS = 8, 4
ENDINGS = [*[COMPLETE] * 12, RETRY, SNOOZE, GIVE_BACK, FAIL]
QUEUES = ("red", "green", "blue")
TURNING = awa.MaintenanceSettings(ring_turn=0.05, completed_retention=3600.0, segment_rows=2_000)
IN_THE_END = "SELECT id, state::text, count(*) OVER (PARTITION BY id) FROM awa.jobs"
BURY = "UPDATE awa.instances SET dead_at = clock_timestamp() WHERE id = $1"


@attrs.frozen
class Shot:
    """Args that mean nothing."""

    n: int


class Rollback(Exception):
    """A producer changes its mind."""


@attrs.define(eq=False)
class Battle:
    """What everybody knows at the end."""

    client: awa.Client
    dice: random.Random
    committed: set[int] = attrs.field(factory=set)
    rolled_back: set[int] = attrs.field(factory=set)
    claims: Counter[tuple[int, int]] = attrs.field(factory=Counter)
    cancelled: int = 0
    deaths: int = 0
    turned: int = 0
    produced: trio.Event = attrs.field(factory=trio.Event)

    async def produce(self) -> None:
        """Transactions of several inserts, with pauses, a fifth of them rolled back."""
        while len(self.committed) < JOBS:
            ids: list[int] = []
            with suppress(Rollback):
                async with self.client.transaction() as tx:
                    for _ in range(self.dice.randint(1, 3)):
                        opts = awa.InsertOpts(queue=self.dice.choice(QUEUES), priority=self.dice.randint(1, 4))
                        if self.dice.random() < 0.2:
                            opts = attrs.evolve(opts, run_at=dt.timedelta(seconds=self.dice.random() / 5))
                        jobs = await tx.insert_many([Shot(n) for n in range(self.dice.randint(1, 40))], opts)
                        ids += [job.id for job in jobs]
                        if self.dice.random() < 0.3:
                            await trio.sleep(self.dice.random() / 20)
                    if self.dice.random() < 0.2:
                        self.rolled_back.update(ids)
                        raise Rollback
                self.committed.update(ids)

    async def claim(self) -> None:
        """Claim, end in every way, and now and then die with everything in hand."""
        async with self.client.pool.acquire() as session:
            instance = await new_instance(session, 3600.0)
            while True:
                attempts = await take(session, instance, self.dice.choice(QUEUES), self.dice.randint(1, 64))
                self.claims.update(one[:2] for one in attempts)
                if not attempts:
                    if self.produced.is_set() and await self.left(session) == 0:
                        return
                    await trio.sleep(0.002)
                elif self.dice.random() < 0.02:
                    self.deaths += 1
                    await session.execute(BURY, instance)
                    instance = await new_instance(session, 3600.0)
                else:
                    ends = [(one, self.dice.choice(ENDINGS)(self.dice)) for one in attempts]
                    done = [one for one, end in ends if end is None]
                    if done:
                        ids, leases = [one.job_id for one in done], [one.run_lease for one in done]
                        await complete(session, instance, ids, leases, [one.lslot for one in done])
                    others = [{"job_id": one[0], "run_lease": one[1], **end} for one, end in ends if end is not None]
                    if others:
                        await settle(session, instance, others)

    async def left(self, session: Session) -> int:
        """Jobs that are not at an end."""
        states = "'completed', 'failed', 'cancelled'"
        return int(await session.fetchval(f"SELECT count(*) FROM awa.jobs WHERE state NOT IN ({states})"))

    async def maintain(self) -> None:
        """Promote, rescue, turn, carry and truncate without pause."""
        hygiene = Hygiene(TURNING)
        async with self.client.pool.acquire() as session:
            while True:
                await promote(session, 500)
                await sweep(session, 500, 1_000, 5.0)
                self.turned += (await hygiene.run(session, 500)).done
                await trio.lowlevel.checkpoint()

    async def cancel(self) -> None:
        """An operator who cancels at random."""
        while not self.produced.is_set():
            if self.committed and await self.client.admin.cancel(self.dice.choice(tuple(self.committed))) is not None:
                self.cancelled += 1
            await trio.sleep(0.02)


@pytest.mark.stress
async def test_nothing_is_lost_doubled_or_made_up(database: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    settings = awa.DatabaseSettings(pool_size=PRODUCERS + CLAIMERS + 6)
    async with awa.open_client(database, settings=settings) as client:
        battle = Battle(client, random.Random(seed))
        with trio.fail_after(150):
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(battle.maintain)
                nursery.start_soon(battle.cancel)
                async with trio.open_nursery() as claiming:
                    for _ in range(CLAIMERS):
                        claiming.start_soon(battle.claim)
                    async with trio.open_nursery() as producing:
                        for _ in range(PRODUCERS):
                            producing.start_soon(battle.produce)
                    battle.produced.set()
                nursery.cancel_scope.cancel()
        async with client.pool.acquire() as session:
            rows = await session.fetch(IN_THE_END)
            slots = await session.fetchval("SELECT count(*) FROM awa_queue.ring_turns")
    ended = {row[0]: row[1] for row in rows}
    counts = f"{len(battle.committed)} jobs, {len(battle.claims)} claims, {battle.deaths} deaths"
    print(f"{counts}, {battle.cancelled} cancelled, {slots} turns kept")
    assert set(ended) == battle.committed
    assert not battle.rolled_back & set(ended)
    assert {row[2] for row in rows} == {1}
    assert set(ended.values()) <= {"completed", "failed", "cancelled"}
    assert set(battle.claims.values()) == {1}
    assert battle.deaths > 0
    assert battle.cancelled > 0
