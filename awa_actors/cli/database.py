"""Which database a command means, and how long it waits for it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import trio

from awa_actors.cli.failures import UNREACHABLE, Failure
from awa_actors.cli.logs import configure
from awa_actors.cli.placement import Shared
from awa_actors.client import Client, open_client
from awa_actors.config import DatabaseSettings
from awa_actors.errors import StoreError, TransientStoreError, UsageError
from awa_actors.private_postgres import PrivatePostgres
from awa_actors.registry import Registry

T = TypeVar("T")
PG_VARIABLES = ("PGHOST", "PGPORT", "PGDATABASE", "PGUSER", "PGPASSWORD", "PGPASSFILE", "PGSERVICE")
CONNECT_BOUND = 10.0
"""Seconds one attempt to connect may take, so that a network that swallows packets is noticed."""
RETRY_FIRST, RETRY_MOST = 0.2, 2.0
FORCED_STOP = 3.0
"""Seconds a private server gets to stop when its process is ended by force."""
READ_ONLY = "the database is read-only (a standby, or default_transaction_read_only): name the primary"

logger = logging.getLogger("awa_actors.cli")


class Database:
    """The database of one run of the command line: its URL, and the private server behind it, if there is one."""

    def __init__(self, url: str | None, stop: Callable[[], None] = lambda: None) -> None:
        self.url = url
        self.stop = stop

    def stop_by_force(self) -> None:
        """Stop a private server from a process that is about to end, whatever its event loop does."""
        stopping = threading.Thread(target=self.stop, daemon=True)
        stopping.start()
        stopping.join(FORCED_STOP)


@contextlib.contextmanager
def opened(shared: Shared) -> Iterator[Database]:
    """Find the database that the command line or the environment names; run a private one for the length of the block.

    Raises:
        UsageError: nothing names a database.
    """
    if shared.embedded_dir is not None and not shared.embedded:
        raise UsageError("--embedded-dir says where the server of --embedded lives: give both")
    if not shared.embedded:
        yield Database(shared.database_url or _from_environment())
        return
    server = PrivatePostgres(shared.embedded_dir or data_directory()).start()
    database = Database(server.url, server.stop)
    try:
        yield database
    finally:
        database.stop()


def data_directory() -> Path:
    """Where a user's private server lives unless told otherwise: kept, so that a command finds what another wrote."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "awa-actors" / "postgres"


def _from_environment() -> str | None:
    url = os.environ.get("DATABASE_URL")
    if not url and not any(os.environ.get(name) for name in PG_VARIABLES):
        raise UsageError("no database is named: give --database-url URL or --embedded, or set DATABASE_URL or PGHOST")
    return url or None


async def reach(client: Client, *, within: float, writable: bool) -> None:
    """Return when the database answers.

    Args:
        client: whose database it is.
        within: seconds to wait for it; 0 tries once.
        writable: whether a read-only database will not do.

    Raises:
        Failure: with status 69: it did not answer in time, or it refuses us, which no waiting changes.
    """
    deadline = trio.current_time() + within
    delay, told = RETRY_FIRST, False
    while True:
        try:
            server = await client.admin.server()
            if not (writable and server.read_only):
                return
            reason = READ_ONLY
        except TransientStoreError as error:
            reason = str(error)
        except StoreError as error:
            raise Failure(str(error), UNREACHABLE) from error
        left = deadline - trio.current_time()
        if left <= 0:
            waited = f" (waited {within:g} s)" if within else ""
            raise Failure(f"{reason}{waited}", UNREACHABLE)
        if not told:
            logger.warning("waiting up to %g s for the database: %s", within, reason)
            told = True
        await trio.sleep(min(delay, left))
        delay = min(delay * 2, RETRY_MOST)


def ask(
    shared: Shared,
    question: Callable[[Client], Awaitable[T]],
    *,
    writable: bool = False,
    registry: Registry | None = None,
    pooler: bool = False,
) -> T:
    """Open a client, ask one question, close.

    Args:
        shared: names the database.
        question: what to do with the client.
        writable: whether a read-only database will not do.
        registry: what the application declares, where the question depends on it.
        pooler: ask for nothing that a transaction pooler does not give.

    Raises:
        Failure: the database cannot be reached.
        AwaError: what the question raises.
    """
    configure(shared.log_format, verbose=shared.verbose, level=logging.WARNING)
    with opened(shared) as database:
        return trio.run(_ask, database.url, question, writable, registry, pooler)


async def _ask(
    url: str | None, question: Callable[[Client], Awaitable[T]], writable: bool, registry: Registry | None, pooler: bool
) -> T:
    settings = DatabaseSettings(pool_size=1, connect_timeout=CONNECT_BOUND, pooler=pooler)
    async with open_client(url, registry=registry, settings=settings) as client:
        await reach(client, within=0, writable=writable)
        try:
            return await question(client)
        except TransientStoreError as error:
            await reach(client, within=0, writable=writable)
            # The database is there: what was asked is blocked by somebody else.
            raise Failure(str(error)) from error
