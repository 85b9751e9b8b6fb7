"""The life of a process: signals ask it to end, a watchdog sees to it that it does.

The first SIGTERM or SIGINT asks for a drain, a second for an end right now. Both are noticed by a plain signal handler,
since Trio's own receiver sees nothing while a handler blocks the event loop; and a thread has the last word.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any, Protocol

import attrs
import trio

from awa_actors.cli.failures import NO, OK, STOPPED, UNREACHABLE, Failure
from awa_actors.errors import TransientStoreError

FORCE_AFTER = 5.0
"""Seconds after the grace (or after a second signal) until a process that has not ended is ended by force."""
LAST_WORDS = 1.0
"""Seconds that the watchdog's log line may take: a log that nobody reads must not keep the process alive."""
RETRY = 0.5

logger = logging.getLogger("awa_actors.cli")


@attrs.define(eq=False)
class Stop:
    """How often this process was asked to end. Level-triggered: a signal before anybody listens is not lost.

    Source: field report 044.
    """

    asked: int = 0
    noticed: queue.SimpleQueue[int | None] = attrs.field(factory=queue.SimpleQueue)
    _token: trio.lowlevel.TrioToken | None = None
    _changed: trio.Event = attrs.field(factory=trio.Event)

    def signalled(self, number: int, frame: FrameType | None) -> None:
        """Note a signal. May interrupt anything, itself included, so it takes no lock; nor do the calls it makes."""
        self.asked += 1
        self.noticed.put(self.asked)
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._tell)

    def attach(self) -> None:
        """Wake the tasks of the event loop that calls this, from now on."""
        self._token = trio.lowlevel.current_trio_token()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, times: int) -> None:
        """Return when the process was asked `times` times."""
        while self.asked < times:
            await self._changed.wait()


@contextlib.contextmanager
def signals(*more: int) -> Iterator[Stop]:
    """Let SIGTERM and SIGINT (and `more`) ask for the end, for the length of the block."""
    stop = Stop()
    before = {number: signal.signal(number, stop.signalled) for number in (signal.SIGTERM, signal.SIGINT, *more)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def watchdog(
    stop: Stop, grace: float, jobs: Callable[[], list[int]], before_exit: Callable[[], None]
) -> Iterator[None]:
    """End the process with status 75 when the block has not ended in time after a signal.

    Args:
        stop: tells of signals.
        grace: seconds that a drain may take; FORCE_AFTER comes on top.
        jobs: ids of the jobs that run now, asked from the thread.
        before_exit: a last bounded duty.
    """

    def guard() -> None:
        deadline: float | None = None
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                asked = stop.noticed.get(timeout=left)
            except queue.Empty:
                break
            if asked is None:
                return
            allowed = time.monotonic() + FORCE_AFTER + (grace if asked == 1 else 0.0)
            deadline = allowed if deadline is None else min(deadline, allowed)
        telling = threading.Thread(target=_tell_end, args=(jobs,), daemon=True)
        telling.start()
        telling.join(LAST_WORDS)
        before_exit()
        os._exit(STOPPED)

    threading.Thread(target=guard, name="awa watchdog", daemon=True).start()
    try:
        yield
    finally:
        stop.noticed.put(None)


def _tell_end(jobs: Callable[[], list[int]]) -> None:
    ids: list[int] = []
    with contextlib.suppress(RuntimeError):  # the loop may start or end a job while we look
        ids = jobs()
    logger.critical(
        "the event loop has not ended in time: ending by force; unfinished jobs %s are rescued elsewhere",
        ids,
        extra={"job_ids": ids},
    )


class Running(Protocol):
    """What a role gives when it has started."""

    async def drain(self) -> None:
        """Finish what was begun; returns when the role has ended."""

    def jobs(self) -> list[int]:
        """Ids of the jobs that run now."""


Serve = Callable[..., Awaitable[None]]
"""``await nursery.start(serve)`` gives a :class:`Running` handle."""


async def run_until_stopped(
    stop: Stop,
    serve: Serve,
    *,
    ready: Callable[[], Awaitable[None]],
    grace: float,
    connect_timeout: float,
    started: Callable[[Any], Running],
) -> int:
    """Run a role until a signal asks for the end, drain it, and cancel what the grace was too short for.

    Args:
        stop: tells of signals.
        serve: the role.
        ready: returns when the role can be started.
        grace: seconds that the drain may take.
        connect_timeout: seconds during which a start that fails for the moment is tried again.
        started: is given the role's handle; returns what to drain.

    Returns:
        OK when everything asked was drained, STOPPED when attempts had to be cancelled.
    """
    drained = False

    async def drain(running: Running) -> None:
        nonlocal drained
        await running.drain()
        drained = True

    async with trio.open_nursery() as nursery:
        ended = trio.Event()
        handle = await _start(nursery, stop, ready, functools.partial(_serve, serve, ended), connect_timeout)
        if handle is None:
            return OK
        running = started(handle)
        await first(ended.wait, functools.partial(stop.wait, 1))
        if ended.is_set():
            logger.error("the role has ended, although nobody asked for it")
            return NO
        logger.info("asked to end: draining for up to %g s; ask again to end now", grace)
        with trio.move_on_after(grace):
            await first(functools.partial(drain, running), functools.partial(stop.wait, 2))
        if not drained:
            ids = running.jobs()
            why = "asked again" if stop.asked > 1 else f"not drained within {grace:g} s"
            logger.warning("%s: cancelling jobs %s; they are available again at once", why, ids, extra={"job_ids": ids})
        nursery.cancel_scope.cancel()
    return OK if drained else STOPPED


async def _serve(serve: Serve, ended: trio.Event, *, task_status: trio.TaskStatus[Any]) -> None:
    try:
        await serve(task_status=task_status)
    finally:
        ended.set()


async def _start(
    nursery: trio.Nursery, stop: Stop, ready: Callable[[], Awaitable[None]], serve: Serve, connect_timeout: float
) -> Any | None:
    """Start the role, again while only the moment is bad; None when the process was asked to end meanwhile."""
    deadline = trio.current_time() + connect_timeout
    handle: Any | None = None

    async def start() -> None:
        nonlocal handle
        await ready()
        while True:
            try:
                handle = await nursery.start(serve)
                return
            except* TransientStoreError as failures:
                if trio.current_time() >= deadline:
                    raise Failure(str(_leaf(failures)), UNREACHABLE) from failures
                logger.warning("cannot start yet: %s", _leaf(failures))
            await trio.sleep(RETRY)

    await first(start, functools.partial(stop.wait, 1))
    return handle


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def first(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return as soon as one of these has ended; the others are cancelled."""
    async with trio.open_nursery() as nursery:

        async def one(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(one, wait)
