"""The asyncio loop under Trio that the driver runs on, and the ways to await the driver from Trio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import outcome
import trio

from awa_actors.store.turned_loop import Overdue, TurnedLoop, can_be_turned

T = TypeVar("T")
CANCEL_GRACE = 0.5
"""Seconds the driver gets to cancel a statement on the server before its connection is cut."""

logger = logging.getLogger("awa_actors.store")


@asynccontextmanager
async def open_driver_loop(turned: bool = can_be_turned()) -> AsyncIterator[asyncio.AbstractEventLoop]:
    """Run an asyncio loop for the body. The body's own error comes out bare.

    Args:
        turned: turn a loop of our own, where the platform can; else use trio_asyncio's, at more than twice the cost.
    """
    if not turned:
        from awa_actors.store.borrowed_loop import open_borrowed_loop

        async with open_borrowed_loop(_log_loop_error) as borrowed:
            yield borrowed
        return
    loop = TurnedLoop()
    loop.set_exception_handler(_log_loop_error)
    stop, ended = trio.CancelScope(), trio.Event()
    # Not in a nursery of this task: whatever cancels the body, its shielded last statements need the loop.
    trio.lowlevel.spawn_system_task(_run_until, loop, stop, ended, name="driver loop")
    try:
        yield loop
    finally:
        with trio.CancelScope(shield=True):
            await loop.wind_up(CANCEL_GRACE)
            stop.cancel()
            await ended.wait()
            loop.close()


async def _run_until(loop: TurnedLoop, stop: trio.CancelScope, ended: trio.Event) -> None:
    try:
        with stop:
            await loop.run()
    finally:
        ended.set()


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what the driver could not raise anywhere; the default handler would end the process."""
    logger.warning("driver loop: %s", context.get("message"), exc_info=context.get("exception"))


async def run_driver(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], cut: Callable[[], None] | None
) -> T:
    """Await any driver coroutine from Trio, in a task of the loop.

    Args:
        loop: the loop of :func:`open_driver_loop`.
        coroutine: what to run.
        cut: ends the connection without waiting; called when a cancelled coroutine does not end within CANCEL_GRACE.

    Cancellation: the coroutine is cancelled (the driver then asks the server to stop) and waited for, never longer than
        CANCEL_GRACE, since `cut` makes it fail.
    Source: field reports 117 and 118.
    """
    task = trio.lowlevel.current_task()
    future = asyncio.ensure_future(coroutine, loop=loop)
    raise_cancel: Callable[[], Any] | None = None

    def finished(done: asyncio.Future[T]) -> None:
        trio.lowlevel.reschedule(task, outcome.capture(done.result))

    def abort(raiser: Callable[[], Any]) -> trio.lowlevel.Abort:
        nonlocal raise_cancel
        raise_cancel = raiser
        future.cancel()
        if cut is not None:
            loop.call_later(CANCEL_GRACE, lambda: None if future.done() else cut())
        return trio.lowlevel.Abort.FAILED

    future.add_done_callback(finished)
    try:
        result: T = await trio.lowlevel.wait_task_rescheduled(abort)
    except BaseException:
        # However a cancelled operation failed (its connection may have been cut), it was cancelled.
        if raise_cancel is not None:
            raise_cancel()
        raise
    return result


async def run_statement(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, T],
    cut: Callable[[], None],
    timeout: float,  # noqa: ASYNC109 - a scope of the caller's would cost a tenth of a short statement
) -> T:
    """Await a coroutine of the driver that only waits for answers: driven here, it needs no task of the loop.

    Args:
        loop: the loop of :func:`open_driver_loop`.
        coroutine: a query; connecting and closing use timeouts of asyncio's, which ask for its task.
        cut: as in :func:`run_driver`.
        timeout: seconds it may take, and a second more.

    Raises:
        Overdue: it took longer; it was then cancelled as by its caller.

    Cancellation: as in :func:`run_driver`.
    Source: ADR 17.
    """
    if not isinstance(loop, TurnedLoop):
        with trio.move_on_after(timeout):
            return await run_driver(loop, coroutine, cut)
        raise Overdue
    deadline = loop.time() + timeout
    raise_cancel: Callable[[], Any] | None = None
    ended = False

    def abort(raiser: Callable[[], Any]) -> trio.lowlevel.Abort:
        nonlocal raise_cancel
        if raise_cancel is None:
            raise_cancel = raiser
            waits_for.cancel()
            # Posting this makes a turn follow, which notices that the wait is over.
            loop.call_later(CANCEL_GRACE, lambda: None if ended else cut())
        return trio.lowlevel.Abort.FAILED

    try:
        while True:
            waits_for = loop.step(coroutine)
            if not waits_for.done():
                await loop.wait_for(waits_for, abort, deadline)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except BaseException:
        if raise_cancel is not None:
            raise_cancel()
        raise
    finally:
        ended = True
