"""The tasks that attempts run in: a handler that waits keeps its task, and another task takes over the rest.

A handler that never waits needs no task of its own, and cannot be cancelled either, since nothing else runs meanwhile.
So one runner takes attempts one after the other, each in its own context, until a handler waits for the first time:
from then on that task and its cancel scope belong to that attempt alone, and a new runner goes on with the others. What
users see is one task and one scope per attempt; what quick handlers cost is a third of that.
"""

from __future__ import annotations

import contextvars
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

import attrs
import trio

T = TypeVar("T")
TURN = 64
"""Attempts after which a runner lets other tasks run, although no handler waited."""

logger = logging.getLogger("awa_actors.worker")


class Errand(Protocol):
    """One attempt to run."""

    def run(self, scope: trio.CancelScope) -> Coroutine[Any, Any, Any]:
        """Run the handler inside `scope` and decide what to record; lets out only what must end the worker."""

    @property
    def keeps_scope(self) -> bool:
        """Whether the scope was changed (a deadline, a cancellation), so that nobody else may use it."""

    def waits(self) -> None:
        """The handler waits for the first time: from now on it may be cancelled."""

    def damaged(self, error: RuntimeError) -> Any:
        """Decide what to record for a handler that left a scope or nursery of its own open."""

    def finish_nowait(self, outcome: Any) -> bool:
        """Do what `finish` does, if that need not wait; False: nothing was done."""

    async def finish(self, outcome: Any) -> None:
        """Give the permit back and tell what to record; outside the scope, where the attempt is not cancelled."""

    def gave_up(self) -> None:
        """The runner is ending with an error of its own: the attempt goes back."""


class InContext(Generic[T]):
    """Awaits a coroutine in a context of its own, and says when it waits for the first time."""

    __slots__ = ("_coroutine", "_waits")

    def __init__(self, coroutine: Coroutine[Any, Any, T], waits: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._waits = waits

    def __await__(self) -> Generator[Any, Any, T]:
        """Drive the coroutine, handing every wait of it to Trio and every answer back."""
        step = contextvars.copy_context().run
        send: Callable[[Any], Any] = self._coroutine.send
        try:
            request = step(send, None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # the coroutine's own result
        self._waits()
        while True:
            try:
                answer = yield request
            except BaseException as error:  # whatever is thrown in belongs to the coroutine
                follow: Callable[[Any], Any] = self._coroutine.throw
                answer = error
            else:
                follow = send
            try:
                request = step(follow, answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]


@attrs.define(eq=False)
class Runners:
    """Runs errands in the order they come; as many at once as handlers wait.

    Args:
        nursery: where runners are started.
        drain: called when a handler has broken the tree of tasks, so that no more errands come.
    """

    nursery: trio.Nursery
    drain: Callable[[], None]
    _next: deque[Errand] = attrs.field(factory=deque, init=False)
    _active: bool = attrs.field(default=False, init=False)
    _healthy: int = attrs.field(default=0, init=False)
    _alone: trio.Event = attrs.field(factory=trio.Event, init=False)

    def submit(self, errand: Errand) -> None:
        """Run an errand soon; never waits."""
        self._next.append(errand)
        self._ensure_active()

    def _ensure_active(self) -> None:
        if self._next and not self._active:
            self._active = True
            self.nursery.start_soon(self._run, name="attempts")

    async def _run(self) -> None:
        self._healthy += 1
        wrecked = await self._take_errands()
        self._healthy -= 1
        if not self._healthy:
            self._alone.set()
        elif wrecked:
            # Trio ends this task with an error, which takes all its siblings along: not before they have ended.
            await self._alone.wait()

    async def _take_errands(self) -> bool:
        """Take errands while this is the active runner; returns whether one of them has wrecked this task."""
        while self._next:
            errand, outcome, passed_on = await self._share_a_scope()
            if errand is not None:
                await errand.finish(outcome)
            if trio.lowlevel.current_task().child_nurseries:
                logger.error("a nursery was left open, which breaks the tree of tasks: this worker drains and fails")
                self.drain()
                if not passed_on:
                    self._active = False
                self._ensure_active()
                return True
            if passed_on:
                if self._active:
                    return False
                self._active = True
        self._active = False
        return False

    async def _share_a_scope(self) -> tuple[Errand | None, Any, bool]:
        """Run errands in one fresh scope until one of them has used it. That one is left for the caller to finish."""
        passed_on = False
        last: Errand | None = None
        outcome: Any = None

        def pass_on() -> None:
            nonlocal passed_on
            passed_on, self._active = True, False
            if last is not None:
                last.waits()
            self._ensure_active()

        turns = 0
        try:
            with trio.CancelScope() as scope:
                while self._next:
                    last = self._next.popleft()
                    outcome = await self._one(last, scope, pass_on)
                    if passed_on or last.keeps_scope or _leaked(scope):
                        break
                    if not last.finish_nowait(outcome):
                        await last.finish(outcome)
                    last = None
                    turns += 1
                    if turns % TURN == 0:
                        await trio.lowlevel.checkpoint()
        except RuntimeError as damage:  # leaving our scope found another one still open inside it
            if last is None:
                raise
            outcome = last.damaged(damage)
        return last, outcome, passed_on

    async def _one(self, errand: Errand, scope: trio.CancelScope, pass_on: Callable[[], None]) -> Any:
        try:
            return await InContext(errand.run(scope), pass_on)
        except BaseException:
            errand.gave_up()
            raise


def _leaked(scope: trio.CancelScope) -> bool:
    """Whether the handler left a scope or nursery of its own open: then ours is not the innermost any more.

    Looks at two private names of Trio's; where a release has renamed them, leaving our scope finds the damage instead.
    """
    innermost = getattr(trio.lowlevel.current_task(), "_cancel_status", None)
    return innermost is not getattr(scope, "_cancel_status", None)
