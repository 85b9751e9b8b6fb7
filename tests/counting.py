"""What tests count instead of measuring time: statements, Python calls, steps of tasks, WAL, dead tuples."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import attrs
import psycopg
import pytest
import trio

from awa_actors.store.pool import Session


@attrs.define
class Tally:
    """Counts up while its block runs."""

    total: int = 0


@contextmanager
def python_calls() -> Iterator[Tally]:
    """Count calls of functions, Python's and C's, that this thread makes: what work costs, on any machine."""
    tally = Tally()
    before = sys.getprofile()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            tally.total += 1

    sys.setprofile(count)
    try:
        yield tally
    finally:
        sys.setprofile(before)


class Steps(trio.abc.Instrument):
    """Counts how often Trio ran a task until it waited again."""

    def __init__(self) -> None:
        self.total = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Trio runs a task."""
        self.total += 1


@contextmanager
def statements(patch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count statements of every connection of this process by their first words up to a bracket."""
    counted: Counter[str] = Counter()

    def counting(name: str) -> Any:
        original = getattr(Session, name)

        async def call(self: Session, sql: str, *args: Any) -> Any:
            counted[" ".join(sql.partition("(")[0].split())] += 1
            return await original(self, sql, *args)

        return call

    with patch.context() as patched:
        for name in ("fetch", "fetchrow", "fetchval", "execute"):
            patched.setattr(Session, name, counting(name))
        yield counted


class ServerCounts:
    """Reads a server's own books on one database."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def wal(self) -> int:
        """Bytes of WAL so far, of the whole server."""
        return int(self._value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))

    def dead_tuples(self) -> int:
        """Dead tuples of all tables, as far as sessions have reported them."""
        self._connection.execute("SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()")
        return int(self._value("SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables"))

    def checkpoint(self) -> None:
        """Get a checkpoint over with, so that none falls into what is counted."""
        self._connection.execute("CHECKPOINT")

    def _value(self, statement: str) -> Any:
        row = self._connection.execute(statement.encode()).fetchone()
        assert row is not None
        return row[0]

    def close(self) -> None:
        """Close the reading connection."""
        self._connection.close()
