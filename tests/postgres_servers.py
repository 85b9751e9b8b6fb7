"""Servers and databases for tests: what `conftest.py` makes fixtures of.

``AWA_TEST_PG`` chooses the version of a private server (18 when unset; 16 is in the same wheel, 15 comes from Debian's
packages). ``AWA_TEST_DATABASE_URL`` uses a server that runs already, whose role may create databases; tests that stop
or restart the server then skip.
"""

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import parse_qs, urlsplit

import attrs
import psycopg
import psycopg.rows
import pytest
from processes import ends
from psycopg import sql

from awa_actors.private_postgres import PrivatePostgres, PrivateServer, bin_dir

SETTINGS = {"fsync": "off", "autovacuum": "on", "max_connections": "200", "jit": "off"}
"""Durability of a test's data is worth nothing, and no session of ours compiles its queries.

All else is as in production, max_locks_per_transaction above all.
"""

FAST = {"fsync": "off", "shared_buffers": "16MB"}
"""For tests of private servers themselves, which start many."""

MEMORY = Path("/dev/shm")
ENOUGH_MEMORY = 2 * 1024**3
"""Bytes free in `MEMORY` for servers to live there: a copied database is hundreds of files, which disks make slowly."""

GOODBYE_LIMIT = 5.0
"""Seconds that sessions get to end after a test: a backend needs some milliseconds to notice a closed socket."""

_names = itertools.count(1)


def version_under_test() -> int:
    """The major version that this run of pytest is asked to use."""
    return int(os.environ.get("AWA_TEST_PG", "18"))


def query(url: str, statement: LiteralString) -> object:
    """Run one statement on a connection of its own; returns the first column of its first row, if it has rows."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def socket_directory(url: str) -> Path:
    """Where the socket of a private server is, which is all of its runtime directory that others see."""
    return Path(parse_qs(urlsplit(url).query)["host"][0])


@attrs.define(eq=False)
class Server:
    """The Postgres that a pytest session uses.

    Attributes:
        url: of its maintenance database; the same after a restart.
        bin_dir: client programs (``pg_dump``, ``psql``) of its version.
    """

    url: str
    bin_dir: Path
    _private: PrivatePostgres | None
    _running: PrivateServer | None
    _session: psycopg.Connection[Any] | None = None

    @property
    def pid(self) -> int:
        """The postmaster's, for signals."""
        return self._ours().pid

    @property
    def is_running(self) -> bool:
        """Whether it takes connections."""
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Shut down at once, cutting sessions off; a server that is down stays down."""
        self.leave()
        self._ours().stop()

    def start(self) -> None:
        """Start again, on the same data and under the same URL."""
        before = self._ours()
        self.leave()
        assert self._private is not None
        self._running = self._private.start()
        # After the new hold is taken: without this, a server that was killed and not stopped would be held twice.
        before.stop()

    def restart(self) -> None:
        """Stop and start, whatever became of it."""
        self.stop()
        self.start()

    def revive(self) -> None:
        """Undo what a test did to it."""
        if self._private is not None and not self._answers():
            self.restart()

    def _answers(self) -> bool:
        # What a killed postmaster leaves behind may answer once more.
        if not ends(self.pid, within=0.0):
            with suppress(psycopg.OperationalError):
                self._connected().execute("SELECT 1")
                return True
        self.leave()
        return self.is_running

    def _connected(self) -> psycopg.Connection[Any]:
        """The session for the chores of fixtures, which take less time than connecting does."""
        if self._session is None:
            self._session = psycopg.connect(self.url, autocommit=True, connect_timeout=5, prepare_threshold=None)
        return self._session

    def leave(self) -> None:
        """Close our own session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def database_url(self, name: str) -> str:
        """The URL of another database of this server."""
        parts = urlsplit(self.url)
        # Not urlunsplit: it drops the slashes of an empty host.
        return f"{parts.scheme}://{parts.netloc}/{name}?{parts.query}"

    def ask(self, query: LiteralString | sql.Composed, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement in the maintenance database, outside a transaction; returns its rows."""
        self.revive()
        cursor = self._connected().execute(query, values)
        return cursor.fetchall() if cursor.description else []

    def sessions(self, database: str) -> list[str]:
        """Describe the client sessions of a database that are still there after `GOODBYE_LIMIT`; usually none."""
        deadline = time.monotonic() + GOODBYE_LIMIT
        while True:
            rows = self.ask(
                "SELECT format('pid %%s, %%s, %%s: %%s', pid, application_name, state, left(query, 200))"
                " FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'",
                database,
            )
            if not rows or time.monotonic() > deadline:
                return [row[0] for row in rows]
            self.ask("SELECT pg_sleep(0.005)")

    @contextmanager
    def fresh_database(self, template: str | None = None) -> Iterator[str]:
        """Make a database for one test, give its URL, and drop it.

        Fails the test when it leaves a session behind: a connection that was not closed, or a task that is not over.
        """
        name = f"awa_test_{os.getpid()}_{next(_names)}"
        # Copying files beats writing the copy through the log: 26 against 43 ms for a database of 360 relations.
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        self.ask(create.format(sql.Identifier(name), sql.Identifier(template or "template0")))
        left: list[str] = []
        try:
            yield self.database_url(name)
        finally:
            self.revive()
            left = self.sessions(name)
            self.drop(name)
        if left:
            pytest.fail("the test left sessions open:\n" + "\n".join(left))

    def template(self, migrate: Callable[[str], object]) -> str:
        """Make a database to copy, filled by `migrate`, which is given its URL; returns its name."""
        name = f"awa_template_{os.getpid()}_{next(_names)}"
        self.ask(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        migrate(self.database_url(name))
        # Nobody can copy a database that still has a session.
        left = self.sessions(name)
        assert not left, left
        return name

    def drop(self, name: str) -> None:
        """Drop a database, whoever uses it."""
        self.ask(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def _ours(self) -> PrivateServer:
        if self._running is None:
            pytest.skip("needs a server of its own, and AWA_TEST_DATABASE_URL names one that is not ours to stop")
        return self._running


@contextmanager
def open_server() -> Iterator[Server]:
    """Run the server that the environment asks for, or stand before the one it names."""
    given = os.environ.get("AWA_TEST_DATABASE_URL")
    version = version_under_test()
    if given:
        server = Server(given, bin_dir(version), None, None)
        try:
            yield server
        finally:
            server.leave()
        return
    roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH_MEMORY
    directory = Path(tempfile.mkdtemp(prefix="awa-tests-", dir=MEMORY if roomy else None))
    # For the account that a server of root's runs as.
    directory.chmod(0o711)
    private = PrivatePostgres(directory, version=version, settings=SETTINGS)
    try:
        running = private.start()
        server = Server(running.url, running.bin_dir, private, running)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
