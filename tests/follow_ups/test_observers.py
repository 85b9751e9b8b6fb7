"""Observation is best effort: slow, raising and flooded observers cost their own events, never an attempt."""

import logging
import sys
from typing import Any

import pytest
import trio
from at_work import LIMIT, becomes, working
from follow_up_jobs import Signup, completed

import awa_actors as awa
from awa_actors.actors import observers as module
from awa_actors.actors.observers import Observers
from awa_actors.jobs import JobState


def observed(*functions: Any) -> awa.Registry:
    registry = awa.Registry()
    for function in functions:
        registry.on_event(Signup)(function)

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None: ...

    return registry


async def test_a_stuck_observer_delays_no_attempt_and_no_drain(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("awa_actors.actors.worker.OBSERVERS_TAIL", 0.05)
    entered = trio.Event()

    async def stuck(event: awa.Event[Signup]) -> None:
        entered.set()
        await trio.sleep_forever()

    async with working(database, observed(stuck), awa.QueueConfig("signup")) as (client, _):
        jobs = await client.insert_many([Signup(n) for n in range(50)])
        with trio.fail_after(LIMIT):
            await entered.wait()
        for job in jobs:
            await becomes(client, job.id, JobState.COMPLETED)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), ExceptionGroup("g", [ValueError()])])
async def test_what_an_observer_raises_is_logged_and_the_next_one_still_sees_the_event(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    async def breaks(event: awa.Event[Signup]) -> None:
        raise error

    async def sees(event: awa.Event[Signup]) -> None:
        seen.append(event)

    observers = Observers(observed(breaks, sees))
    async with trio.open_nursery() as nursery:
        await nursery.start(observers.run)
        observers.tell("signup", completed())
        observers.tell("signup", completed())
        observers.close()
    assert len(seen) == 2
    assert "failed on Completed of job 7" in caplog.text


async def test_a_cancellation_that_an_observer_kept_for_later_ends_nothing() -> None:
    kept: list[trio.Cancelled] = []
    seen: list[Any] = []

    async def keeps(event: awa.Event[Signup]) -> None:
        if not kept:
            with trio.CancelScope() as scope:
                scope.cancel()
                try:
                    await trio.sleep_forever()
                except trio.Cancelled as error:
                    kept.append(error)
                    raise
        raise kept[0]

    async def sees(event: awa.Event[Signup]) -> None:
        seen.append(event)

    observers = Observers(observed(keeps, sees))
    async with trio.open_nursery() as nursery:
        await nursery.start(observers.run)
        observers.tell("signup", completed())
        observers.close()
    assert len(seen) == 1


async def test_an_observer_that_takes_too_long_is_cancelled_and_named(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    async def stuck(event: awa.Event[Signup]) -> None:
        await trio.sleep_forever()

    async def sees(event: awa.Event[Signup]) -> None:
        seen.append(trio.current_time())

    observers = Observers(observed(stuck, sees))
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(observers.run)
        observers.tell("signup", completed())
        observers.close()
    assert seen == [began + module.OBSERVER_LIMIT]
    assert "took longer than 30 s" in caplog.text


async def test_a_flood_is_dropped_counted_and_does_not_flood_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAILBOX", 10)
    seen: list[Any] = []

    async def sees(event: awa.Event[Signup]) -> None:
        seen.append(event)

    observers = Observers(observed(sees))
    with caplog.at_level(logging.WARNING, "awa_actors.observers"):
        for _ in range(1010):
            observers.tell("signup", completed())
    assert observers.dropped == 1000
    assert len(caplog.records) == 10, "at powers of two"
    async with trio.open_nursery() as nursery:
        await nursery.start(observers.run)
        observers.close()
    assert len(seen) == 10


async def test_a_kind_that_nobody_observes_costs_no_event() -> None:
    observers = Observers(awa.Registry())
    assert not observers.wants("signup")
    assert Observers(observed(lambda_stand_in)).wants("signup")


async def lambda_stand_in(event: awa.Event[Signup]) -> None: ...


def test_an_observer_must_be_async_and_take_one_event() -> None:
    registry = awa.Registry()

    def plain(event: awa.Event[Signup]) -> None: ...
    async def two(event: awa.Event[Signup], more: int) -> None: ...

    for wrong in (plain, two, sys):
        with pytest.raises(awa.UsageError):
            registry.on_event(Signup)(wrong)  # type: ignore[arg-type]  # the point
