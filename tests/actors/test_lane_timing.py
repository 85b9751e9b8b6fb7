"""The pace of one lane: how it rests, backs off, fails and recovers. On Trio's mock clock, without a database."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing
from fake_database import FakePool

from awa_actors.actors.lane import Lane, LaneDown, LaneHealth, StepReport
from awa_actors.errors import TransientStoreError


@attrs.define(eq=False)
class Scripted:
    """A step that does what a test says, and remembers when it began."""

    interval: float
    do: Callable[[int], Awaitable[StepReport]]
    name: str = "scripted"
    began: list[float] = attrs.field(factory=list)

    async def run(self, session: Any, rows: int) -> StepReport:
        self.began.append(trio.current_time())
        return await self.do(len(self.began))


def lane_of(step: Scripted, *, vital: bool = False, allowed: int = 5) -> Lane:
    return Lane(step, cast(Any, FakePool()), 100, vital, allowed, LaneHealth())


async def run_for(lane: Lane, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await lane.run()


def gaps(step: Scripted) -> list[float]:
    return [round(later - sooner, 6) for sooner, later in zip(step.began, step.began[1:], strict=False)]


async def nothing(number: int) -> StepReport:
    return StepReport()


async def fails(number: int) -> StepReport:
    raise TransientStoreError("the disk is full")


async def test_a_lane_runs_at_once_and_then_at_its_interval(autojump_clock: trio.testing.MockClock) -> None:
    step = Scripted(5.0, nothing)
    await run_for(lane_of(step), 21)
    assert gaps(step) == [5.0] * 4


async def test_more_to_do_means_no_rest(autojump_clock: trio.testing.MockClock) -> None:
    async def three_times(number: int) -> StepReport:
        return StepReport(100, more=number < 4)

    step = Scripted(5.0, three_times)
    lane = lane_of(step)
    await run_for(lane, 4)
    assert gaps(step) == [0.0] * 3
    assert lane.health.done == 400


async def test_a_step_may_ask_to_come_back_sooner_but_not_later(autojump_clock: trio.testing.MockClock) -> None:
    async def soon_then_late(number: int) -> StepReport:
        return StepReport(wait=0.5 if number == 1 else 60.0)

    step = Scripted(5.0, soon_then_late)
    await run_for(lane_of(step), 6)
    assert gaps(step) == [0.5, 5.0]


async def test_a_wake_up_cuts_a_rest_also_when_it_comes_during_a_pass(autojump_clock: trio.testing.MockClock) -> None:
    lane: Lane

    async def woken_meanwhile(number: int) -> StepReport:
        if number == 1:
            lane.wake()
        await trio.sleep(0.1)
        return StepReport()

    step = Scripted(50.0, woken_meanwhile)
    lane = lane_of(step)
    await run_for(lane, 10)
    assert gaps(step) == [0.1]


async def test_a_sweep_of_two_and_a_half_intervals_keeps_most_of_its_duty(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def slow(number: int) -> StepReport:
        await trio.sleep(12.5)
        return StepReport()

    step = Scripted(5.0, slow)
    await run_for(lane_of(step), 300)
    assert len(step.began) >= 300 / 12.5 / 4
    assert set(gaps(step)) == {18.75}, "it rests half of what it took: it neither spins nor falls silent"


async def test_a_failing_lane_backs_off_to_a_bound(autojump_clock: trio.testing.MockClock) -> None:
    step = Scripted(1.0, fails)
    await run_for(lane_of(step), 60)
    assert gaps(step)[:7] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert max(gaps(step)) == 10.0


async def test_after_three_failures_a_lane_is_unhealthy_by_name_and_a_success_heals_it(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "awa_actors")
    healthy: list[bool] = []
    lane: Lane

    async def four_failures(number: int) -> StepReport:
        healthy.append(bool(lane.health.describe(1.0)["healthy"]))
        if number <= 4:
            raise TransientStoreError("the disk is full")
        return StepReport(7)

    step = Scripted(1.0, four_failures)
    lane = lane_of(step)
    await run_for(lane, 10)
    assert healthy[:5] == [True, True, True, False, False]
    assert all(healthy[5:])
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "lane scripted failed (1): the disk is full",
        "lane scripted failed (2): the disk is full",
        "lane scripted is unhealthy: the disk is full",
        "lane scripted failed (4): the disk is full",
        "lane scripted has recovered",
    ]
    described = lane.health.describe(1.0)
    assert (described["failures"], described["last_error"]) == (0, None)
    assert described["last_success_age"] <= 1.0


async def test_a_bug_in_a_step_is_a_failure_of_its_lane_and_of_nothing_else(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def bug(number: int) -> StepReport:
        raise ZeroDivisionError("oops")

    broken, sound = Scripted(1.0, bug), Scripted(1.0, nothing)
    lane = lane_of(broken)
    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lane.run)
            nursery.start_soon(lane_of(sound).run)
    assert len(sound.began) == 10
    assert "ZeroDivisionError: oops" in str(lane.health.describe(1.0)["last_error"])


async def test_a_vital_lane_that_stays_down_ends_the_term(autojump_clock: trio.testing.MockClock) -> None:
    step = Scripted(1.0, fails)
    with pytest.raises(LaneDown, match="scripted: the disk is full"):
        await run_for(lane_of(step, vital=True, allowed=4), 60)
    assert len(step.began) == 4


async def test_a_lane_that_hangs_is_unhealthy_while_it_hangs(autojump_clock: trio.testing.MockClock) -> None:
    async def hangs(number: int) -> StepReport:
        await trio.sleep_forever()
        raise AssertionError

    lane = lane_of(Scripted(1.0, hangs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run)
        await trio.sleep(69)
        assert lane.health.describe(1.0)["healthy"]
        await trio.sleep(2)
        described = lane.health.describe(1.0)
        assert (described["healthy"], described["running_for"]) == (False, 71.0)
        nursery.cancel_scope.cancel()


async def test_a_lane_leaves_no_connection_behind(autojump_clock: trio.testing.MockClock) -> None:
    pool = FakePool()
    lane = Lane(Scripted(1.0, nothing), cast(Any, pool), 100, False, 5, LaneHealth())
    await run_for(lane, 5)
    assert [session.raw.closed for session in pool.opened] == [True]
