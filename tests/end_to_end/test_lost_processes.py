"""Processes that are killed or frozen with jobs in hand, and a database that is copied while they work."""

import contextlib
import signal
import subprocess
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

APPS = Path(__file__).parent / "apps"
PATIENCE = 60.0
WORKER = ("--role", "worker", "--no-maintenance", "--stale-after", "3")
MAINTENANCE = ("--role", "maintenance", "--rescue-interval", "0.5")


@attrs.frozen
class Hold:
    """The args that both apps have a handler for."""

    n: int


async def ask(client: awa.Client, query: str) -> list[Any]:
    """Rows of a query."""
    async with client.pool.acquire() as session:
        return await session.fetch(query)


async def reaches(client: awa.Client, query: str, value: int) -> None:
    """Wait until a count is what it should be."""

    async def there() -> bool:
        return bool((await ask(client, query))[0][0] == value)

    await until(there, PATIENCE)


@contextlib.asynccontextmanager
async def held(url: str, jobs: int) -> AsyncIterator[tuple[awa.Client, Process]]:
    """A worker that holds this many running attempts, and a maintenance process."""
    async with awa.open_client(url) as client:
        async with client.transaction() as tx:
            await tx.execute("CREATE TABLE runs (job_id bigint NOT NULL, run_lease bigint NOT NULL)")
            await tx.execute("CREATE TABLE go (n int)")
        await client.insert_many([Hold(n) for n in range(jobs)])
        queue = ("--queue", f"default={jobs}")
        with (
            running(*WORKER, "--app", "holding_app:registry", *queue, url=url, cwd=APPS) as holder,
            running(*MAINTENANCE, url=url, cwd=APPS),
        ):
            await reaches(client, "SELECT count(*) FROM runs", jobs)
            yield client, holder


DONE = "SELECT count(*) FROM awa.jobs WHERE state = 'completed'"
COUNTERS = "SELECT DISTINCT attempt, rescues FROM awa.jobs"
DOUBLED = "SELECT count(*) FROM (SELECT job_id FROM awa_queue.done GROUP BY job_id HAVING count(*) > 1) d"


@pytest.mark.slow
async def test_a_killed_worker_loses_none_of_a_hundred_attempts_and_spends_none(database: str) -> None:
    async with held(database, 100) as (client, holder):
        holder.signal(signal.SIGKILL)
        with running(*WORKER, "--app", "finishing_app:registry", url=database, cwd=APPS):
            await reaches(client, DONE, 100)
        assert [tuple(row) for row in await ask(client, COUNTERS)] == [(1, 1)]
        assert (await ask(client, "SELECT count(*), count(DISTINCT job_id) FROM runs"))[0] == (200, 100)
        assert (await ask(client, DOUBLED))[0] == (0,)


@pytest.mark.slow
async def test_late_completions_of_a_frozen_worker_change_nothing(database: str) -> None:
    async with held(database, 20) as (client, holder):
        holder.signal(signal.SIGSTOP)
        with running(*WORKER, "--app", "finishing_app:registry", url=database, cwd=APPS):
            await reaches(client, DONE, 20)
        before = [tuple(row) for row in await ask(client, "SELECT id, finalized_at FROM awa.jobs ORDER BY id")]
        async with client.transaction() as tx:
            await tx.execute("INSERT INTO go VALUES (1)")
        holder.signal(signal.SIGCONT)
        await trio.to_thread.run_sync(holder.says, "was declared dead")
        # It is a worker again, as a new instance.
        again = await client.insert(Hold(99))
        await reaches(client, f"SELECT count(*) FROM awa.jobs WHERE id = {again.id} AND state = 'completed'", 1)
        after = await ask(client, f"SELECT id, finalized_at FROM awa.jobs WHERE id <> {again.id} ORDER BY id")
        assert [tuple(row) for row in after] == before
        assert (await ask(client, DOUBLED))[0] == (0,)
        assert {tuple(row) for row in await ask(client, COUNTERS)} == {(1, 1), (1, 0)}


@pytest.mark.slow
@pytest.mark.partial_log  # what is restored has a life that the log of its new database does not know
async def test_a_dump_taken_under_load_is_drained_elsewhere_without_a_special_step(
    database: str, empty_database: str, server: Server
) -> None:
    async with held(database, 10) as (client, _):
        await client.insert_many([Hold(n) for n in range(500)])
        await client.insert_many([Hold(n) for n in range(50)], awa.InsertOpts(tags=["kept"]))
        with running(*WORKER, "--app", "finishing_app:registry", "--queue", "default=2", url=database, cwd=APPS):
            await until(_some_done(client), PATIENCE)
            dump = [str(server.bin_dir / "pg_dump"), "--no-owner", database]
            script = await trio.run_process(dump, capture_stdout=True)
    restore = [str(server.bin_dir / "psql"), "-q", "-v", "ON_ERROR_STOP=1", empty_database]
    await trio.run_process(restore, stdin=script.stdout, stdout=subprocess.DEVNULL)
    async with awa.open_client(empty_database) as copy:
        waiting = (await ask(copy, "SELECT count(*) FROM awa.jobs"))[0][0]
        assert (await ask(copy, DONE))[0][0] < waiting
        newest = (await ask(copy, "SELECT max(id) FROM awa.jobs"))[0][0]
        with (
            running(*MAINTENANCE, url=empty_database, cwd=APPS),
            running(*WORKER, "--app", "finishing_app:registry", url=empty_database, cwd=APPS),
        ):
            await reaches(copy, DONE, waiting)
        assert waiting == 560
        assert (await ask(copy, DOUBLED))[0] == (0,)
        assert (await copy.insert(Hold(0))).id > newest


def _some_done(client: awa.Client) -> Any:
    async def some() -> bool:
        return bool((await ask(client, DONE))[0][0] > 20)

    return some
