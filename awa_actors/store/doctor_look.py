"""The transaction in which the doctor looks: it writes nothing, cannot hang, and has one server process all along."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from awa_actors.store.pool import Pool, Session

# Set within the transaction, because session settings do not survive a pooler.
BOUNDS = """
SET TRANSACTION READ ONLY; SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = 500; SET LOCAL jit = off
"""


@asynccontextmanager
async def looking(pool: Pool, seconds: float) -> AsyncIterator[Session]:
    """Borrow a connection for one look; each of its statements ends within `seconds`."""
    async with pool.acquire() as session, session.transaction():
        await session.execute(BOUNDS.format(int(seconds * 1000)))
        yield session
