"""T7: a client that stops reading in the middle of an answer, whatever statement_timeout says, holds up nobody."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from processes import kill
from queue_plane import Plane

from awa_actors.store.claim import ANSWER

pytestmark = pytest.mark.slow

# Sends its statement and stops itself before it has read a byte of the answer.
CLIENT = """
import asyncio, os, signal, sys, uuid
import asyncpg

async def main() -> None:
    url, statement, instance = sys.argv[1:]
    connection = await asyncpg.connect(url, server_settings={"application_name": "awa_actors frozen"})
    prepared = await connection.prepare(statement)
    call = asyncio.create_task(prepared.fetchrow(uuid.UUID(instance)))
    await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGSTOP)
    await call

asyncio.run(main())
"""
CLAIM = f"CALL awa_queue.claim('default', 100, 100000000, $1, 0, NULL, NULL, {ANSWER})"
CLAIM_IN_A_FUNCTION = "SELECT awa_queue.take('default', 100, 100000000, $1, 0, NULL, NULL)"
LARGE = '{"a": "' + "x" * 102_400 + '"}'


WRITING = """
SELECT pid FROM pg_stat_activity WHERE application_name = 'awa_actors frozen' AND wait_event = 'ClientWrite'
"""


@contextmanager
def frozen(url: str, watcher: Plane, statement: str, instance: uuid.UUID) -> Iterator[int]:
    """A client that is frozen while its answer is being sent; gives the server process it keeps busy."""
    client = subprocess.Popen([sys.executable, "-c", CLIENT, url, statement, str(instance)])
    try:
        while not (rows := watcher.rows(WRITING)):
            assert client.poll() is None, "the client has ended"
            watcher.rows("SELECT pg_sleep(0.01)")
        yield rows[0]["pid"]
    finally:
        os.kill(client.pid, signal.SIGCONT)
        kill(client.pid)
        client.wait()


HELD = """
SELECT count(*) AS locks FROM pg_locks WHERE pid = %s AND locktype IN ('relation', 'transactionid', 'tuple')
"""


def test_a_frozen_claimer_holds_no_lock_and_hides_nothing(
    database: str, plane: Plane, other: Plane, watcher: Plane
) -> None:
    large = plane.insert(100, args=LARGE)
    plane.register()
    other.register()
    with frozen(database, watcher, CLAIM, plane.instance) as pid:
        assert watcher.value(HELD, pid) == 0
        assert watcher.value("SELECT backend_xid FROM pg_stat_activity WHERE pid = %s", pid) is None
        small = other.insert(50)
        assert other.claim(200).ids == small
        assert [other.state(job_id) for job_id in large[:3]] == ["running"] * 3
        slot = other.current("ready")
        other.turn("ready")
        assert other.value("SELECT outcome FROM awa_queue.truncate_slot('ready', %s, '0', '0')", slot) == "truncated"
        plane.die()
        assert sorted(job["job_id"] for job in other.rescue_stale()) == large
        other.promote()
        assert sorted(other.claim(100, max_bytes=10**9).ids) == large


def test_maintenance_ends_a_session_that_is_stuck_like_that(database: str, plane: Plane, watcher: Plane) -> None:
    plane.insert(100, args=LARGE)
    with frozen(database, watcher, CLAIM, plane.instance) as pid:
        assert plane.value("SELECT awa.end_stuck_sessions('1 hour')") == 0
        assert plane.value("SELECT awa.end_stuck_sessions('0')") == 1
        while watcher.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", pid):
            watcher.rows("SELECT pg_sleep(0.01)")


def test_a_claim_that_does_not_commit_first_would_hide_its_rows(
    database: str, plane: Plane, other: Plane, watcher: Plane
) -> None:
    """The broken twin of the guard above: the same claim as a plain function call."""
    large = plane.insert(100, args=LARGE)
    with frozen(database, watcher, CLAIM_IN_A_FUNCTION, plane.instance) as pid:
        assert watcher.value(HELD, pid) > 0
        assert other.claim(200).ids == []
        assert other.rescue_stale() == []
        assert other.state(large[0]) == "available"
