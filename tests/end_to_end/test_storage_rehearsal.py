"""The move to the queue plane, rehearsed: jobs of all shapes, producers that never stop, workers that die meanwhile."""

import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from command_line import Process, running
from storage_rehearsal import (
    DAY,
    PATIENCE,
    YEAR,
    Errand,
    Seed,
    Watch,
    at_work,
    callbacks,
    claims_that_are_wrong,
    keyed,
    leading,
    producing,
    registry_of,
    rows,
    sow,
    until,
    wait_rows,
)
from storage_states import make_canonical

import awa_actors as awa
from awa_actors.storage_admin import StorageAdmin

pytestmark = pytest.mark.slow

APPS = Path(__file__).parent / "apps"
JOBS = 2000
HELD = 30
WITHOUT_A_CLAIM = "11011000"
"""A mask that a job loses its key under while it runs, and needs it back for every other state in which it lives."""


def seeds() -> list[Seed]:
    """Jobs of all shapes."""
    every = tuple(f"{number:08b}" for number in range(256))
    shapes = [
        Seed("snoozes for ever", 25, Errand("snooze", 0.1)),
        Seed("snoozes for a day", 280, Errand("snooze", DAY)),
        Seed("is tried again at once", 40, Errand("retry", 0.5)),
        Seed("is tried again tomorrow", 180, Errand("retry", DAY)),
        Seed("is due in a year", 400, Errand("done"), delay=YEAR),
        Seed("is due soon", 100, Errand("done"), delay=5.0),
        Seed("parks", 80, Errand("park", 3600.0)),
        Seed("parks in vain", 20, Errand("park", 4.0)),
        Seed("waits for a worker", 100, Errand("done"), queue="later"),
        Seed("unique, asleep", 256, Errand("snooze", DAY), masks=every),
        keyed("unique, ready", "available", Errand("snooze", DAY), queue="later"),
        keyed("unique, due in a year", "scheduled", Errand("done"), delay=YEAR),
        Seed("held by a worker that is killed", HELD, Errand("hold"), queue="killed"),
        Seed("held by a worker that freezes", HELD, Errand("hold"), queue="frozen"),
        Seed("superseded while it runs", 3, Errand("hold"), queue="killed", masks=(WITHOUT_A_CLAIM,) * 3),
    ]
    return [*shapes, Seed("runs once", JOBS - sum(seed.count for seed in shapes), Errand("done"))]


RESTING = (
    *("snoozes for a day", "is tried again tomorrow", "is due in a year", "parks"),
    *("unique, asleep", "unique, due in a year"),
)
"""Shapes that do not run while they move: not a word of them may change."""


@attrs.define
class Rehearsal:
    """What a rehearsal knows."""

    url: str
    client: awa.Client
    watch: Watch
    registry: awa.Registry
    ids: dict[str, list[int]]
    before: dict[int, dict[str, Any]] = attrs.field(factory=dict)
    callbacks: dict[int, str] = attrs.field(factory=dict)
    newer: list[int] = attrs.field(factory=list)

    @property
    def all_ids(self) -> list[int]:
        return [job for ids in self.ids.values() for job in ids]

    async def rest(self) -> None:
        """Wait until what sleeps is asleep, and remember it."""
        for shape in RESTING:
            await wait_rows(
                self.client, self.ids[shape], lambda job: job["state"] in ("scheduled", "retryable", "waiting_external")
            )
            self.before |= await rows(self.client, self.ids[shape])
        self.callbacks = await callbacks(self.client, self.ids["parks"])
        assert len(self.callbacks) == len(self.ids["parks"])

    async def supersede(self) -> None:
        """Enqueue newer jobs with the keys of the running ones that do not hold theirs."""
        for job in (await rows(self.client, self.ids["superseded while it runs"])).values():
            async with self.client.pool.acquire() as session:
                self.newer.append(
                    await session.fetchval(
                        "SELECT ids[1] FROM awa.insert_jobs(ARRAY['{\"what\": \"snooze\", \"seconds\": 86400}'],"
                        " ARRAY['errand'], ARRAY['work'], ARRAY[2::smallint], ARRAY[25::smallint],"
                        " ARRAY[jsonb_build_object('unique_key', ltrim($1, '\\x'), 'unique_states', $2::text)::text])",
                        job["unique_key"], WITHOUT_A_CLAIM,
                    )
                )  # fmt: skip


async def test_everything_moves_and_nothing_is_lost(database: str) -> None:
    make_canonical(database)
    watch = Watch()
    registry = registry_of(watch)
    async with awa.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
        async with client.transaction() as tx:
            await tx.execute("CREATE TABLE runs (job_id bigint, run_lease bigint, PRIMARY KEY (job_id, run_lease))")
            await tx.execute("CREATE TABLE go (n int)")
        rehearsal = Rehearsal(database, client, watch, registry, await sow(client, seeds()))
        assert len(rehearsal.all_ids) == JOBS
        nursery.start_soon(watch.keep_looking, client, rehearsal.all_ids)
        with ExitStack() as stack:
            killed, frozen = (stack.enter_context(victim(database, queue)) for queue in ("killed", "frozen"))
            await move(rehearsal, killed, frozen)
            await afterwards(rehearsal, frozen)
        nursery.cancel_scope.cancel()
    assert watch.wrong == []


def victim(url: str, queue: str) -> Any:
    """A worker that will not see the end of it."""
    options = ("--role", "worker", "--no-maintenance", "--stale-after", "3", "--app", "rehearsal_app:registry")
    return running(*options, "--queue", f"{queue}=40", url=url, cwd=APPS)


async def move(rehearsal: Rehearsal, killed: Process, frozen: Process) -> None:
    """Flip in the middle of the work, take the victims' lives, and wait for the end; processes are of both kinds."""
    client, url, registry = rehearsal.client, rehearsal.url, rehearsal.registry
    storage = client.admin.storage
    async with (
        leading(url, registry, "canonical"),
        at_work(url, registry, "work", "killed-later", storage="canonical", leads=False),
        at_work(url, registry, "work", leads=True),
        producing(client) as produced,
    ):
        await storage.prepare()
        await until(lambda: held(client, 2 * HELD + 3))
        await rehearsal.supersede()
        await rehearsal.rest()
        await until(partial(may_enter, storage))
        killed.signal(signal.SIGKILL)
        frozen.signal(signal.SIGSTOP)
        assert (await storage.enter_mixed_transition()).backlog["running"] >= 2 * HELD
        async with at_work(url, registry, "work", "later", "killed", "frozen", leads=False):
            with running("storage", "finalize", "--wait=1m", url=url) as finalizer:
                status = await trio.to_thread.run_sync(partial(finalizer.ends, PATIENCE))
            assert (status, finalizer.lines[-1]) == (0, "the queue plane is active, for good"), finalizer.lines
            assert (await storage.status()).canonical_live_backlog == 0
            assert len(produced) > 20
            await wait_rows(client, produced[:], lambda job: job["state"] == "completed")


async def may_enter(storage: StorageAdmin) -> bool:
    """Whether the flip would be allowed now."""
    return not (await storage.status()).blockers["enter_mixed_transition"]


async def held(client: awa.Client, jobs: int) -> bool:
    """Whether the victims hold so many jobs."""
    async with client.pool.acquire() as session:
        return bool(await session.fetchval("SELECT count(*) FROM runs") == jobs)


async def afterwards(rehearsal: Rehearsal, frozen: Process) -> None:
    """After the end: what slept is as it was, what snoozes snoozes on, and a late completion changes nothing."""
    client, ids, watch = rehearsal.client, rehearsal.ids, rehearsal.watch
    after = await rows(client, list(rehearsal.before))
    assert {job: row for job, row in after.items() if row != rehearsal.before[job]} == {}
    runs = dict(watch.runs)
    async with at_work(rehearsal.url, rehearsal.registry, "work", "later", "killed", "frozen") as other:
        await until(lambda: ran_again(watch, ids["snoozes for ever"], runs))
        for shape, state in {
            "is due soon": "completed", "runs once": "completed", "waits for a worker": "completed",
            "held by a worker that is killed": "completed", "held by a worker that freezes": "completed",
            "superseded while it runs": "cancelled", "unique, ready": "scheduled",
        }.items():  # fmt: skip
            await wait_rows(client, ids[shape], lambda job, state=state: job["state"] == state)  # type: ignore[misc]  # a default
        await late_completions(rehearsal, frozen)
        await wait_rows(client, ids["parks in vain"], lambda job: job["attempt"] >= 2)
        assert await callbacks(client, ids["parks"]) == rehearsal.callbacks
        for job, callback in rehearsal.callbacks.items():
            done = await other.complete_external(callback, {"seed": job})
            assert (done.id, done.result) == (job, {"seed": job})
    await check(rehearsal)


async def ran_again(watch: Watch, ids: list[int], runs: dict[int, int]) -> bool:
    """Whether every one of these has run since."""
    return all(watch.runs[job] >= runs[job] + 2 for job in ids)


async def late_completions(rehearsal: Rehearsal, frozen: Process) -> None:
    """Let the frozen worker go on: its handlers return, and nobody wants to know."""
    ids = rehearsal.ids["held by a worker that freezes"]
    before = await rows(rehearsal.client, ids)
    async with rehearsal.client.transaction() as tx:
        await tx.execute("INSERT INTO go VALUES (1)")
    frozen.signal(signal.SIGCONT)
    await trio.to_thread.run_sync(frozen.says, "was declared dead")
    assert await rows(rehearsal.client, ids) == before


async def check(rehearsal: Rehearsal) -> None:
    """Everything stands still now: look at every job."""
    client, ids, watch = rehearsal.client, rehearsal.ids, rehearsal.watch
    assert await claims_that_are_wrong(client, [*rehearsal.all_ids, *rehearsal.newer]) == []
    found = await rows(client, rehearsal.all_ids)
    assert len(found) == JOBS
    for shape, jobs in ids.items():
        for number, job in enumerate(jobs):
            assert (found[job]["metadata"], found[job]["tags"]) == (
                {"shape": shape, "n": number},
                [shape, str(number % 7)],
            )
    for job in ids["snoozes for ever"]:
        assert (found[job]["attempt"], found[job]["snoozes"]) == (0, watch.runs[job])
        assert found[job]["progress"]["percent"] == watch.runs[job] % 100
    for job in ids["is tried again at once"]:
        assert found[job]["attempt"] == watch.runs[job] == len(found[job]["errors"])
    for shape in ("held by a worker that is killed", "held by a worker that freezes"):
        for job in ids[shape]:
            assert (found[job]["attempt"], found[job]["run_lease"], found[job]["rescues"]) == (1, 2, 1)
    for job in ids["superseded while it runs"]:
        assert found[job]["errors"][-1]["duplicate"] is True
    assert {row["state"] for row in (await rows(client, rehearsal.newer)).values()} == {"scheduled"}
