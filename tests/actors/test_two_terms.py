"""Two terms at once, on purpose: every write of maintenance is its own guard, so nothing is changed twice."""

import datetime as dt
import random
import uuid
from collections import Counter
from functools import partial

import attrs
import orjson
import pytest
import trio
from at_work import ask
from at_work import until as holds
from schedules import EVERY_SECOND, SECOND, Report, database_time, set_mark, stored
from small_load import COMPLETE, GIVE_BACK, RETRY, SNOOZE, Ending, new_instance, take

import awa_actors as awa
from awa_actors.actors.lane import Step
from awa_actors.actors.maintenance import steps
from awa_actors.errors import TransientStoreError
from awa_actors.store.claim import Claimed
from awa_actors.store.complete import complete
from awa_actors.store.pool import Session
from awa_actors.store.settle import settle

SETTINGS = awa.MaintenanceSettings(ring_turn=0.05, completed_retention=1.5, rescue_bound=1_000, batch=50)
"""Short retention and turns, so that slots are carried, emptied and truncated many times."""
ENDINGS: tuple[Ending, ...] = (COMPLETE, COMPLETE, RETRY, SNOOZE, GIVE_BACK)
QUEUE = "work"
LANES = {"promote", "rescue", "hygiene", "cron", "refresh"}


@attrs.frozen
class Task:
    queue = QUEUE
    n: int


@attrs.define(eq=False)
class Load:
    """Workers that complete, give back, retry, snooze, and vanish with what they hold; it keeps the books."""

    client: awa.Client
    inserted: set[int] = attrs.field(factory=set)
    completed: Counter[int] = attrs.field(factory=Counter)
    fires: Counter[dt.datetime] = attrs.field(factory=Counter)
    rescued: int = 0

    async def insert(self, jobs: int, *, late: bool = False) -> None:
        """Insert jobs that are due now, or within half a second."""
        opts = awa.InsertOpts(run_at=dt.timedelta(seconds=0.3)) if late else None
        self.inserted |= {job.id for job in await self.client.insert_many([Task(n) for n in range(jobs)], opts)}

    async def work(self, seed: int, *, vanishes: bool) -> None:
        """Claim and end until cancelled; one that vanishes leaves some batches behind and comes back as another."""
        dice = random.Random(seed)
        async with self.client.pool.acquire() as session:
            instance = await new_instance(session, 0.3)
            while True:
                attempts = await take(session, instance, dice.choice([QUEUE, "default"]), dice.randint(1, 15))
                if vanishes and attempts and dice.random() < 0.1:
                    instance, attempts = await new_instance(session, 0.3), []
                    continue
                await self.end(session, instance, attempts, dice)
                beat = await session.execute(BEAT, instance)
                if beat == "UPDATE 0":  # declared dead on a busy machine: as a worker does, go on as somebody new
                    instance = await new_instance(session, 0.3)

    async def end(self, session: Session, instance: uuid.UUID, attempts: list[Claimed], dice: random.Random) -> None:
        """End attempts in one of the ways each, and note what was completed."""
        done, others = [], []
        for one in attempts:
            outcome = dice.choice(ENDINGS)(dice)
            if outcome is None:
                done.append(one)
            else:
                others.append({"job_id": one.job_id, "run_lease": one.run_lease, **outcome})
        if done:
            ids = [one.job_id for one in done]
            leases, slots = [one.run_lease for one in done], [one.lslot for one in done]
            good, _ = await complete(session, instance, ids, leases, slots)
            for one in done:
                if one.job_id in good and one.kind == "task":
                    self.completed[one.job_id] += 1
                elif one.job_id in good:
                    metadata = orjson.loads(one.extras or "{}")["metadata"]
                    self.fires[dt.datetime.fromisoformat(metadata["cron_fire_time"])] += 1
        if others:
            await settle(session, instance, others)


BEAT = "UPDATE awa.instances SET last_beat_at = clock_timestamp() WHERE id = $1 AND dead_at IS NULL"


@attrs.define(eq=False)
class Term:
    """A leader's lanes without a lease."""

    client: awa.Client
    steps: list[Step]
    moved: Counter[str] = attrs.field(factory=Counter)
    transient: list[str] = attrs.field(factory=list)

    async def run_step(self, step: Step) -> None:
        """One lane, without rest."""
        async with self.client.pool.acquire() as session:
            while True:
                try:
                    report = await step.run(session, SETTINGS.batch)
                    self.moved[step.name] += report.done
                except TransientStoreError as error:  # a lane backs off and tries again
                    self.transient.append(f"{step.name}: {error}")
                # Between them, lanes without any rest would leave nothing of two cores for the load.
                await trio.sleep(0.02)

    async def run(self) -> None:
        """Every lane as its own task."""
        async with trio.open_nursery() as nursery:
            for step in self.steps:
                nursery.start_soon(self.run_step, step)


@pytest.mark.stress
async def test_two_terms_beside_a_load_change_nothing_twice(database: str) -> None:
    registry = awa.Registry()
    registry.cron("seconds", EVERY_SECOND, Report(), missed_fire=awa.MissedFire.CATCH_UP)
    settings = awa.config.DatabaseSettings(pool_size=30)
    async with awa.open_client(database, registry=registry, settings=settings) as client:
        terms = [Term(client, steps(client.pool, SETTINGS, registry)) for _ in range(2)]
        load = Load(client)
        async with trio.open_nursery() as nursery:
            for term in terms:
                nursery.start_soon(term.run)
            for seed in range(4):
                nursery.start_soon(partial(load.work, seed, vanishes=seed == 3))
            while not await client.admin.cron_list():
                await trio.lowlevel.checkpoint()
            begin = (await database_time(client)).replace(microsecond=0) - 100 * SECOND
            await set_mark(client, "seconds", begin)
            for _ in range(12):
                await load.insert(40)
                await load.insert(10, late=True)
            end = (await database_time(client)).replace(microsecond=0)
            await holds(lambda: settled(client, load, end), limit=60)
            await holds(lambda: everything_moved(terms), limit=60)
            nursery.cancel_scope.cancel()
        assert set(load.completed.values()) == {1}, "every job completed, and once"
        fired = {fire: times for fire, times in load.fires.items() if begin < fire <= end}
        assert set(fired) == {begin + n * SECOND for n in range(1, round((end - begin) / SECOND) + 1)}
        # The fire before the mark was moved back is decided twice, on purpose.
        assert sum(fired.values()) - len(fired) <= 1
        moved = terms[0].moved + terms[1].moved
        assert set(moved) >= LANES, moved
        assert min(term.moved["promote"] for term in terms) > 0, "both terms took part"
        assert await ask(client, "SELECT count(*) - count(DISTINCT id) FROM awa.jobs") == 0
        deadlocks = [error for term in terms for error in term.transient]
        assert not deadlocks, deadlocks


async def everything_moved(terms: list[Term]) -> bool:
    """Whether every lane had something to do: a slot is truncated some time after it was found empty."""
    await trio.lowlevel.checkpoint()
    return set(terms[0].moved + terms[1].moved) >= LANES


async def settled(client: awa.Client, load: Load, until: dt.datetime) -> bool:
    """Whether every inserted job is completed, and every fire up to an instant decided and its job completed."""
    if set(load.completed) != load.inserted:
        return False
    mark = (await stored(client, "seconds")).mark
    alive = """
        SELECT EXISTS (SELECT FROM awa.jobs j WHERE j.kind = 'report' AND j.state <> 'completed'
                       AND (j.metadata ->> 'cron_fire_time')::timestamptz <= $1)
    """
    return mark is not None and mark >= until and not await ask(client, alive, until)
