"""An asyncio loop that Trio turns: asyncpg runs on it in Trio's own thread, without a thread or a scheduler in between.

Its selector is itself a file that can be waited for. A task of Trio's waits for that, and lets the loop make its turns
only while there is something to do. What users of the driver await is driven in their own task.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import selectors
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import trio

T = TypeVar("T")
RECEIVE_BYTES = 64 * 1024
"""Most bytes taken from a socket at once. What the stock loop asks for, four times as much, is mapped and unmapped by
the system for every answer, however short: a quarter of what a short statement costs."""
LAST_TURNS = 100
"""Turns a closing loop makes for what was posted last, such as the ends of connections that were cut."""


WATCH_EVERY = 1.0
"""Seconds between looks for what was not answered in time."""
Abort = Callable[[Callable[[], Any]], trio.lowlevel.Abort]


class Overdue(Exception):
    """A statement was not answered in time."""


def _raise_overdue() -> None:
    raise Overdue


class _Wait(NamedTuple):
    task: trio.lowlevel.Task
    abort: Abort
    deadline: float


def can_be_turned() -> bool:
    """Whether this platform's selector can be waited for."""
    return hasattr(selectors.DefaultSelector, "fileno")


class _Selector(selectors.DefaultSelector):
    """Every turn of a loop begins with a look at its sockets."""

    at_a_look: Callable[[], None] | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.at_a_look is not None:
            self.at_a_look()
        return super().select(timeout)


class TurnedLoop(asyncio.SelectorEventLoop):
    """Made by :func:`~awa_actors.store.loop.open_driver_loop`; `run` must be running while it is used."""

    def __init__(self) -> None:
        """Make a loop that nobody turns yet."""
        self._turning = self._posted = False
        self._kicked = trio.Event()
        self._due: list[float] = []
        self._awaited: dict[asyncio.Future[Any], _Wait] = {}
        self._is_watched = False
        self._file: int = 0
        self.looks = _Selector()
        super().__init__(self.looks)
        self._file = self.looks.fileno()
        # Where asyncio's own loop has kept what is ready since it exists; not documented, so not taken for granted.
        self._has_queues = hasattr(self, "_ready") and hasattr(self, "_process_events")

    async def run(self) -> None:
        """Turn whenever a socket is ready, a timer is due or somebody has posted something; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._turn_when_ready, name="driver loop, sockets")
            nursery.start_soon(self._turn_when_due, name="driver loop, timers")

    async def _turn_when_ready(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._file)
            self.look()

    async def _turn_when_due(self) -> None:
        while True:
            with trio.move_on_after(max(0.0, self._due[0] - self.time()) if self._due else math.inf):
                await self._kicked.wait()
            self._kicked = trio.Event()
            while self._due and self._due[0] <= self.time():
                heapq.heappop(self._due)
            self.turn()

    def call_soon(  # type: ignore[override]  # typeshed knows how many arguments go with which callback
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Post a callback; outside a turn that makes one follow."""
        self._posted = True
        if not self._turning:
            self._kicked.set()
        return super().call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Post a callback for an instant of this loop's clock."""
        heapq.heappush(self._due, when)
        self._kicked.set()
        return super().call_at(when, callback, *args, context=context)

    @trio.lowlevel.enable_ki_protection
    def turn(self) -> None:
        """Run what is ready, and what that posts, until nothing is; never waits."""
        with _Running(self, None) as running:
            self._turning = self._posted = True
            try:
                while self._posted:
                    running.begin()
                    self._posted = False
                    super().call_soon(self.stop)
                    self.run_forever()
            finally:
                self._turning = False
        if self._awaited:
            self._wake()

    @trio.lowlevel.enable_ki_protection
    def look(self) -> None:
        """Run what sockets bring, and what that posts; timers have to wait for a turn. Never waits.

        The same with less ceremony, since every answer of a database comes this way: a turn is run_forever, twice.
        """
        if not self._has_queues:
            return self.turn()
        with _Running(self, self):
            self._turning = True
            try:
                self._process_events(self.looks.select(0))  # type: ignore[attr-defined]  # see __init__
                ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
                while ready:
                    if not (handle := ready.popleft()).cancelled():
                        handle._run()
            finally:
                self._turning = False
        if self._awaited:
            self._wake()

    async def wait_for(self, awaited: asyncio.Future[Any], abort: Abort, deadline: float) -> None:
        """Wait until a future is done that turns resolve, as those of the driver are.

        No callback of the future's own: that would be another turn of the loop, half of what the first one costs. No
        scope with a deadline either: a look at all of them every second is cheaper than one of them.

        Args:
            awaited: the future.
            abort: as :func:`trio.lowlevel.wait_task_rescheduled` takes it.
            deadline: of this loop's clock; `abort` is called for it, up to WATCH_EVERY late, and given what raises
                Overdue.
        """
        self._awaited[awaited] = _Wait(trio.lowlevel.current_task(), abort, deadline)
        if not self._is_watched:
            self._is_watched = True
            self.call_later(WATCH_EVERY, self._watch)
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _wake(self) -> None:
        for awaited in [one for one in self._awaited if one.done()]:
            trio.lowlevel.reschedule(self._awaited.pop(awaited).task)

    def _watch(self) -> None:
        for wait in list(self._awaited.values()):
            if wait.deadline <= self.time():
                wait.abort(_raise_overdue)
        self._is_watched = bool(self._awaited)
        if self._is_watched:
            self.call_later(WATCH_EVERY, self._watch)

    @trio.lowlevel.enable_ki_protection
    def step(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Drive a coroutine up to its next wait, and return what it waits for.

        Raises:
            StopIteration: it has returned.
        """
        with _Running(self, self):
            waits_for = coroutine.send(None)
        if waits_for is None:  # it only lets others run
            waits_for = self.create_future()
            self.call_soon(waits_for.set_result, None)
        else:
            waits_for._asyncio_future_blocking = False  # says to the future that its wait was noticed
        return waits_for  # type: ignore[no-any-return]

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """Connect; see RECEIVE_BYTES."""
        return _frugal(await super().create_connection(*args, **options))

    async def create_unix_connection(self, *args: Any, **options: Any) -> Any:
        """Connect; see RECEIVE_BYTES."""
        return _frugal(await super().create_unix_connection(*args, **options))

    async def wind_up(self, seconds: float) -> None:
        """Cancel what still runs, wait for it at most so long, and let what was cut end. `run` is running still."""
        for task in (left := asyncio.all_tasks(self)):
            task.cancel()
        with trio.move_on_after(seconds):
            while not all(task.done() for task in left):
                ended = trio.Event()
                for task in left:
                    task.add_done_callback(lambda _, ended=ended: ended.set())  # type: ignore[misc]
                await ended.wait()
                left = {task for task in left if not task.done()}
        for _ in range(LAST_TURNS):
            self.turn()
            if not self._kicked.is_set():
                break
            self._kicked = trio.Event()


class _Running:
    """Makes code see a loop as the running one: the thread's own notion of it, and trio_asyncio's where that is in use.

    Where somebody has imported trio_asyncio, it answers the question which loop runs from the context of Trio's task.
    """

    __slots__ = ("_before", "_context", "_inside", "_loop", "_shown", "_task")

    def __init__(self, loop: TurnedLoop, shown: TurnedLoop | None) -> None:
        self._loop, self._shown = loop, shown
        self._task: trio.lowlevel.Task | None = None

    def __enter__(self) -> _Running:
        other = sys.modules.get("trio_asyncio")
        if other is None:
            self._before = asyncio._get_running_loop()
        else:
            self._before, self._task = None, trio.lowlevel.current_task()
            self._context = self._task.context
            self._inside = contextvars.Context()
            self._inside.run(other.current_loop.set, self._loop)
            self._task.context = contextvars.Context() if self._shown is None else self._inside
        asyncio._set_running_loop(self._shown)
        return self

    def begin(self) -> None:
        """The loop is about to run by itself: it insists that none runs before, and to its callbacks it is the one."""
        if self._task is not None:
            self._task.context = contextvars.Context()
            self._loop.looks.at_a_look = self._let_in

    def _let_in(self) -> None:
        assert self._task is not None
        self._task.context = self._inside
        self._loop.looks.at_a_look = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.context = self._context
        asyncio._set_running_loop(self._before)


def _frugal(connected: tuple[Any, Any]) -> tuple[Any, Any]:
    transport, _ = connected
    if hasattr(transport, "max_size"):
        transport.max_size = RECEIVE_BYTES
    return connected
