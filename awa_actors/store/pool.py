"""The only place that owns connections. Acquire, release, begin, commit and rollback have shielded, bounded exits.

A connection whose operation was interrupted is never used again: it is cut, and the next user gets a fresh one.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import attrs
import trio

from awa_actors import config
from awa_actors.errors import SchemaNotMigrated, StoreError, TransientStoreError, UsageError
from awa_actors.store.failures import is_poisoned, translate
from awa_actors.store.loop import run_driver, run_statement
from awa_actors.store.queue_schema import QueueSchema
from awa_actors.store.sqlstates import TRANSIENT
from awa_actors.store.trace import Log, close_log, open_log
from awa_actors.store.turned_loop import Overdue

T = TypeVar("T")
ANSWER_MARGIN = 5.0
"""Seconds beyond the server's own statement timeout after which a server that says nothing counts as gone."""
EXIT_BOUND = 2.0
"""Seconds a rollback, a close or a release may take; then the connection is cut."""

logger = logging.getLogger("awa_actors.store")


@attrs.define(eq=False)
class Session:
    """One connection, owned by one task at a time."""

    raw: asyncpg.Connection[Any]
    _loop: Any
    _timeout: float
    pooler: bool
    schema: QueueSchema = attrs.field(factory=QueueSchema)
    broken: bool = False
    log: Log | None = None
    _busy: bool = False

    async def call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:  # noqa: ASYNC109 - a bound of the driver, not of the caller
        """Await one query of the driver with a deadline.

        Raises:
            StoreError: translated; the connection is marked broken where it cannot be trusted any more.
            TransientStoreError: no answer within the deadline.

        Cancellation: the connection is broken afterwards, unless nothing had been sent yet.
        """
        try:
            # Cancelled before it was sent: the connection stays whole.
            await trio.lowlevel.checkpoint_if_cancelled()
            if self._busy:
                raise UsageError("two tasks use one connection at the same time; give each its own transaction")
        except BaseException:
            coroutine.close()
            raise
        self._busy = True
        try:
            return await run_statement(
                self._loop, coroutine, self.raw.terminate, self._timeout if timeout is None else timeout
            )
        except Overdue:
            self.broken = True
            raise TransientStoreError("the database did not answer in time; try again") from None
        except (trio.Cancelled, KeyboardInterrupt):
            self.broken = True
            raise
        except (TransientStoreError, UsageError):
            raise
        except Exception as error:
            self.broken = self.broken or is_poisoned(error) or self.raw.is_closed()
            translated = translate(error)
            if isinstance(translated, SchemaNotMigrated):
                self.schema.forget()
            if translated is error:
                raise
            raise translated from error
        finally:
            self._busy = False

    async def fetch(self, sql: str, *args: Any) -> list[Any]:
        """Run a query; returns all rows."""
        return await self.call(self.raw.fetch(self.schema.named(sql), *args))

    async def fetchrow(self, sql: str, *args: Any) -> Any:
        """Run a query; returns the first row or None."""
        return await self.call(self.raw.fetchrow(self.schema.named(sql), *args))

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """Run a query; returns the first column of the first row or None."""
        return await self.call(self.raw.fetchval(self.schema.named(sql), *args))

    async def execute(self, sql: str, *args: Any) -> str:
        """Run a statement; returns its command tag."""
        return await self.call(self.raw.execute(self.schema.named(sql), *args))

    async def compute(self, asked: Callable[[], T]) -> T:
        """Run in a thread what takes its time and asks no database."""
        return await trio.to_thread.run_sync(asked)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """Begin at read committed; commit when the body ends, roll back when it raises.

        Cancellation: the commit is shielded and bounded; a body that is cancelled is rolled back.
        """
        await self.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        if self.log is not None:
            self.log.begin()
        try:
            yield self
        except BaseException:
            if self.log is not None:
                self.log.rolled_back()
            await self._roll_back()
            raise
        with trio.CancelScope(shield=True):
            await self._commit()

    async def _commit(self) -> None:
        try:
            await self.execute("COMMIT")
        except BaseException:
            if self.log is not None:
                self.log.rolled_back(perhaps=self.broken)
            raise
        if self.log is not None:
            self.log.committed()

    async def _roll_back(self) -> None:
        if self.broken:
            return
        with trio.move_on_after(EXIT_BOUND, shield=True):
            try:
                await self.execute("ROLLBACK")
            except StoreError:
                self.broken = True
            return
        self.broken = True

    async def close(self) -> None:
        """Close within EXIT_BOUND, else cut. Never raises for a connection that is already gone."""
        with trio.move_on_after(EXIT_BOUND, shield=True):
            try:
                if not self.broken and not self.raw.is_closed():
                    await run_driver(self._loop, self.raw.close(timeout=EXIT_BOUND), self.raw.terminate)
            except Exception:  # closing what is gone tells nothing new
                logger.debug("closing a connection failed", exc_info=True)
        self.cut()

    def cut(self) -> None:
        """End the connection without waiting."""
        self.broken = True
        self.raw.terminate()


@attrs.define(eq=False)
class Pool:
    """A bounded set of connections for work; `connect` opens further ones for a single owner.

    Args:
        url: any Postgres URL, or None for the PG* environment.
        settings: sizes, timeouts, pooler.
        loop: the driver's loop.
    """

    url: str | None
    settings: config.DatabaseSettings
    _loop: Any
    _idle: deque[Session] = attrs.field(factory=deque)
    _permits: trio.Semaphore = attrs.field(
        default=attrs.Factory(lambda self: trio.Semaphore(self.settings.pool_size), takes_self=True)
    )
    _schema: QueueSchema = attrs.field(factory=QueueSchema)
    _closed: bool = False
    _process: int = attrs.field(factory=os.getpid)
    _traced: str | None = attrs.field(
        default=attrs.Factory(lambda self: open_log(self.url), takes_self=True), init=False
    )

    async def connect(self, name: str) -> Session:
        """Open a connection outside the pool's bound; the caller owns and closes it.

        Raises:
            TransientStoreError: the server cannot be reached now.
            StoreError: it refuses us (role, password, database).
        """
        self._check_process()
        settings = self.settings
        parameters = {"application_name": f"awa_actors {name}"}
        if not settings.pooler:
            parameters |= session_parameters(settings)
        opened: list[asyncpg.Connection[Any]] = []

        async def open_connection() -> None:
            opened.append(
                await asyncpg.connect(
                    self.url,
                    timeout=settings.connect_timeout,
                    server_settings=parameters,
                    statement_cache_size=0 if settings.pooler else 200,
                    max_cached_statement_lifetime=0,
                )
            )

        try:
            await run_driver(self._loop, open_connection(), None)
        except trio.Cancelled:
            for raw in opened:
                raw.terminate()
            raise
        except Exception as error:
            raise connect_failure(error) from error
        log = None if self._traced is None else Log(self._traced)
        waits = settings.statement_timeout + ANSWER_MARGIN
        session = Session(opened[0], self._loop, waits, settings.pooler, self._schema, log=log)
        return await self._knowing_its_schema(session)

    async def _knowing_its_schema(self, session: Session) -> Session:
        """Ask once per pool where the queue plane is, and again when it turned out not to be there."""
        if not self._schema.known:
            try:
                await self._schema.learn(session)
            except BaseException:
                session.cut()
                raise
        return session

    def forget_schema(self) -> None:
        """The queue plane may have another schema now: ask before the next statement."""
        self._schema.forget()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Session]:
        """Borrow a connection.

        Cancellation: the connection comes back whole (rolled back) or is replaced; the pool never shrinks.
        """
        session = await self.borrow()
        try:
            yield session
        finally:
            await self.take_back(session)

    async def borrow(self) -> Session:
        """Borrow a connection that :meth:`take_back` must get in any case; `acquire` for one statement costs more."""
        self._check_process()
        try:
            self._permits.acquire_nowait()  # to wait for what is there would cost a turn of the scheduler
        except trio.WouldBlock:
            await self._permits.acquire()
        try:
            if self._closed:
                raise UsageError("the client is closed; open a new one")
            return await self._take()
        except BaseException:
            self._permits.release()
            raise

    async def take_back(self, session: Session) -> None:
        """Take a borrowed connection back, rolled back; it never waits unless there is something to roll back."""
        try:
            if not session.raw.is_closed() and session.raw.is_in_transaction():
                await session._roll_back()
            self._give(session)
        finally:
            self._permits.release()

    def _check_process(self) -> None:
        """A child shares sockets and loop with its parent: one byte sent on them would garble the parent's answers."""
        if os.getpid() != self._process:
            raise UsageError("this client was opened in a parent process; open one in the child, after the fork")

    async def _take(self) -> Session:
        while self._idle:
            session = self._idle.pop()
            if not session.broken and not session.raw.is_closed():
                return await self._knowing_its_schema(session)
            session.cut()
        return await self.connect("pool")

    def _give(self, session: Session) -> None:
        if session.broken or session.raw.is_closed() or self._closed:
            session.cut()
        else:
            self._idle.append(session)

    async def run(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """Borrow a connection for one call. A connection found dead in the pool costs one retry, not an error."""
        async with self.acquire() as session:
            return await work(session)

    async def close(self) -> None:
        """Close all idle connections at once, each within EXIT_BOUND; borrowed ones are cut as they come back."""
        self._closed = True
        sessions: Sequence[Session] = list(self._idle)
        self._idle.clear()
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                for session in sessions:
                    nursery.start_soon(session.close, name="close connection")
        close_log(self._traced)


def session_parameters(settings: config.DatabaseSettings) -> dict[str, str]:
    """Session settings every runtime connection sets at start (not behind a transaction pooler)."""
    return {
        "TimeZone": "UTC",
        "default_transaction_isolation": "read committed",
        "statement_timeout": str(int(settings.statement_timeout * 1000)),
        "lock_timeout": str(int(settings.lock_timeout * 1000)),
        "idle_in_transaction_session_timeout": str(int(settings.idle_in_transaction_timeout * 1000)),
        "client_connection_check_interval": "1000",
        "plan_cache_mode": "force_generic_plan",
        "jit": "off",
    } | ({} if settings.notify else {"awa.notify": "off"})


def connect_failure(error: Exception) -> Exception:
    """Give the error of our tree for what opening a connection raised."""
    for_now = isinstance(error, asyncpg.PostgresError) and error.sqlstate in TRANSIENT
    # Among these is a server that hangs up at once, as a proxy does whose own server is away.
    if for_now or isinstance(error, TimeoutError | OSError):
        return TransientStoreError(f"cannot reach the database: {str(error) or type(error).__name__}")
    if isinstance(error, asyncpg.PostgresError):
        return StoreError(f"the database refused the connection: {error}")
    if isinstance(error, ValueError | asyncpg.InterfaceError):
        return UsageError(f"not a usable database URL: {error}")
    return translate(error) if isinstance(translate(error), Exception) else error  # type: ignore[return-value]  # translate keeps Exceptions
