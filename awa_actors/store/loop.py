"""The asyncio loop under Trio that the driver runs on, and the one way to await the driver from Trio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import outcome
import trio
import trio_asyncio

T = TypeVar("T")
CANCEL_GRACE = 0.5
"""Seconds the driver gets to cancel a statement on the server before its connection is cut."""

logger = logging.getLogger("awa_actors.store")


@asynccontextmanager
async def open_driver_loop() -> AsyncIterator[asyncio.AbstractEventLoop]:
    """Run an asyncio loop for the body, or share the one that already runs in this context.

    The body's own error comes out bare, not wrapped in the group that a nursery would make of it.
    """
    running = trio_asyncio.current_loop.get()
    if running is not None:
        yield running
        return
    failure: Exception | None = None
    async with trio_asyncio.open_loop() as loop:
        loop.set_exception_handler(_log_loop_error)
        try:
            yield loop
        except Exception as error:
            if _holds_cancellation(error):
                raise
            failure = error
    if failure is not None:
        raise failure


def _holds_cancellation(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_holds_cancellation(leaf) for leaf in error.exceptions)
    return isinstance(error, trio.Cancelled)


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what the driver could not raise anywhere; the default handler would end the process."""
    logger.warning("driver loop: %s", context.get("message"), exc_info=context.get("exception"))


async def run_driver(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], cut: Callable[[], None] | None
) -> T:
    """Await a driver coroutine from Trio.

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
