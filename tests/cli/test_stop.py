"""How a process is asked to end, without a process: the role is a double that does what it is told."""

from collections.abc import Callable

import attrs
import pytest
import trio
import trio.testing

from awa_actors.cli.failures import NO, OK, STOPPED, Failure
from awa_actors.cli.process import Stop, run_until_stopped
from awa_actors.errors import SchemaNotMigrated, TransientStoreError

SIGTERM = 15
DRAINING = 0
"""The step that an endless drain tells of."""


@attrs.define(eq=False)
class Role:
    """A role whose life has numbered steps; `at` is told of each, and may ask for the end there."""

    at: Callable[[int], None]
    draining: trio.Event = attrs.field(factory=trio.Event)
    ended: trio.Event = attrs.field(factory=trio.Event)
    endless: bool = False
    steps: int = 0
    running: int = 0

    async def step(self) -> None:
        self.steps += 1
        self.at(self.steps)
        await trio.lowlevel.checkpoint()

    async def ready(self) -> None:
        for _ in range(3):
            await self.step()

    async def serve(self, *, task_status: trio.TaskStatus["Role"]) -> None:
        self.running += 1
        try:
            for _ in range(3):
                await self.step()
            task_status.started(self)
            for _ in range(3):
                await self.step()
            await self.draining.wait()
        finally:
            self.running -= 1
            self.ended.set()

    async def drain(self) -> None:
        if self.endless:
            self.at(DRAINING)
            await trio.sleep_forever()
        self.draining.set()
        await self.ended.wait()

    def jobs(self) -> list[int]:
        return [7]


async def run(stop: Stop, role: Role, grace: float = 30.0, connect_timeout: float = 30.0) -> int:
    stop.attach()
    with trio.fail_after(10):
        return await run_until_stopped(
            stop,
            role.serve,
            ready=role.ready,
            grace=grace,
            connect_timeout=connect_timeout,
            started=lambda handle: role,
        )


@pytest.mark.parametrize("when", range(1, 10))
async def test_a_stop_at_any_step_of_the_start_ends_the_role_in_order(when: int) -> None:
    stop = Stop()
    role = Role(lambda step: stop.signalled(SIGTERM, None) if step == when else None)
    assert await run(stop, role) == OK
    assert role.running == 0
    # What had started was drained; what had not was cancelled, and whatever never began was not begun.
    assert role.draining.is_set() or when <= 6
    assert role.ended.is_set() or when <= 3


async def test_a_stop_before_the_event_loop_listens_is_not_lost() -> None:
    stop = Stop()
    stop.signalled(SIGTERM, None)
    role = Role(lambda step: None)
    assert await run(stop, role) == OK
    assert role.running == 0


@pytest.mark.parametrize("when", range(7, 10))
async def test_a_second_signal_cancels_what_drains(when: int) -> None:
    stop = Stop()
    role = Role(lambda step: stop.signalled(SIGTERM, None) if step in (when, DRAINING) else None, endless=True)
    assert await run(stop, role) == STOPPED
    assert role.running == 0


async def test_a_grace_that_is_over_cancels_what_drains(autojump_clock: trio.testing.MockClock) -> None:
    stop = Stop()
    role = Role(lambda step: stop.signalled(SIGTERM, None) if step == 9 else None, endless=True)
    began = trio.current_time()
    assert await run(stop, role, grace=3.0) == STOPPED
    assert trio.current_time() - began == pytest.approx(3.0)


async def test_a_role_that_ends_unasked_is_told_and_is_no_success() -> None:
    role = Role(lambda step: None)
    role.draining.set()
    assert await run(Stop(), role) == NO


async def test_a_start_that_fails_for_the_moment_is_tried_again(autojump_clock: trio.testing.MockClock) -> None:
    stop, failures = Stop(), [TransientStoreError("not now")] * 3

    def at(step: int) -> None:
        if step % 3 == 0 and step > 3 and failures:
            raise failures.pop()
        if not failures:
            stop.signalled(SIGTERM, None)

    assert await run(stop, Role(at)) == OK
    assert not failures


async def test_a_start_that_keeps_failing_gives_up_in_time(autojump_clock: trio.testing.MockClock) -> None:
    def at(step: int) -> None:
        if step > 3:
            raise TransientStoreError("not now")

    with pytest.RaisesGroup(pytest.RaisesExc(Failure, match="not now"), flatten_subgroups=True) as caught:
        await run(Stop(), Role(at), connect_timeout=3.0)
    (failure,) = caught.value.exceptions
    while isinstance(failure, BaseExceptionGroup):
        (failure,) = failure.exceptions
    assert isinstance(failure, Failure)
    assert failure.exit_code == 69


async def test_what_no_waiting_changes_is_raised_at_once(autojump_clock: trio.testing.MockClock) -> None:
    def at(step: int) -> None:
        if step > 3:
            raise SchemaNotMigrated("run 'awa-actors migrate'")

    began = trio.current_time()
    with pytest.RaisesGroup(SchemaNotMigrated, flatten_subgroups=True):
        await run(Stop(), Role(at))
    assert trio.current_time() == began
