"""The driver's loop where a selector cannot be waited for (Windows): trio_asyncio's, imported only there.

Importing trio_asyncio changes asyncio.run for the whole process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio


@asynccontextmanager
async def open_borrowed_loop(
    report: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object],
) -> AsyncIterator[asyncio.AbstractEventLoop]:
    """Run an asyncio loop for the body, or share the one that already runs in this context.

    The body's own error comes out bare, not wrapped in the group that a nursery would make of it.

    Args:
        report: told what the driver could not raise anywhere; the default handler would end the process.
    """
    import trio_asyncio

    running = trio_asyncio.current_loop.get()
    if running is not None:
        yield running
        return
    failure: Exception | None = None
    async with trio_asyncio.open_loop() as loop:
        loop.set_exception_handler(report)
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
