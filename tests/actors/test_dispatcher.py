"""The dispatcher alone: what it claimed ahead is started, forgotten or given back; a stop is never slept through."""

import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
import trio.testing
from at_work import LIMIT

from awa_actors.actors import dispatcher as module
from awa_actors.actors.dispatcher import Dispatcher
from awa_actors.actors.looks import LAG, SHARE
from awa_actors.config import QueueConfig
from awa_actors.errors import TransientStoreError, ValidationError
from awa_actors.store.claim import Claim, Claimed


@attrs.define(eq=False)
class Store:
    """Stands for the database: gives jobs out, and notes what comes back."""

    jobs: list[int] = attrs.field(factory=list)
    failures: list[Exception] = attrs.field(factory=list)
    claims: int = 0
    most: int = 1000
    hints: list[int] = attrs.field(factory=list)
    looked: float = 0.0
    asked: list[list[int]] = attrs.field(factory=list)
    settled: list[int] = attrs.field(factory=list)
    leased: list[tuple[int, int]] = attrs.field(factory=list)

    async def claim(self, session: Any, queue: str, limit: int, instance: uuid.UUID, **options: Any) -> Claim:
        await trio.lowlevel.checkpoint()
        self.claims += 1
        self.asked.append(options["hints"])
        if self.failures:
            raise self.failures.pop(0)
        full = min(limit, self.most)
        taken, self.jobs = self.jobs[:full], self.jobs[full:]
        now = dt.datetime.now(dt.UTC)
        rows = [Claimed(n, 1, 0, 1, 25, 2, "work", "{}", now, None, None, None) for n in taken]
        return Claim(rows, self.hints, now, len(rows) == full, self.looked, instance=instance)

    async def held(self, session: Any, instance: uuid.UUID, queue: str) -> list[tuple[int, int]]:
        await trio.lowlevel.checkpoint()
        return self.leased

    async def settle(self, session: Any, instance: uuid.UUID, entries: list[dict[str, Any]]) -> None:
        await trio.lowlevel.checkpoint()
        self.settled += [entry["job_id"] for entry in entries if entry["give_back"]]


@attrs.define(eq=False)
class Crew:
    """Stands for what runs attempts: keeps every one until the test ends it."""

    started: dict[int, Callable[[], None]] = attrs.field(factory=dict)
    given_back: list[int] = attrs.field(factory=list)
    incarnation: uuid.UUID = attrs.field(factory=uuid.uuid4)

    def start(self, claimed: Claimed, claim: Claim, queue: QueueConfig, done: Callable[[], None]) -> None:
        self.started[claimed.job_id] = done

    def give_back(self, claimed: Claimed, claim: Claim, queue: QueueConfig) -> None:
        self.given_back.append(claimed.job_id)

    def knows(self, key: tuple[int, int]) -> bool:
        return key[0] in self.started

    def may_claim(self) -> bool:
        return True

    def instance(self) -> uuid.UUID:
        return self.incarnation


class Connection:
    """Stands for the dispatcher's own connection."""

    async def session(self) -> None:
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *error: object) -> None: ...


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    for verb in ("claim", "held", "settle"):
        monkeypatch.setattr(module, verb, getattr(store, verb))
    return store


@pytest.fixture
def crew() -> Crew:
    return Crew()


def dispatching(crew: Crew, workers: int) -> Dispatcher:
    queue = QueueConfig("default", workers, poll_interval=60.0)
    return Dispatcher(queue, Connection(), crew, listens=False)  # type: ignore[arg-type]  # stands for a connection


async def holds(condition: Callable[[], bool]) -> None:
    with trio.fail_after(LIMIT):
        while not condition():
            await trio.lowlevel.checkpoint()


async def test_no_more_are_started_than_there_are_permits(store: Store, crew: Crew, nursery: trio.Nursery) -> None:
    store.jobs = list(range(10))
    dispatcher = dispatching(crew, 3)
    await nursery.start(dispatcher.run)
    await holds(lambda: len(crew.started) == 3)
    assert store.claims == 1
    crew.started[0]()
    await holds(lambda: len(crew.started) == 4)
    dispatcher.stop()


async def test_a_claim_that_is_bounded_by_bytes_is_followed_by_the_next_one_at_once(
    store: Store, crew: Crew, nursery: trio.Nursery
) -> None:
    store.jobs, store.most = list(range(7)), 2
    dispatcher = dispatching(crew, 10)
    await nursery.start(dispatcher.run)
    await holds(lambda: len(crew.started) == 7)
    dispatcher.stop()


async def test_one_look_finds_a_lone_job(store: Store, crew: Crew, nursery: trio.Nursery) -> None:
    store.jobs, store.hints = [1], [7]
    dispatcher = dispatching(crew, 10)
    await nursery.start(dispatcher.run)
    await holds(lambda: len(crew.started) == 1)
    await trio.testing.wait_all_tasks_blocked()
    assert store.claims == 1
    store.jobs = [2]
    dispatcher.wake()
    await holds(lambda: len(crew.started) == 2)
    await trio.testing.wait_all_tasks_blocked()
    assert store.claims == 2
    dispatcher.stop()


async def test_what_lies_behind_the_start_of_a_claim_is_found_soon_however_rarely_the_queue_is_polled(
    store: Store, crew: Crew, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    store.jobs, store.most, store.hints, store.looked = list(range(4)), 2, [0, 7, 0, 0], LAG * SHARE
    dispatcher = dispatching(crew, 10)
    await nursery.start(dispatcher.run)
    await trio.sleep(LAG / 2)
    assert store.asked == [[], store.hints, store.hints]
    await trio.sleep(LAG)
    assert store.asked[3:] == [[]]
    await trio.sleep(30)
    assert store.claims == 4, "everything was looked at"
    dispatcher.stop()


async def test_what_was_claimed_ahead_is_started_as_permits_come_back_and_goes_back_when_they_do_not(
    store: Store, crew: Crew, nursery: trio.Nursery
) -> None:
    dispatcher = dispatching(crew, 2)
    dispatcher._quick = True
    store.jobs = list(range(4))
    await nursery.start(dispatcher.run)
    await holds(lambda: store.jobs == [])
    assert list(crew.started) == [0, 1]
    crew.started[0]()
    assert list(crew.started) == [0, 1, 2]
    await holds(lambda: crew.given_back == [3])  # the others are slow
    dispatcher.stop()


async def test_what_was_claimed_ahead_and_cancelled_is_not_started(
    store: Store, crew: Crew, nursery: trio.Nursery
) -> None:
    dispatcher = dispatching(crew, 2)
    dispatcher._quick = True
    store.jobs = list(range(4))
    await nursery.start(dispatcher.run)
    await holds(lambda: store.jobs == [])
    dispatcher.forget(2, 1)
    crew.started[0]()
    assert list(crew.started) == [0, 1, 3]
    dispatcher.stop()


async def test_what_was_claimed_ahead_by_a_dead_incarnation_is_left_to_rescue(
    store: Store, crew: Crew, nursery: trio.Nursery
) -> None:
    dispatcher = dispatching(crew, 2)
    dispatcher._quick = True
    store.jobs = list(range(4))
    await nursery.start(dispatcher.run)
    await holds(lambda: store.jobs == [])
    crew.incarnation = uuid.uuid4()
    crew.started[0]()
    assert list(crew.started) == [0, 1]
    assert crew.given_back == []
    dispatcher.stop()


async def test_a_stop_gives_back_what_was_claimed_ahead_and_starts_nothing_more(
    store: Store, crew: Crew, nursery: trio.Nursery
) -> None:
    dispatcher = dispatching(crew, 2)
    dispatcher._quick = True
    store.jobs = list(range(4))
    await nursery.start(dispatcher.run)
    await holds(lambda: store.jobs == [])
    dispatcher.stop()
    crew.started[0]()
    await holds(lambda: crew.given_back == [2, 3])
    assert list(crew.started) == [0, 1]


async def test_a_queue_that_is_rarely_polled_stays_marked_for_those_who_would_wake_it(
    store: Store, crew: Crew, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MARK_SECONDS", 0.1)
    marks: list[float] = []

    async def mark_asleep(session: object, queue: str, seconds: float) -> None:
        await trio.lowlevel.checkpoint()
        marks.append(trio.current_time())

    monkeypatch.setattr(module, "mark_asleep", mark_asleep)
    queue = QueueConfig("default", 2, poll_interval=600.0)
    dispatcher = Dispatcher(queue, Connection(), crew, listens=True)  # type: ignore[arg-type]  # stands for one
    await nursery.start(dispatcher.run)
    await holds(lambda: len(marks) >= 3)
    dispatcher.stop()


@pytest.mark.parametrize("failures", [0, 3], ids=["idle", "backing off"])
async def test_a_stop_ends_it_at_once_whatever_it_waits_for(store: Store, crew: Crew, failures: int) -> None:
    store.failures = [TransientStoreError("away")] * failures
    dispatcher = dispatching(crew, 2)
    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            await nursery.start(dispatcher.run)
            await trio.testing.wait_all_tasks_blocked()
            dispatcher.stop()


@pytest.mark.parametrize(
    "error", [TransientStoreError("away"), ValidationError("nonsense")], ids=["transient", "other"]
)
async def test_after_a_claim_that_failed_what_nobody_knows_goes_back(
    store: Store, crew: Crew, nursery: trio.Nursery, error: Exception
) -> None:
    """Its answer may have been lost after it was committed: then a live instance holds leases that nobody runs."""
    dispatcher = dispatching(crew, 5)
    store.jobs = [1]
    await nursery.start(dispatcher.run)
    await holds(lambda: 1 in crew.started)
    store.failures, store.leased = [error], [(1, 1), (2, 1)]
    dispatcher.wake()
    await holds(lambda: store.settled == [2])
    await holds(lambda: store.claims >= 3)
    dispatcher.stop()
