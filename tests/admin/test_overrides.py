"""Overrides: what operators set is what running workers follow."""

import uuid
from typing import Any

import attrs
import pytest
import trio
from at_work import LIMIT, Work, becomes, working

import awa_actors as awa
from awa_actors.actors import dispatcher
from awa_actors.actors.tuning import Tuning
from awa_actors.errors import ValidationError
from awa_actors.jobs import JobState
from awa_actors.store.claim import Claim
from awa_actors.store.overrides import NONE, Overrides


@attrs.define
class Dispatcher:
    """Stands for one: keeps what it was told."""

    told: list[Overrides] = attrs.field(factory=list)
    heard: trio.Event = attrs.field(factory=trio.Event)

    def tune(self, overrides: Overrides) -> None:
        self.told.append(overrides)
        self.heard.set()

    async def next(self) -> Overrides:
        with trio.fail_after(LIMIT):
            await self.heard.wait()
        self.heard = trio.Event()
        return self.told[-1]


async def test_setting_replaces_everything_and_clearing_takes_everything_back(client: awa.Client) -> None:
    overrides = client.admin.overrides
    await overrides.set("mail", poll_interval=0.5, rate_limit=10.0)
    assert await overrides.show("mail") == Overrides(poll_interval=0.5, rate_limit=10.0)
    await overrides.set("mail", claim_batch=7, deadline=1.5)
    assert await overrides.show("mail") == Overrides(claim_batch=7, deadline=1.5)
    assert await overrides.clear("mail") is True
    assert await overrides.clear("mail") is False
    assert await overrides.show("mail") == NONE == await overrides.show("never seen")


@pytest.mark.parametrize(
    "wrong",
    [{"poll_interval": 0.0}, {"claim_batch": 0}, {"rate_limit": -1.0}, {"deadline": 0.0}, {"poll_interval": 1e12}],
)
async def test_an_override_that_cannot_work_is_refused(client: awa.Client, wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        await client.admin.overrides.set("mail", **wrong)  # type: ignore[arg-type]  # floats, one of them where an int belongs
    assert await client.admin.overrides.show("mail") == NONE


async def test_dispatchers_are_told_changes_once_and_only_of_their_own_queue(client: awa.Client) -> None:
    mail, bills = Dispatcher(), Dispatcher()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Tuning(client.pool, {"mail": mail, "bills": bills}, refresh=0.01).run)
        await client.admin.overrides.set("mail", claim_batch=3)
        assert (await mail.next()).claim_batch == 3
        await client.admin.overrides.clear("mail")
        assert await mail.next() == NONE
        nursery.cancel_scope.cancel()
    assert len(mail.told) == 2
    assert bills.told == []


class Claims:
    """Stands for the database of a dispatcher: notes how many jobs it asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.changed = trio.Event()

    async def claim(self, session: Any, queue: str, limit: int, instance: uuid.UUID, **options: Any) -> Claim:
        await trio.lowlevel.checkpoint()
        self.asked.append(limit)
        self.changed.set()
        return Claim([], [], instance=instance)

    async def next(self) -> int:
        with trio.fail_after(LIMIT):
            await self.changed.wait()
        self.changed = trio.Event()
        return self.asked[-1]


class Stub:
    """Stands for a connection and a crew that has nothing to run."""

    async def session(self) -> None:
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *error: object) -> None: ...

    def may_claim(self) -> bool:
        return True

    def instance(self) -> uuid.UUID:
        return uuid.UUID(int=1)


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    claims = Claims()
    monkeypatch.setattr(dispatcher, "claim", claims.claim)
    return claims


def dispatching(**settings: Any) -> dispatcher.Dispatcher:
    queue = awa.QueueConfig("default", 50, **{"poll_interval": 60.0, **settings})
    return dispatcher.Dispatcher(queue, Stub(), Stub(), listens=False)  # type: ignore[arg-type]  # stands for both


async def test_a_sleeping_dispatcher_follows_at_once_and_goes_back_to_its_own_settings(
    claims: Claims, nursery: trio.Nursery
) -> None:
    tuned = dispatching()
    await nursery.start(tuned.run)
    assert await claims.next() == 50
    tuned.tune(Overrides(claim_batch=7))
    assert await claims.next() == 7
    tuned.tune(NONE)
    assert await claims.next() == 50
    tuned.stop()


async def test_a_shorter_poll_interval_makes_it_look_more_often(claims: Claims, nursery: trio.Nursery) -> None:
    tuned = dispatching()
    await nursery.start(tuned.run)
    await claims.next()
    tuned.tune(Overrides(poll_interval=0.001))
    for _ in range(3):
        await claims.next()
    tuned.stop()


async def test_a_rate_override_limits_a_queue_without_a_limit_of_its_own(claims: Claims, nursery: trio.Nursery) -> None:
    tuned = dispatching()
    tuned.tune(Overrides(rate_limit=3.0))
    await nursery.start(tuned.run)
    assert await claims.next() == 3
    tuned.stop()


async def test_a_deadline_override_ends_attempts_that_begin_after_it(database: str) -> None:
    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        await trio.sleep_forever()

    async with working(database, registry) as (client, _):
        await client.admin.overrides.set("default", deadline=0.05)
        job = await client.insert(Work(), awa.InsertOpts(max_attempts=1))
        row = await becomes(client, job.id, JobState.FAILED)
    assert "deadline exceeded" in row.errors[-1]["error"]
