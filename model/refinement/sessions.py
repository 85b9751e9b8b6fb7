"""Sessions whose statements may wait for one another's locks while the machine goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any, LiteralString

import attrs
import psycopg
from psycopg import Connection, sql

LONGEST = 10.0
"""Seconds that a statement may take which does not wait for a lock."""
GLANCE = 0.002
"""Seconds between looks at a statement that is not done."""

Rows = list[tuple[Any, ...]]


def end_session(observer: Connection[Any], pid: int) -> None:
    """End a session on the server, whatever it does, and wait until it has let go of everything."""
    observer.execute(sql.SQL("SELECT pg_terminate_backend({})").format(sql.Literal(pid)))
    # The server's own wait for that looks every tenth of a second.
    there = sql.SQL("SELECT FROM pg_stat_get_activity({})").format(sql.Literal(pid))
    deadline = time.monotonic() + LONGEST
    while observer.execute(there).rowcount:
        if time.monotonic() > deadline:
            raise AssertionError("a session does not end")
        time.sleep(GLANCE)


@attrs.define(eq=False)
class Session:
    """One connection with a thread of its own, so that a statement that waits does not stop the machine.

    Args:
        url: of the database.
        observer: a connection that tells whether this one waits.
    """

    url: str
    observer: Connection[Any]
    _connection: Connection[Any] = attrs.field(init=False)
    _thread: ThreadPoolExecutor = attrs.field(init=False)
    _running: Future[Rows] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Connect."""
        self._connection = psycopg.connect(self.url, autocommit=True, application_name="model session")
        self._thread = ThreadPoolExecutor(1)

    def start(self, statement: LiteralString, values: Sequence[object] = ()) -> bool:
        """Start a statement; whether it has ended (rather than waits for a lock)."""
        connection = self._connection

        def run() -> Rows:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

        assert self._running is None, "the statement before has not ended"
        self._running = self._thread.submit(run)
        return self.has_ended()

    def has_ended(self) -> bool:
        """Wait until the statement has ended or waits for a lock; which of the two."""
        assert self._running is not None
        deadline = time.monotonic() + LONGEST
        while time.monotonic() < deadline:
            try:
                self._running.exception(GLANCE)
            except NotYet:
                # Not what it says it waits for: that is a moment old, and who was let go an instant ago still says it.
                row = self.observer.execute(
                    "SELECT pg_blocking_pids(%s)", [self._connection.info.backend_pid]
                ).fetchone()
                if row is not None and row[0] and not self._running.done():
                    return False
            else:
                return True
        raise AssertionError("a statement neither ends nor waits for a lock")

    def rows(self) -> Rows:
        """The result of the statement that has ended."""
        running, self._running = self._running, None
        assert running is not None
        return running.result(LONGEST)

    def run(self, statement: LiteralString, values: Sequence[object] = ()) -> Rows:
        """Run a statement that must not wait."""
        assert self.start(statement, values), f"{statement} waits for a lock, and nothing may hold one that it needs"
        return self.rows()

    def kill(self) -> None:
        """End the session on the server, whatever it does, and connect anew."""
        end_session(self.observer, self._connection.info.backend_pid)
        if self._running is not None:
            self._running.exception(LONGEST)
            self._running = None
        self._connection.close()
        self._connection = psycopg.connect(self.url, autocommit=True, application_name="model session")

    def close(self) -> None:
        """Leave, also in the middle of a statement."""
        if self._running is not None:
            self.kill()
        self._thread.shutdown()
        self._connection.close()
