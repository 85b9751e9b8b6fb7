"""What follows from rescues: best effort, or through the outbox. Rescues themselves never wait for user code."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from at_work import LIMIT, ask, until
from follow_up_jobs import Notice, Signup, Welcome, enqueued, strand

import awa_actors as awa
from awa_actors.config import MaintenanceSettings

QUICK = MaintenanceSettings(rescue_interval=0.02, promote_interval=3600.0, deadline_margin=0.001)


@asynccontextmanager
async def maintaining(url: str, registry: awa.Registry | None = None) -> AsyncIterator[awa.Client]:
    """A leader, with a registry or without."""
    async with awa.open_client(url, registry=registry) as client, trio.open_nursery() as nursery:
        maintenance = await nursery.start(partial(client.run_maintenance, settings=QUICK))
        await maintenance.wait_leader()
        yield client
        nursery.cancel_scope.cancel()


def noticing(delivery: str = "best_effort") -> awa.Registry:
    registry = awa.Registry("shop")

    @registry.on_rescued_enqueue(Signup, delivery=delivery)
    def note(event: awa.events.Rescued[Signup]) -> Notice:
        return Notice(f"{event.args.user_id} {event.reason} {event.job.state.value}")

    return registry


async def rescued(client: awa.Client, ids: list[int]) -> bool:
    rows = [await client.admin.job(job_id) for job_id in ids]
    return all(row.rescues == 1 for row in rows)


@pytest.mark.parametrize("delivery", ["best_effort", "outbox"])
async def test_a_rescue_is_followed_once(database: str, delivery: str) -> None:
    async with maintaining(database, noticing(delivery)) as client:
        ids = await strand(client, Signup(1), Signup(2))
        await until(lambda: enqueued(client, "notice"))
        await until(lambda: rescued(client, ids))
        notices = await enqueued(client, "notice")
        texts = sorted(one.args["text"] for one in notices)
        assert texts == ["1 stale_instance retryable", "2 stale_instance retryable"]
        assert sorted(one.metadata["awa:follow_up_of"] for one in notices) == ids
        assert await ask(client, "SELECT count(*) FROM awa.rescue_outbox") == 0


async def test_a_deadline_rescue_is_followed_too(database: str) -> None:
    async with maintaining(database, noticing("outbox")) as client:
        await strand(client, Signup(1), is_late=True)
        await until(lambda: enqueued(client, "notice"))
        assert "deadline_exceeded" in (await enqueued(client, "notice"))[0].args["text"]


async def test_an_observer_sees_a_rescue(database: str) -> None:
    registry, seen, observed = awa.Registry(), [], trio.Event()

    @registry.on_event(Signup)
    async def watch(event: awa.Event[Signup]) -> None:
        seen.append(event)
        observed.set()

    async with maintaining(database, registry) as client:
        (job_id,) = await strand(client, Signup(3))
        with trio.fail_after(LIMIT):
            await observed.wait()
    (event,) = seen
    assert isinstance(event, awa.events.Rescued)
    assert (event.job.id, event.args, event.reason) == (job_id, Signup(3), "stale_instance")


async def test_a_pool_only_leader_writes_the_outbox_and_whoever_has_the_spec_drains_it(database: str) -> None:
    registry = noticing("outbox")
    async with awa.open_client(database, registry=registry) as worker:
        await worker.tick()  # this process declares what it has, and is gone before anything happens
    async with maintaining(database) as client:
        ids = await strand(client, Signup(1), Signup(2))
        await until(lambda: rescued(client, ids))
        assert await enqueued(client, "notice") == []
        (waiting,) = await client.admin.follow_up_outbox()
        assert (waiting.kind, waiting.spec, waiting.rows) == ("signup", "shop:note", 2)

        async with (
            awa.open_client(database, registry=registry) as one,
            awa.open_client(database, registry=registry) as two,
            trio.open_nursery() as nursery,
        ):
            for _ in range(3):
                nursery.start_soon(one.tick)
                nursery.start_soon(two.tick)
        assert sorted(job.metadata["awa:follow_up_of"] for job in await enqueued(client, "notice")) == ids
        assert await client.admin.follow_up_outbox() == []


async def test_each_spec_has_its_own_row(database: str) -> None:
    one, two = noticing("outbox"), awa.Registry("audit")
    two.on_rescued_enqueue(Signup, delivery="outbox")(lambda event: Welcome(event.args.user_id))
    for registry in (one, two):
        async with awa.open_client(database, registry=registry) as client:
            await client.tick()
    async with maintaining(database, one) as client:
        (job_id,) = await strand(client, Signup(1))
        await until(lambda: enqueued(client, "notice"))
        assert await enqueued(client) == [], "the other application's closure is not here"
        async with awa.open_client(database, registry=two) as other:
            await other.tick()
        (welcome,) = await enqueued(client)
        assert welcome.metadata["awa:follow_up_of"] == job_id
        assert len(await enqueued(client, "notice")) == 1


async def test_a_tick_delivers_best_effort_follow_ups_of_its_own_rescues(database: str) -> None:
    async with awa.open_client(database, registry=noticing()) as client:
        (job_id,) = await strand(client, Signup(1))
        report = await client.tick()
        assert report.errors == {}
        (notice,) = await enqueued(client, "notice")
        assert notice.metadata["awa:follow_up_of"] == job_id


@pytest.fixture
def hour() -> Iterator[threading.Event]:
    """What a closure waits for that sleeps for an hour; over when the test is."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("delivery", ["best_effort", "outbox"])
async def test_rescues_go_on_while_a_closure_sleeps_for_an_hour(
    database: str, hour: threading.Event, delivery: str
) -> None:
    registry, entered = awa.Registry("shop"), threading.Event()

    @registry.on_rescued_enqueue(Signup, delivery=delivery)
    def sleeps(event: awa.events.Rescued[Signup]) -> Notice:
        entered.set()
        hour.wait(3600)
        return Notice("late")

    registry.on_rescued_enqueue(Welcome, delivery=delivery)(lambda event: Notice("in time"))
    async with maintaining(database, registry) as client:
        first = await strand(client, Signup(1))
        await until(lambda: rescued(client, first))
        with trio.fail_after(LIMIT):
            await trio.to_thread.run_sync(entered.wait)
        more = await strand(client, *(Signup(n) for n in range(2, 30)))
        with trio.fail_after(LIMIT):
            await until(lambda: rescued(client, more))
        assert await enqueued(client, "notice") == []


@pytest.mark.parametrize("delivery", ["best_effort", "outbox"])
async def test_a_sleeping_closure_holds_up_only_itself(
    database: str, hour: threading.Event, delivery: str, short_closures: None
) -> None:
    registry = awa.Registry("shop")

    @registry.on_rescued_enqueue(Signup, delivery=delivery)
    def sleeps(event: awa.events.Rescued[Signup]) -> Notice:
        hour.wait(3600)
        return Notice("late")

    registry.on_rescued_enqueue(Welcome, delivery=delivery)(lambda event: Notice("in time"))
    async with maintaining(database, registry) as client:
        await strand(client, Signup(1))
        await strand(client, Signup(2), Welcome(3))
        await until(lambda: enqueued(client, "notice"))
        assert [one.args["text"] for one in await enqueued(client, "notice")] == ["in time"]


@pytest.fixture
def short_closures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closures are given up at once."""
    from awa_actors.actors.rescued_follow_ups import RescuedFollowUps

    build = RescuedFollowUps.__init__

    def shorter(self: Any, specs: Any) -> None:
        build(self, specs, 0.05)

    monkeypatch.setattr(RescuedFollowUps, "__init__", shorter)


async def test_a_raising_closure_loses_a_best_effort_follow_up_visibly(database: str) -> None:
    registry = awa.Registry("shop")

    @registry.on_rescued_enqueue(Signup)
    def breaks(event: awa.events.Rescued[Signup]) -> Notice:
        if event.args.user_id == 1:
            raise LookupError("no address")
        return Notice("fine")

    async with maintaining(database, registry) as client:
        ids = await strand(client, Signup(1), Signup(2))
        await until(lambda: rescued(client, ids))
        await until(lambda: client.admin.follow_up_failures())
        (failure,) = await client.admin.follow_up_failures()
        assert (failure.job_id, failure.outcome, failure.spec) == (ids[0], "rescued", "shop:breaks")
        assert [one.args["text"] for one in await enqueued(client, "notice")] == ["fine"]


async def test_a_raising_closure_backs_off_and_is_parked(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("awa_actors.actors.rescued_follow_ups.RETRY_FIRST", 0.0)
    registry, tries, is_fixed = awa.Registry("shop"), [], False

    @registry.on_rescued_enqueue(Signup, delivery="outbox")
    def breaks(event: awa.events.Rescued[Signup]) -> Notice:
        tries.append(event.args.user_id)
        if event.args.user_id == 1 and not is_fixed:
            raise LookupError("no address")
        return Notice(str(event.args.user_id))

    async with maintaining(database, registry) as client:
        ids = await strand(client, Signup(1), Signup(2))
        await until(lambda: client.admin.follow_up_failures())
        assert (tries.count(1), tries.count(2)) == (5, 1)
        assert [one.args["text"] for one in await enqueued(client, "notice")] == ["2"]
        assert await client.admin.follow_up_outbox() == []
        (failure,) = await client.admin.follow_up_failures()
        assert (failure.job_id, failure.spec) == (ids[0], "shop:breaks")
        is_fixed = True
        await client.admin.replay_follow_up(failure.id)
        assert [one.args["text"] for one in await enqueued(client, "notice")] == ["2", "1"]


async def test_a_spec_that_no_code_has_any_more_can_be_retired(database: str) -> None:
    async with awa.open_client(database, registry=noticing("outbox")) as client:
        await client.tick()
    async with awa.open_client(database) as client:
        await strand(client, Signup(1), Signup(2))
        await client.tick()
        assert await client.admin.retire_outbox_spec("signup", "shop:note") == 2
        await strand(client, Signup(3))
        await client.tick()
        assert await client.admin.follow_up_outbox() == []
        with pytest.raises(awa.NotFound):
            await client.admin.retire_outbox_spec("signup", "shop:note")


async def test_an_outbox_that_cannot_be_written_does_not_hold_up_a_rescue(database: str) -> None:
    async with awa.open_client(database, registry=noticing("outbox")) as client:
        await client.tick()
        async with client.transaction() as tx:
            await tx.execute("ALTER TABLE awa.rescue_outbox ADD CHECK (reason = 'never')")
        ids = await strand(client, Signup(1))
        await client.tick()
        assert await rescued(client, ids)
