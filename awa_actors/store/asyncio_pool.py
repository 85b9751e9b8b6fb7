"""Connections on a plain asyncio loop, for servers that run on one: the same statements, without Trio in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import attrs

from awa_actors.config import DatabaseSettings
from awa_actors.registry import Registry
from awa_actors.store.failures import is_poisoned, translate
from awa_actors.store.pool import connect_failure, session_parameters
from awa_actors.store.resolve import Resolution, Resolved
from awa_actors.store.resolve_together import Answer, Done, complete_together, resolve_one
from awa_actors.store.trace import Log, close_log, open_log

logger = logging.getLogger("awa_actors.store")

ACQUIRE_BOUND = 5.0
"""Seconds to wait for a free connection before the answer is: not now."""


@attrs.define(eq=False)
class _AsyncioSession:
    """One borrowed connection, with the verbs that a resolution needs."""

    raw: Any
    log: Log | None = None
    broken: bool = False

    async def _call(self, awaitable: Any) -> Any:
        try:
            return await awaitable
        except Exception as error:
            self.broken = self.broken or is_poisoned(error) or self.raw.is_closed()
            translated = translate(error)
            if translated is error:
                raise
            raise translated from error

    async def fetchval(self, sql: str, *args: Any) -> Any:
        return await self._call(self.raw.fetchval(sql, *args))

    async def fetchrow(self, sql: str, *args: Any) -> Any:
        return await self._call(self.raw.fetchrow(sql, *args))

    async def execute(self, sql: str, *args: Any) -> str:
        return str(await self._call(self.raw.execute(sql, *args)))

    async def compute(self, asked: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(asked)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        transaction = self.raw.transaction(isolation="read_committed")
        await self._call(transaction.start())
        if self.log is not None:
            self.log.begin()
        try:
            yield self
        except BaseException:
            if self.log is not None:
                self.log.rolled_back()
            if not self.broken:
                await self._call(transaction.rollback())
            raise
        try:
            await self._call(transaction.commit())
        except BaseException:
            if self.log is not None:
                self.log.rolled_back(perhaps=True)
            raise
        if self.log is not None:
            self.log.committed()


async def _nothing_to_reset(connection: Any) -> None:
    """A resolution leaves no session state behind, so giving a connection back needs no round trip."""


async def _give_back(pool: Any, session: _AsyncioSession) -> None:
    """Give a connection back, or cut it. What has happened on it stays as it is, whatever becomes of the connection."""
    raw = session.raw
    try:
        if session.broken or raw.is_closed() or raw.is_in_transaction():
            raw.terminate()
        await pool.release(raw)
    except Exception:
        logger.debug("a connection was lost when it was given back", exc_info=True)


@attrs.define(eq=False)
class AsyncioPool:
    """A pool on the running asyncio loop, opened at the first use.

    Args:
        url: any Postgres URL, or None for the PG* environment.
        settings: size, timeouts, pooler.
        registry: whose follow-ups are enqueued.
    """

    url: str | None
    settings: DatabaseSettings
    registry: Registry
    _pool: Any = None
    _traced: str | None = attrs.field(
        default=attrs.Factory(lambda self: open_log(self.url), takes_self=True), init=False
    )
    _opening: asyncio.Lock = attrs.field(factory=asyncio.Lock)

    async def resolve(self, resolution: Resolution) -> Done | Resolved:
        """Run a resolution in a transaction of its own.

        Raises:
            TransientStoreError: the database cannot be reached, or no connection became free in time.
        """
        async with self._session() as session:
            return await resolve_one(session, self.registry, resolution)

    async def resolve_together(self, resolutions: Sequence[Resolution]) -> list[Answer]:
        """Run completions in one transaction; see :func:`~awa_actors.store.resolve_together.complete_together`.

        Raises:
            TransientStoreError: as :meth:`resolve`.
        """
        async with self._session() as session:
            return await complete_together(session, self.registry, resolutions)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[_AsyncioSession]:
        pool = await self._opened()
        try:
            raw = await pool.acquire(timeout=ACQUIRE_BOUND)
        except Exception as error:
            raise connect_failure(error) from error
        session = _AsyncioSession(raw, None if self._traced is None else Log(self._traced))
        try:
            yield session
        finally:
            await _give_back(pool, session)

    async def _opened(self) -> Any:
        async with self._opening:
            if self._pool is None:
                parameters = {"application_name": "awa_actors callbacks"}
                if not self.settings.pooler:
                    parameters |= session_parameters(self.settings)
                self._pool = await self._open(parameters)
            return self._pool

    async def _open(self, parameters: dict[str, str]) -> Any:
        settings = self.settings
        try:
            return await asyncpg.create_pool(
                self.url,
                min_size=1,
                max_size=settings.pool_size,
                timeout=settings.connect_timeout,
                command_timeout=settings.statement_timeout + 5.0,
                server_settings=parameters,
                statement_cache_size=0 if settings.pooler else 200,
                max_cached_statement_lifetime=0,
                reset=_nothing_to_reset,
            )
        except Exception as error:
            raise connect_failure(error) from error

    async def close(self) -> None:
        """Close all connections, within a bound."""
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), ACQUIRE_BOUND)
            except TimeoutError:
                self._pool.terminate()
        close_log(self._traced)
