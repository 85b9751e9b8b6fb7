"""Workers on an installation that has not moved yet, and through its transition: they do not notice."""

import datetime as dt
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, LiteralString

import attrs
import pytest
import trio
from at_work import LIMIT, ask, becomes, until, working
from canonical_plane import CanonicalPlane, flip

import awa_actors as awa
from awa_actors.config import DatabaseSettings, MaintenanceSettings, WorkerSettings
from awa_actors.jobs import JobState
from awa_actors.store.claim import CLAIM, CLAIM_PLANES
from awa_actors.store.pool import Session

SWIFT = MaintenanceSettings(promote_interval=0.05, rescue_interval=0.05)
BACKLOG: LiteralString = "SELECT awa.canonical_live_backlog()"
QUEUE_PLANE: LiteralString = (
    "SELECT (SELECT count(*) FROM awa_queue.bodies) + (SELECT count(*) FROM awa_queue.deferred_jobs)"
)


@attrs.frozen
class Errand:
    queue = "errands"
    what: str = "complete"


@attrs.frozen
class Echo:
    queue = "echoes"
    of: int = 0


@attrs.define
class Shop:
    """Handlers that end in every way, and what they did."""

    registry: awa.Registry = attrs.field(factory=awa.Registry)
    ran: list[tuple[int, str, int]] = attrs.field(factory=list)
    held: trio.Event = attrs.field(factory=trio.Event)
    go_on: trio.Event = attrs.field(factory=trio.Event)
    callbacks: list[str] = attrs.field(factory=list)


@pytest.fixture
def shop() -> Shop:
    shop = Shop()

    @shop.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        shop.ran.append((job.id, job.args.what, job.attempt))
        match job.args.what:
            case "retry" if job.attempt == 1:
                raise ValueError("once")
            case "fail":
                raise awa.TerminalError("no")
            case "snooze":
                return awa.Snooze(0.02)
            case "cancel":
                return awa.Cancel("enough")
            case "hold":
                shop.held.set()
                await shop.go_on.wait()
            case "park" if job.callback_result is None:
                token = await job.register_callback()
                shop.callbacks.append(token.callback_id)
                return awa.WaitForCallback(token)
            case "ask inside":
                token = await job.register_callback()
                shop.callbacks.append(token.callback_id)
                await job.wait_for_callback(token)
        return None

    @shop.registry.on_completed_enqueue(Errand)
    def echo(event: awa.events.Completed[Errand]) -> Any:
        return Echo(event.job.id)

    return shop


async def resolved(client: awa.Client, shop: Shop, count: int) -> None:
    async def all_registered() -> bool:
        return len(shop.callbacks) == count

    await until(all_registered)
    for callback in shop.callbacks:
        await client.resume_external(callback, {"n": 1})


async def test_every_end_is_that_of_a_canonical_job(database: str, plane: CanonicalPlane, shop: Shop) -> None:
    ends = {
        "complete": JobState.COMPLETED, "retry": JobState.COMPLETED, "fail": JobState.FAILED,
        "cancel": JobState.CANCELLED, "park": JobState.COMPLETED, "ask inside": JobState.COMPLETED,
    }  # fmt: skip
    async with working(database, shop.registry, awa.QueueConfig("errands", 8), maintenance=SWIFT) as (client, _):
        jobs = {what: (await client.insert(Errand(what))).id for what in ends}
        snoozing = (await client.insert(Errand("snooze"))).id
        await resolved(client, shop, 2)
        for what, state in ends.items():
            row = await becomes(client, jobs[what], state)
            assert row.run_lease == {"retry": 2, "park": 2}.get(what, 1), row

        async def snoozed() -> bool:
            return (await client.admin.job(snoozing)).snoozes >= 2

        await until(snoozed)
        echoes = {job.args["of"] for job in await client.admin.jobs(kind="echo")}
        assert echoes == {jobs[what] for what, state in ends.items() if state is JobState.COMPLETED}
        assert await ask(client, QUEUE_PLANE) == 0


async def test_a_worker_lives_through_the_whole_transition(
    database: str, plane: CanonicalPlane, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with working(database, shop.registry, awa.QueueConfig("errands", 8), maintenance=SWIFT) as (client, _):
        snoozing, held, inside = await client.insert_many([Errand("snooze"), Errand("hold"), Errand("ask inside")])
        far = await client.insert(Errand(), awa.InsertOpts(run_at=dt.timedelta(days=1)))
        with trio.fail_after(LIMIT):
            await shop.held.wait()
        flip(plane)
        await until(partial(_is, client, BACKLOG, 2))
        shop.go_on.set()
        await resolved(client, shop, 1)
        await until(partial(_is, client, BACKLOG, 0))
        assert plane.row("SELECT state FROM awa.storage_finalize()")["state"] == "active"
        for job in (held, inside):
            assert (await becomes(client, job.id, JobState.COMPLETED)).run_lease == 1
        assert (await client.admin.job(far.id)).state is JobState.SCHEDULED
        asked: list[str] = []
        fetchrow = Session.fetchrow

        async def noting(session: Session, sql: str, *args: Any) -> Any:
            asked.append(sql)
            return await fetchrow(session, sql, *args)

        monkeypatch.setattr(Session, "fetchrow", noting)

        async def one_plane() -> bool:
            return CLAIM in asked

        await until(one_plane)
        after = asked.index(CLAIM)
        count = len(shop.ran)

        async def snoozed_on() -> bool:
            return len(shop.ran) > count + 2 and shop.ran[-1][0] == snoozing.id

        await until(snoozed_on)
        assert CLAIM_PLANES not in asked[after:]


async def _is(client: awa.Client, statement: LiteralString, value: object) -> bool:
    return bool(await ask(client, statement) == value)


@asynccontextmanager
async def canonical_worker(database: str, shop: Shop) -> AsyncIterator[awa.Client]:
    settings = WorkerSettings(storage="canonical")
    queue = awa.QueueConfig("errands", 8, poll_interval=0.02)
    async with working(database, shop.registry, queue, settings=settings) as (client, _):
        yield client


async def test_a_worker_that_knew_the_canonical_plane_alone_drains_it_and_takes_nothing_else(
    database: str, plane: CanonicalPlane, shop: Shop
) -> None:
    async with canonical_worker(database, shop) as client:
        assert await _capability(client) == ("canonical", "canonical")
        held = await client.insert(Errand("hold"))
        with trio.fail_after(LIMIT):
            await shop.held.wait()
        old = await client.insert(Errand("retry"))
        flip(plane)
        new = await client.insert(Errand())
        await becomes(client, old.id, JobState.RETRYABLE)
        shop.go_on.set()
        await becomes(client, held.id, JobState.COMPLETED)
        assert (await client.admin.job(new.id)).state is JobState.AVAILABLE
        assert await ask(client, BACKLOG) == 0

        async def told() -> bool:
            return await _capability(client) == ("canonical_drain_only", "canonical")

        await until(told)


async def _capability(client: awa.Client) -> tuple[str, str]:
    (instance,) = await client.admin.instances()
    return instance.details["storage"], instance.details["storage_role"]


async def test_a_follow_up_that_is_refused_takes_its_end_back_in_this_plane_too(
    database: str, plane: CanonicalPlane, shop: Shop
) -> None:
    plane.rows(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.kind = 'echo' THEN RAISE check_violation; END IF; RETURN NEW; END $$"
    )
    plane.rows("CREATE TRIGGER refuse BEFORE INSERT ON awa.jobs_hot FOR EACH ROW EXECUTE FUNCTION public.refuse()")
    async with working(database, shop.registry, awa.QueueConfig("errands", 8)) as (client, _):
        job = await client.insert(Errand())
        row = await becomes(client, job.id, JobState.RETRYABLE)
        assert "follow-up" in row.errors[-1]["error"]
        assert await client.admin.jobs(kind="echo") == []


async def test_an_end_whose_connection_is_killed_is_recorded_once(
    database: str, plane: CanonicalPlane, shop: Shop
) -> None:
    async with working(database, shop.registry, awa.QueueConfig("errands", 8)) as (client, _):
        job = await client.insert(Errand("hold"))
        with trio.fail_after(LIMIT):
            await shop.held.wait()
        plane.rows("BEGIN")
        plane.rows("SELECT FROM awa.jobs_hot WHERE job_id = %s FOR UPDATE", job.id)
        shop.go_on.set()
        waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name ~ 'completer'"

        async def killed() -> bool:
            return bool(await ask(client, f"SELECT count(pg_terminate_backend(pid)) FROM ({waits}) w"))

        await until(killed)
        plane.rows("COMMIT")
        assert (await becomes(client, job.id, JobState.COMPLETED)).run_lease == 1
        assert len(await client.admin.jobs(kind="echo")) == 1


async def test_a_stopped_worker_gives_canonical_attempts_back(database: str, plane: CanonicalPlane, shop: Shop) -> None:
    async with awa.open_client(database, registry=shop.registry) as client:
        job = await client.insert(Errand("hold"))
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(client.run_worker, awa.QueueConfig("errands", 1), maintenance=False))
            with trio.fail_after(LIMIT):
                await shop.held.wait()
            nursery.cancel_scope.cancel()
        row = await client.admin.job(job.id)
    assert (row.state, row.attempt, row.interrupted) == (JobState.AVAILABLE, 0, 1)


async def test_operators_see_and_do_the_same_in_both_planes(database: str, plane: CanonicalPlane) -> None:
    (waiting,) = plane.insert(queue="left")
    later = plane.job(queue="left", delay=60.0, unique_key="aa")
    flip(plane)
    (new,) = plane.insert(queue="left")
    async with awa.open_client(database) as client:
        assert {job.id for job in await client.admin.jobs(queue="left")} == {waiting, later, new}
        (stats,) = await client.admin.queue_stats()
        assert (stats.available, stats.scheduled) == (2, 1)
        retried = await client.admin.retry(later)
        assert retried is not None
        assert retried.state is JobState.AVAILABLE
        cancelled = await client.admin.cancel(waiting)
        assert cancelled is not None
        assert cancelled.state is JobState.CANCELLED
    refreshed = plane.value("SELECT awa.refresh_queue_stats()")
    assert refreshed == 1
    assert plane.row("SELECT available, scheduled, cancelled FROM awa.queue_stats") == {
        "available": 2, "scheduled": 0, "cancelled": 1,
    }  # fmt: skip
    assert plane.value(BACKLOG) == 0


async def test_completed_history_of_this_plane_goes_with_its_retention(database: str, plane: CanonicalPlane) -> None:
    job_id = plane.job(unique_key="aa")
    assert plane.complete([plane.take(job_id)]) == {job_id}
    assert plane.holder(b"\xaa") == job_id
    keeping, forgetting = MaintenanceSettings(), MaintenanceSettings(completed_retention=1e-6)
    async with awa.open_client(database, settings=DatabaseSettings(pool_size=1)) as client:
        for settings, kept in ((keeping, 1), (forgetting, 0)):
            await client.tick(settings=settings)
            assert plane.value("SELECT count(*) FROM awa.jobs_hot") == kept
    assert plane.holder(b"\xaa") is None


async def test_a_fresh_database_begins_on_the_canonical_plane(empty_database: str) -> None:
    async with awa.open_client(empty_database) as client:
        for _ in range(2):
            await client.migrate(storage="canonical")
            assert await ask(client, "SELECT state FROM awa.storage_transition_state") == "canonical"
        await client.insert(Errand())
        assert await ask(client, "SELECT count(*) FROM awa.jobs_hot") == 1


async def test_a_database_that_has_been_used_does_not_begin_again(database: str) -> None:
    async with awa.open_client(database) as client:
        await client.insert(Errand())
        with pytest.raises(awa.errors.UsageError, match="only a fresh database"):
            await client.migrate(storage="canonical")


def test_a_runtime_has_one_of_two_roles() -> None:
    with pytest.raises(awa.errors.UsageError, match="auto or canonical"):
        WorkerSettings(storage="queue")
