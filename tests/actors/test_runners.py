"""Attempts share a task only while nobody can tell."""

import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from awa_actors.actors.runners import Runners

seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen", default="nothing")


@attrs.define(eq=False)
class Errand:
    """Runs a function and keeps what became of it."""

    work: Callable[[], Awaitable[Any]]
    ended: trio.Event = attrs.field(factory=trio.Event)
    outcome: Any = None
    task: Any = None
    scope: trio.CancelScope | None = None
    keeps_scope: bool = False
    given_up: bool = False
    waited: bool = False

    def run(self, scope: trio.CancelScope) -> Coroutine[Any, Any, Any]:
        return self._run(scope)

    async def _run(self, scope: trio.CancelScope) -> Any:
        self.scope, self.task = scope, trio.lowlevel.current_task()
        try:
            return await self.work()
        except trio.Cancelled:
            return "cancelled"
        except ValueError as error:
            return error

    def waits(self) -> None:
        self.waited = True

    def damaged(self, error: RuntimeError) -> Any:
        return error

    def finish_nowait(self, outcome: Any) -> bool:
        return False

    async def finish(self, outcome: Any) -> None:
        self.outcome = outcome
        self.ended.set()

    def gave_up(self) -> None:
        self.given_up = True


async def quick() -> str:
    return "done"


async def test_handlers_that_never_wait_share_a_task_and_a_scope() -> None:
    errands = [Errand(quick) for _ in range(10)]
    async with trio.open_nursery() as nursery:
        runners = Runners(nursery, lambda: None)
        for errand in errands:
            runners.submit(errand)
    assert [errand.outcome for errand in errands] == ["done"] * 10
    assert len({errand.task for errand in errands}) == 1
    assert len({errand.scope for errand in errands}) == 1
    assert not any(errand.waited for errand in errands)


async def test_handlers_that_wait_run_at_once_each_in_its_own_task_and_scope() -> None:
    release = trio.Event()
    errands = [Errand(release.wait) for _ in range(5)]
    async with trio.open_nursery() as nursery:
        runners = Runners(nursery, lambda: None)
        for errand in errands:
            runners.submit(errand)
        await trio.testing.wait_all_tasks_blocked()
        assert len({errand.task for errand in errands}) == 5
        assert len({errand.scope for errand in errands}) == 5
        assert all(errand.waited for errand in errands)
        release.set()
    assert all(errand.ended.is_set() for errand in errands)


async def test_cancelling_one_waiting_handler_touches_no_other() -> None:
    release = trio.Event()
    doomed, spared, later = Errand(trio.sleep_forever), Errand(release.wait), Errand(quick)
    async with trio.open_nursery() as nursery:
        runners = Runners(nursery, lambda: None)
        for errand in (doomed, spared, later):
            runners.submit(errand)
        await trio.testing.wait_all_tasks_blocked()
        assert doomed.scope is not None
        doomed.scope.cancel()
        await doomed.ended.wait()
        assert doomed.outcome == "cancelled"
        assert not spared.ended.is_set()
        release.set()
    assert later.outcome == "done"
    assert spared.outcome is None


async def test_a_runner_whose_handler_waited_takes_up_work_again_when_nobody_else_does() -> None:
    release = trio.Event()
    first, second = Errand(release.wait), Errand(quick)
    async with trio.open_nursery() as nursery:
        runners = Runners(nursery, lambda: None)
        runners.submit(first)
        await trio.testing.wait_all_tasks_blocked()
        runners.submit(second)
        await second.ended.wait()
        release.set()
        await first.ended.wait()
        third = Errand(quick)
        runners.submit(third)
    assert third.outcome == "done"


async def test_context_variables_do_not_leak_between_handlers_that_share_a_task() -> None:
    found: list[str] = []

    async def look_and_set() -> None:
        found.append(seen.get())
        seen.set("mine")
        await trio.lowlevel.checkpoint()
        found.append(seen.get())

    async def set_without_waiting() -> None:
        found.append(seen.get())
        seen.set("yours")

    async with trio.open_nursery() as nursery:
        runners = Runners(nursery, lambda: None)
        for work in (set_without_waiting, set_without_waiting, look_and_set, set_without_waiting):
            runners.submit(Errand(work))
    assert sorted(found) == ["mine", "nothing", "nothing", "nothing", "nothing"]


async def test_a_handler_that_leaks_a_scope_is_told_and_the_next_runs_outside_of_it() -> None:
    async def leak() -> None:
        trio.CancelScope(deadline=trio.current_time() + 3600).__enter__()

    async def remaining() -> float:
        return trio.current_effective_deadline()

    leaky, innocent = Errand(leak), Errand(remaining)
    async with trio.open_nursery() as nursery:
        runners = Runners(nursery, lambda: None)
        runners.submit(leaky)
        runners.submit(innocent)
    assert isinstance(leaky.outcome, RuntimeError)
    assert innocent.outcome == float("inf")


async def test_an_error_that_must_go_up_gives_its_errand_back() -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    errand = Errand(interrupt)
    with pytest.RaisesGroup(KeyboardInterrupt):
        async with trio.open_nursery() as nursery:
            Runners(nursery, lambda: None).submit(errand)
    assert errand.given_up


async def test_other_tasks_get_their_turn_among_quick_handlers() -> None:
    order: list[str] = []

    async def handler() -> None:
        order.append("handler")

    async def other() -> None:
        order.append("other")

    async with trio.open_nursery() as nursery:
        runners = Runners(nursery, lambda: None)
        for _ in range(200):
            runners.submit(Errand(handler))
        nursery.start_soon(other)
    assert order.index("other") < 130
