"""A small installation that moves between storage planes under load: its jobs, its watchmen, and what must hold."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import attrs
import orjson
import trio

import awa_actors as awa
from awa_actors.config import MaintenanceSettings, WorkerSettings
from awa_actors.core.leadership import LeaseTiming
from awa_actors.core.liveness import Liveness

PATIENCE = 60.0
"""Seconds that a step of the rehearsal may take on a busy machine."""
LOOK = 0.2
"""Seconds between looks."""
DAY, YEAR = 86_400.0, 31_536_000.0
STATES = ("scheduled", "available", "running", "completed", "retryable", "failed", "cancelled", "waiting_external")
"""In the order of their bits in a unique mask."""
MAINTENANCE = MaintenanceSettings(
    lease=LeaseTiming(3.0, 2.0, 0.5, 0.5), promote_interval=0.2, rescue_interval=0.2, hygiene_interval=1.0
)
LIFE = Liveness(20.0)
"""Of the processes that live: no busy machine may make one of them look dead."""


@attrs.frozen
class Errand:
    """Args of every job: what its handler does, and the seconds that it asks for."""

    what: str
    seconds: float = 0.0


@attrs.frozen
class Seed:
    """Jobs that are there before the move: how many, of what shape, and in which queue."""

    shape: str
    count: int
    args: Errand
    queue: str = "work"
    delay: float | None = None
    masks: tuple[str, ...] = ()
    """Unique masks, one job each; every job has a key of its own."""


def masks(state: str) -> tuple[str, ...]:
    """Every unique mask that a job which is inserted in a state can have."""
    bit = STATES.index(state)
    texts = (f"{number:08b}" for number in range(256))
    return tuple(text for text in texts if text[bit] == "1")


def keyed(shape: str, state: str, args: Errand, queue: str = "work", delay: float | None = None) -> Seed:
    """One unique job per mask."""
    every = masks(state)
    return Seed(shape, len(every), args, queue, delay, every)


async def sow(client: awa.Client, seeds: Iterable[Seed]) -> dict[str, list[int]]:
    """Insert the jobs of all seeds; returns their ids by shape."""
    sown: dict[str, list[int]] = {}
    for seed in seeds:
        opts = []
        for number in range(seed.count):
            one: dict[str, Any] = {
                "metadata": {"shape": seed.shape, "n": number},
                "tags": [seed.shape, str(number % 7)],
            }
            if seed.delay is not None:
                one["delay"] = seed.delay
            if seed.masks:
                one |= {"unique_key": uuid.uuid4().hex, "unique_states": seed.masks[number]}
            opts.append(orjson.dumps(one).decode())
        async with client.pool.acquire() as session:
            sown[seed.shape] = await session.fetchval(
                "SELECT ids FROM awa.insert_jobs($1, ARRAY['errand'], ARRAY[$2], ARRAY[2::smallint],"
                " ARRAY[1000::smallint], $3)",
                [orjson.dumps(attrs.asdict(seed.args)).decode()] * seed.count, seed.queue, opts,
            )  # fmt: skip
    return sown


@attrs.define
class Watch:
    """What the handlers and the watchman have seen.

    Args:
        running: lease of the attempt that a handler of this process has of a job.
        runs: how often a handler has run each job.
        wrong: what must not happen, in words.
    """

    running: dict[int, int] = attrs.field(factory=dict)
    leases: set[tuple[int, int]] = attrs.field(factory=set)
    runs: dict[int, int] = attrs.field(factory=dict)
    wrong: list[str] = attrs.field(factory=list)
    backlog: int | None = None

    def begins(self, job: awa.Job[Any]) -> None:
        """A handler has been given an attempt."""
        if job.id in self.running:
            self.wrong.append(f"job {job.id} runs under the leases {self.running[job.id]} and {job.run_lease}")
        if (job.id, job.run_lease) in self.leases:
            self.wrong.append(f"job {job.id} was given out twice with the lease {job.run_lease}")
        self.running[job.id] = job.run_lease
        self.leases.add((job.id, job.run_lease))
        self.runs[job.id] = self.runs.get(job.id, 0) + 1

    def ends(self, job: awa.Job[Any]) -> None:
        """A handler is done with an attempt."""
        self.running.pop(job.id, None)

    async def look(self, client: awa.Client, ids: list[int]) -> None:
        """See, in one snapshot, that every job is there, and once."""
        async with client.pool.acquire() as session:
            row = await session.fetchrow(
                "SELECT count(*) AS jobs, count(DISTINCT j.id) AS different FROM awa.jobs j WHERE j.id = ANY ($1)", ids
            )
        if (row["jobs"], row["different"]) != (len(ids), len(ids)):
            self.wrong.append(f"of {len(ids)} jobs {row['different']} are there, in {row['jobs']} places")

    async def keep_looking(self, client: awa.Client, ids: list[int]) -> None:
        """Look until cancelled."""
        while True:
            await self.look(client, ids)
            await trio.sleep(LOOK)


def registry_of(watch: Watch) -> awa.Registry:
    """Handlers for every shape, watched."""
    registry = awa.Registry()

    @registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        watch.begins(job)
        try:
            job.set_progress(watch.runs[job.id] % 100)
            match job.args.what:
                case "snooze":
                    return awa.Snooze(job.args.seconds)
                case "retry":
                    return awa.RetryAfter(job.args.seconds, reason="not yet")
                case "park":
                    return awa.WaitForCallback(await job.register_callback(expires_in=job.args.seconds))
                case "work":
                    await trio.sleep(job.args.seconds)
            return None
        finally:
            watch.ends(job)

    return registry


@asynccontextmanager
async def at_work(
    url: str, registry: awa.Registry, *queues: str, storage: str = "auto", leads: bool = True
) -> AsyncIterator[awa.Client]:
    """A worker of one kind, which stands for leadership too unless that is for others."""
    settings = WorkerSettings(liveness=LIFE, storage=storage)
    configs = [awa.QueueConfig(name, max_workers=40, poll_interval=0.2) for name in queues]
    async with awa.open_client(url, registry=registry) as client, trio.open_nursery() as nursery:
        run = partial(client.run_worker, *configs, settings=settings, maintenance=MAINTENANCE if leads else False)
        worker: awa.Worker = await nursery.start(run)
        yield client
        with trio.move_on_after(PATIENCE):
            await worker.drain()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def leading(url: str, registry: awa.Registry, storage: str) -> AsyncIterator[awa.Maintenance]:
    """A leader of one kind."""
    async with awa.open_client(url, registry=registry) as client, trio.open_nursery() as nursery:
        life = WorkerSettings(liveness=LIFE, storage=storage)
        role: awa.Maintenance = await nursery.start(partial(client.run_maintenance, settings=MAINTENANCE, life=life))
        with trio.fail_after(PATIENCE):
            await role.wait_leader()
        yield role
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def producing(client: awa.Client) -> AsyncIterator[list[int]]:
    """Producers that never stop: in the library, and in SQL. Gives the ids of what they have inserted so far."""
    made: list[int] = []

    async def insert() -> None:
        while True:
            made.append((await client.insert(Errand("done"), awa.InsertOpts(queue="work"))).id)
            await trio.sleep(0.03)

    async def insert_by_sql() -> None:
        while True:
            async with client.transaction() as tx:
                made.append(
                    await tx.fetchval(
                        'SELECT id FROM awa.insert_job(\'errand\', \'{"what": "done"}\', \'{"queue": "work"}\')'
                    )
                )
                await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(insert)
        nursery.start_soon(insert_by_sql)
        yield made
        nursery.cancel_scope.cancel()


async def until(holds: Callable[[], Awaitable[bool]], limit: float = PATIENCE) -> None:
    """Wait until a question is answered with yes, without asking so often that it slows the answer down."""
    with trio.move_on_after(limit):
        while True:
            if await holds():
                return
            await trio.sleep(LOOK)
    raise AssertionError(f"did not hold within {limit:g} s: {holds}")


async def rows(client: awa.Client, ids: list[int]) -> dict[int, dict[str, Any]]:
    """Jobs whole, by id."""
    async with client.pool.acquire() as session:
        found = await session.fetch("SELECT to_jsonb(j)::text AS job FROM awa.jobs j WHERE j.id = ANY ($1)", ids)
    jobs = [orjson.loads(row["job"]) for row in found]
    return {job["id"]: job for job in jobs}


async def wait_rows(client: awa.Client, ids: list[int], holds: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until something holds of every one of these jobs."""

    async def all_do() -> bool:
        found = await rows(client, ids)
        return len(found) == len(ids) and all(map(holds, found.values()))

    await until(all_do)


async def callbacks(client: awa.Client, ids: list[int]) -> dict[int, str]:
    """Open callbacks of these jobs."""
    async with client.pool.acquire() as session:
        found = await session.fetch(
            "SELECT job_id, callback_id::text AS id FROM awa_queue.callbacks WHERE job_id = ANY ($1)", ids
        )
    return {row["job_id"]: row["id"] for row in found}


async def flip(storage: Any) -> None:
    """Enter the mixed transition as soon as its gate is open."""

    async def enter() -> bool:
        try:
            return bool(await storage.enter_mixed_transition())
        except awa.StorageGateClosed:
            return False

    await until(enter)


async def claims_that_are_wrong(client: awa.Client, ids: list[int]) -> list[Any]:
    """Jobs whose unique key is held although their state does not hold it, or the other way round."""
    async with client.pool.acquire() as session:
        return [
            tuple(row)
            for row in await session.fetch(
                "SELECT j.id, j.state::text, j.unique_states::text, c.job_id FROM awa.jobs j"
                " LEFT JOIN awa.job_unique_claims c ON c.unique_key = j.unique_key WHERE j.id = ANY ($1)"
                " AND (get_bit(j.unique_states, awa.state_bit(j.state)) = 1) <> (c.job_id IS NOT DISTINCT FROM j.id)",
                ids,
            )
        ]  # fmt: skip
