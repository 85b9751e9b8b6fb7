"""Ten incidents of real deployments, each made for real: the doctor names it in one line, as an operator runs it."""

import contextvars
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import psycopg
import pytest
import trio
from at_work import until
from command_line import Answer, awa, running
from freezing_proxy import freezing_proxy
from postgres_servers import FAST, MEMORY, Server, version_under_test
from transaction_pooler import transaction_pooler

import awa_actors
from awa_actors.config import DatabaseSettings, MaintenanceSettings
from awa_actors.private_postgres import PrivatePostgres
from awa_actors.testing import abandon_one, expire_instance_and_tick, work_all

QUICK = MaintenanceSettings(rescue_interval=0.05, refresh_interval=0.1, lane_failures=10_000)
HASTE = ("--patience", "0.2")


@attrs.frozen
class Parcel:
    n: int = 0


@attrs.frozen
class Letter:
    queue = "post"
    n: int = 0


@attrs.define(eq=False)
class Handler:
    """What its worker does, and that it has begun."""

    registry: awa_actors.Registry = attrs.field(factory=awa_actors.Registry)
    begun: trio.Event = attrs.field(factory=trio.Event)
    go_on: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        @self.registry.worker(Parcel)
        async def carry(job: awa_actors.Job[Parcel]) -> None:
            self.begun.set()
            await self.go_on.wait()


@pytest.fixture(autouse=True)
def _published_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What processes say of themselves is otherwise up to five seconds old."""
    monkeypatch.setattr("awa_actors.actors.liveness.PUBLISH_EVERY", 0.05)


@pytest.fixture
def handler() -> Handler:
    return Handler()


async def doctor(url: str, *options: str) -> Answer:
    """Run the command, beside whatever runs here; in a context of its own, so that it knows nothing of our loop."""
    command = partial(awa, "doctor", "--json", *options, url=url)
    return await trio.to_thread.run_sync(contextvars.Context().run, command)


def lines(answer: Answer) -> dict[str, tuple[str, str]]:
    return {one["check"]: (one["status"], one["line"]) for one in answer.json["checks"]}


async def names(url: str, check: str, status: str, *parts: str, options: tuple[str, ...] = HASTE) -> Answer:
    """Wait until the doctor says this; it is one line, and the exit status goes with it."""
    answer = None

    async def said() -> bool:
        nonlocal answer
        answer = await doctor(url, *options)
        found, line = lines(answer)[check]
        assert "\n" not in line
        return found == status and all(part in line for part in parts)

    try:
        await until(said, 20.0)
    except BaseException:
        print(answer)
        raise
    assert answer is not None
    assert answer.status == (1 if answer.json["status"] == "problem" else 0)
    assert status != "problem" or answer.status == 1
    return answer


@asynccontextmanager
async def at_work(url: str, handler: Handler, slots: int = 4, **database: Any) -> AsyncIterator[awa_actors.Client]:
    """A worker that also leads, for the body."""
    settings = DatabaseSettings(**database)
    async with (
        awa_actors.open_client(url, registry=handler.registry, settings=settings) as client,
        trio.open_nursery() as nursery,
    ):
        queues = awa_actors.QueueConfig("default", slots, poll_interval=0.1)
        worker = await nursery.start(partial(client.run_worker, queues, maintenance=QUICK))
        await worker.maintenance.wait_leader()
        yield client
        handler.go_on.set()
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_of_a_healthy_system_nothing_is_said(database: str, handler: Handler) -> None:
    handler.go_on.set()
    async with at_work(database, handler) as client:
        await client.insert_many([Parcel(n) for n in range(20)])

        async def well() -> bool:
            answer = await doctor(database)
            return answer.status == 0 and {status for status, _ in lines(answer).values()} == {"ok"}

        await until(well, 20.0)


@pytest.mark.slow
async def test_a_stuck_queue(database: str, handler: Handler) -> None:
    async with at_work(database, handler, slots=1) as client:
        job = await client.insert(Parcel())
        await handler.begun.wait()
        await client.insert_many([Parcel(n) for n in range(3)])
        await names(
            database, "queues", "problem", "'default' holds 3 jobs", f"all 1 slots hold long attempts, job {job.id}"
        )


async def test_a_paused_queue(database: str) -> None:
    async with awa_actors.open_client(database) as client:
        await client.insert(Parcel())
        await client.admin.pause_queue("default", by="alice")
    await names(database, "queues", "warning", "'default' holds 1 jobs", "paused by alice", "queue resume default")


@pytest.mark.slow
async def test_a_wedged_sweep(database: str, handler: Handler) -> None:
    async with at_work(database, handler, lock_timeout=0.1) as client:
        with psycopg.connect(database) as blocker:
            blocker.execute("LOCK TABLE awa_queue.leases IN ACCESS EXCLUSIVE MODE")

            async def wedged() -> bool:
                (here,) = await client.admin.instances()
                return not here.lanes.get("rescue", {"healthy": True})["healthy"]

            await until(wedged)
            answer = await names(database, "lanes", "problem", "lane rescue is wedged", "lock timeout")
            # Who is in the way is named from the locks that are there now, and what cannot be looked at hides nothing.
            status, line = lines(answer)["locks"]
            assert status == "problem"
            assert f"server process {blocker.info.backend_pid}" in line
            assert "idle in transaction" in line
            assert "pg_terminate_backend" in line
            assert lines(answer)["storage"][0] == "ok"
            blocker.rollback()


@pytest.mark.slow
async def test_a_dead_listener(database: str, handler: Handler) -> None:
    async with freezing_proxy(database) as proxy, at_work(proxy.url, handler) as client:
        await names(database, "listeners", "ok", "1 processes listen")
        (here,) = await client.admin.instances()
        proxy.freeze("listener")
        with psycopg.connect(database, autocommit=True) as killer:
            killer.execute("SELECT pg_terminate_backend(%s)", [here.details["listener"]])
        gone = f"its server process {here.details['listener']} is gone"
        await names(database, "listeners", "warning", f"worker {here.hostname}:{here.pid}", gone)


async def test_a_pinned_horizon(database: str) -> None:
    with psycopg.connect(database) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT 1")
        pid = f"server process {reader.info.backend_pid}"
        await names(database, "horizon", "warning", pid, "idle in transaction", "pins the horizon")
        reader.rollback()


async def test_a_slot_that_cannot_be_truncated(database: str) -> None:
    with psycopg.connect(database) as reader:
        reader.execute("SELECT FROM awa_queue.ready_0")
        pid = f"server process {reader.info.backend_pid}"
        await names(database, "rings", "warning", pid, "locks awa_queue.ready_0", "pg_terminate_backend")
        reader.rollback()


@pytest.mark.slow
async def test_a_disk_full_of_history(database: str, handler: Handler) -> None:
    handler.go_on.set()
    async with awa_actors.open_client(database, registry=handler.registry) as client:
        for generation in range(8):
            await client.insert(Parcel())
            await work_all(client)
            async with client.transaction() as tx:
                await tx.execute("SELECT awa_queue.turn('segments', $1)", generation)
    await names(database, "history", "problem", "history fills the disk", "8 of 8 segments", "completed_retention")


@pytest.mark.slow
async def test_a_poison_job(database: str, handler: Handler) -> None:
    async with awa_actors.open_client(database, registry=handler.registry) as client:
        job = await client.insert(Parcel())
        for _ in range(3):
            await abandon_one(client)
            await expire_instance_and_tick(client)
        await names(database, "poison", "problem", f"job {job.id} (parcel) was rescued 3 times", "cancel it")
        for _ in range(3):
            await abandon_one(client)
            await expire_instance_and_tick(client)
        assert (await client.admin.job(job.id)).state is awa_actors.JobState.FAILED
        await names(database, "poison", "warning", f"job {job.id} (parcel)", "failed for it")


@pytest.mark.slow
async def test_a_missing_worker(database: str, handler: Handler) -> None:
    async with at_work(database, handler) as client:
        await client.insert(Letter())
        answer = await names(database, "queues", "problem", "'post' holds 1 jobs", "no live worker serves it")
        assert lines(answer)["kinds"][0] == "problem"
        assert "no live worker has a handler for 'letter'" in lines(answer)["kinds"][1]


@pytest.mark.slow
async def test_a_missing_worker_before_the_move_to_the_queue_plane(database: str) -> None:
    async with awa_actors.open_client(database) as client:
        async with client.transaction() as tx:
            await tx.execute("SELECT awa.start_canonical()")
        await client.insert(Letter())
        await names(database, "queues", "problem", "'post' holds 1 jobs", "no live worker serves it")


@pytest.mark.slow
async def test_a_lost_leader(database: str) -> None:
    async with awa_actors.open_client(database) as client:
        with running("--role", "maintenance", url=database) as maintenance:
            await until(lambda: _leads(client), 20.0)
            await client.insert(Parcel())
            maintenance.signal(signal.SIGKILL)
            await names(database, "leader", "problem", "the leader's session is gone", "--role maintenance")
    await names(database, "workers", "problem", "jobs wait and no worker runs")


async def _leads(client: awa_actors.Client) -> bool:
    lease = await client.admin.leader()
    return lease is not None and not lease.is_free


@pytest.mark.slow
async def test_a_transaction_pooler_that_nobody_was_told_of(database: str) -> None:
    async with transaction_pooler(database) as url:
        await names(
            url, "pooler", "problem", "leads to a transaction pooler", "LISTEN, prepared statements", "--pooler"
        )
        answer = await names(url, "pooler", "ok", "as expected", options=("--pooler",))
        assert lines(answer)["notify"][0] == "skipped"


@pytest.mark.slow
async def test_a_restored_dump_without_its_sequences(
    database: str, empty_database: str, server: Server, handler: Handler
) -> None:
    async with awa_actors.open_client(database, registry=handler.registry) as client:
        jobs = await client.insert_many([Parcel(n) for n in range(30)])
        await abandon_one(client)
    dump = [str(server.bin_dir / "pg_dump"), "--exclude-table-data=awa.instances", "--no-owner", database]
    script = (await trio.run_process(dump, capture_stdout=True)).stdout
    without = b"\n".join(line for line in script.splitlines() if b"pg_catalog.setval(" not in line)
    restore = [str(server.bin_dir / "psql"), "-q", "-v", "ON_ERROR_STOP=1", empty_database]
    await trio.run_process(restore, stdin=without, stdout=subprocess.DEVNULL)
    highest = max(job.id for job in jobs)
    answer = await names(empty_database, "copy", "problem", "restored without its sequences", f"jobs up to {highest}")
    assert "1 attempts belong to processes that are unknown here" in lines(answer)["copy"][1]


@pytest.fixture
def private() -> Iterator[PrivatePostgres]:
    """A server of its own that takes prepared transactions, which servers do not unless told."""
    with tempfile.TemporaryDirectory(
        prefix="awa-prepared-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None
    ) as home:
        # For the account that a server of root's runs as.
        Path(home).chmod(0o711)
        settings = {**FAST, "max_prepared_transactions": "2"}
        yield PrivatePostgres(Path(home), version=version_under_test(), settings=settings)


@pytest.mark.slow
async def test_a_prepared_transaction_that_nobody_ended(private: PrivatePostgres) -> None:
    """By its name: it has no server process."""
    async with awa_actors.open_client(private) as client:
        await client.migrate()
        url = client.pool.url
        assert url is not None
        with psycopg.connect(url, autocommit=True) as forgetful:
            forgetful.execute("BEGIN")
            forgetful.execute("SELECT awa.insert_job('parcel')")
            forgetful.execute("PREPARE TRANSACTION 'on holiday'")
            await names(url, "rings", "warning", "prepared transaction on holiday", "locks awa_queue.bodies_0")

            async def tells_how_to_end_it() -> bool:
                return "ROLLBACK PREPARED 'on holiday'" in lines(await doctor(url, *HASTE))["horizon"][1]

            await until(tells_how_to_end_it, 20.0)
            forgetful.execute("ROLLBACK PREPARED 'on holiday'")
