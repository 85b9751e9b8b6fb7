"""Three maintenance processes and a worker through everything that can happen to a leader."""

import contextlib
import datetime as dt
import functools
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from at_work import until
from command_line import Process, running
from postgres_servers import Server

import awa_actors as awa
from awa_actors.store.leadership import Lease


@attrs.frozen
class Mark:
    """The args that `apps/fleet_app.py` has a handler for."""

    n: int


APPS = Path(__file__).parent / "apps"
PATIENCE = 40.0
LEASE = 10.0
"""The default lease, which bounds how long a frozen leader is waited for."""

LEADER_PID = """
SELECT i.pid FROM awa.leadership l JOIN awa.instances i ON i.id = l.holder
WHERE l.name = 'maintenance' AND l.expires_at > clock_timestamp() AND l.term > $1
"""
END_LEADER_SESSION = "SELECT pg_terminate_backend(backend_pid) FROM awa.leadership"
LEFT = """
SELECT count(*) FROM awa.jobs WHERE kind = 'mark' AND state <> 'completed'
"""
FIRES = """
SELECT metadata ->> 'cron_fire_time' AS fire, count(*) AS jobs FROM awa.jobs WHERE kind = 'tick' GROUP BY 1 ORDER BY 1
"""


@attrs.define(eq=False)
class Fleet:
    """The processes, and the client that looks at them."""

    client: awa.Client
    processes: dict[int, Process]
    term: int = 0
    jobs: list[int] = attrs.field(factory=list)

    async def takeover(self) -> tuple[int, float]:
        """Wait for a leader with a newer term than the last one seen; returns its pid and how long that took."""
        began = time.monotonic()
        pid = 0

        async def found() -> bool:
            nonlocal pid
            async with self.client.pool.acquire() as session:
                pid = await session.fetchval(LEADER_PID, self.term) or 0
            return bool(pid)

        await until(found, PATIENCE)
        lease: Lease | None = await self.client.admin.leader()
        assert lease is not None
        self.term = lease.term
        return pid, time.monotonic() - began

    async def enqueue(self, count: int = 25) -> None:
        """Some jobs for now, and as many that have to be promoted."""
        for opts in (None, awa.InsertOpts(run_at=dt.timedelta(seconds=1))):
            inserted = await self.client.insert_many([Mark(n) for n in range(count)], opts)
            self.jobs += [job.id for job in inserted]

    async def ask(self, statement: str) -> list[Any]:
        """Rows of a query."""
        async with self.client.pool.acquire() as session:
            return await session.fetch(statement)


@contextlib.asynccontextmanager
async def fleet(url: str) -> AsyncIterator[Fleet]:
    """Three maintenance processes, one worker that does none, all ready."""
    start = functools.partial(running, url=url, cwd=APPS)
    worker = ("--role", "worker", "--app", "fleet_app:registry", "--no-maintenance")
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(start("--role", "maintenance", "--app", "fleet_app:registry")) for _ in range(3)
        ]
        processes.append(stack.enter_context(start(*worker)))
        processes[-1].says("runs 2 kinds")
        async with awa.open_client(url) as client:
            async with client.transaction() as tx:
                await tx.execute("CREATE TABLE marks (job_id bigint NOT NULL)")
            yield Fleet(client, {process.pid: process for process in processes})


@pytest.mark.slow
async def test_every_trouble_of_a_leader_costs_neither_jobs_nor_fires(database: str, server: Server) -> None:
    async with fleet(database) as ships:
        first, _ = await ships.takeover()

        await ships.enqueue()
        ships.processes[first].signal(signal.SIGKILL)
        second, after_kill = await ships.takeover()

        await ships.enqueue()
        ships.processes[second].signal(signal.SIGSTOP)
        third, after_freeze = await ships.takeover()
        ships.processes[second].signal(signal.SIGCONT)

        await ships.enqueue()
        await ships.ask(END_LEADER_SESSION)
        _, after_session = await ships.takeover()

        await trio.to_thread.run_sync(server.restart)
        _, after_restart = await ships.takeover()
        await ships.enqueue()

        async def all_done() -> bool:
            return bool((await ships.ask(LEFT))[0] == (0,))

        await until(all_done, PATIENCE)
        marks = {row[0]: row[1] for row in await ships.ask("SELECT job_id, count(*) FROM marks GROUP BY 1")}
        fires = {dt.datetime.fromisoformat(row[0]): row[1] for row in await ships.ask(FIRES)}

    assert second != first
    assert third != second
    took = {"kill": after_kill, "freeze": after_freeze, "session": after_session, "restart": after_restart}
    print(f"takeovers: {took}")
    # A second on a quiet machine; two processes per core leave room for more here.
    assert after_kill < 4
    assert after_session < 4
    assert after_freeze < LEASE + 4
    assert marks == dict.fromkeys(ships.jobs, 1)
    seconds = sorted(fires)
    assert set(fires.values()) == {1}
    assert seconds == [seconds[0] + dt.timedelta(seconds=n) for n in range(len(seconds))]
