"""Leadership on a real server: who leads after a resignation, a kill or a freeze; an old term changes nothing."""

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import psycopg
import pytest
import trio
from at_work import LIMIT, ask, until

import awa_actors as awa
from awa_actors.config import DatabaseSettings
from awa_actors.store import leadership


@attrs.frozen
class Nothing:
    """Args of no job."""


SHORT = awa.LeaseTiming(lease=2.0, trust=1.5, renew=0.4, margin=0.3)
LONG = awa.LeaseTiming(lease=60.0, trust=50.0, renew=1.0, margin=1.0)
CANDIDATE = Path(__file__).parents[1] / "candidate.py"


@asynccontextmanager
async def maintaining(
    url: str, lease: awa.LeaseTiming = LONG, database: DatabaseSettings | None = None
) -> AsyncIterator[tuple[awa.Client, awa.Maintenance]]:
    """A maintenance process for the body; it stops at the end of it."""
    async with awa.open_client(url, settings=database) as client, trio.open_nursery() as nursery:
        run = partial(client.run_maintenance, settings=awa.MaintenanceSettings(lease=lease))
        yield client, await nursery.start(run)
        nursery.cancel_scope.cancel()


async def leads(maintenance: awa.Maintenance) -> int:
    with trio.fail_after(LIMIT):
        return await maintenance.wait_leader()


async def lost_by(maintenance: awa.Maintenance) -> None:
    async def over() -> bool:
        return not maintenance.is_leader

    await until(over)


async def test_one_of_two_candidates_leads_and_the_other_takes_over_within_a_second_of_its_resigning(
    database: str,
) -> None:
    async with maintaining(database) as (client, first):
        term = await leads(first)
        async with maintaining(database) as (_, second):
            assert not second.is_leader
            began = trio.current_time()
            first.resign()
            assert await leads(second) > term
            assert trio.current_time() - began < 1.0
            assert not first.is_leader
            lease = await client.admin.leader()
            assert lease is not None
            assert lease.holder == str(second.liveness.instance)


async def test_a_leader_that_stops_is_followed_within_a_second(database: str) -> None:
    async with maintaining(database) as (_, second), maintaining(database) as (_, third):
        both = [second, third]

        async def somebody() -> bool:
            return any(one.is_leader for one in both)

        await until(somebody)
        # A third process comes and waits; the leading one ends.
        async with maintaining(database) as (_, fourth):
            both = [one for one in both if not one.is_leader] + [fourth]
            leader = next(one for one in (second, third) if one.is_leader)
            began = trio.current_time()
            leader.leader.give_up()
            await until(somebody)
            assert trio.current_time() - began < 1.0


async def test_a_request_to_resign_moves_leadership(database: str) -> None:
    async with maintaining(database) as (client, first):
        term = await leads(first)
        async with maintaining(database) as (_, second):
            began = trio.current_time()
            assert await client.admin.request_resign() == term
            await leads(second)
            assert trio.current_time() - began < 1.0
            assert not first.is_leader


async def test_nobody_can_be_asked_to_resign_when_nobody_leads(database: str) -> None:
    async with awa.open_client(database) as client:
        assert await client.admin.request_resign() is None


async def test_a_leader_whose_session_is_killed_knows_at_once_and_is_replaced_within_a_second(database: str) -> None:
    async with maintaining(database) as (client, first):
        await leads(first)
        async with maintaining(database) as (_, second):
            first_term = first.term
            began = trio.current_time()
            await ask(client, "SELECT pg_terminate_backend(backend_pid) FROM awa.leadership")
            await until_led_anew(client, first_term)
            assert trio.current_time() - began < 1.0
            await one_leads(first, second)


async def one_leads(first: awa.Maintenance, second: awa.Maintenance) -> None:
    """Wait until the processes know what the row says: each hears of it by an answer or a loss of its own."""

    async def exactly_one() -> bool:
        return first.is_leader != second.is_leader

    await until(exactly_one, limit=1.0)


async def until_led_anew(client: awa.Client, term: int | None) -> None:
    async def anew() -> bool:
        lease = await client.admin.leader()
        return lease is not None and not lease.is_free and lease.term != term

    await until(anew)


async def test_a_candidate_of_another_role_sees_that_the_leaders_session_lives(database: str) -> None:
    # A role sees of another's sessions only that they exist.
    async with awa.open_client(database) as client, client.pool.acquire() as holds, client.pool.acquire() as other:
        assert await leadership.acquire(holds, uuid.uuid4(), 60.0) is not None
        await other.execute("CREATE ROLE awa_test_candidate")
        await other.execute("GRANT USAGE ON SCHEMA awa TO awa_test_candidate")
        await other.execute("GRANT SELECT, INSERT, UPDATE ON awa.leadership TO awa_test_candidate")
        await other.execute("GRANT USAGE ON SEQUENCE awa.leadership_term_seq TO awa_test_candidate")
        await other.execute("SET ROLE awa_test_candidate")
        try:
            seen = await leadership.look(other)
            assert seen is not None
            assert seen.session_alive
            assert await leadership.acquire(other, uuid.uuid4(), 60.0) is None
        finally:
            await other.execute("RESET ROLE")
            await other.execute("DROP OWNED BY awa_test_candidate")
            await other.execute("DROP ROLE awa_test_candidate")


async def test_of_many_candidates_at_once_one_wins(database: str) -> None:
    async with awa.open_client(database) as client:
        won: list[int] = []

        async def stand() -> None:
            async with client.pool.acquire() as session:
                for _ in range(10):
                    if (term := await leadership.acquire(session, uuid.uuid4(), 60.0)) is not None:
                        won.append(term)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(stand)
        assert len(won) == 1


async def test_the_renewals_and_resignations_of_an_old_term_change_nothing(database: str) -> None:
    async with awa.open_client(database) as client, client.pool.acquire() as session:
        old, new = uuid.uuid4(), uuid.uuid4()
        first = await leadership.acquire(session, old, 60.0)
        assert first is not None
        await leadership.resign(session, old, first)
        second = await leadership.acquire(session, new, 60.0)
        assert second is not None
        row = "SELECT row(l.*)::text FROM awa.leadership l"
        before = await session.fetchval(row)
        assert await leadership.renew(session, old, first, 60.0) is None
        await leadership.resign(session, old, first)
        # The same process in its own earlier term, and another one that guessed the term.
        assert await leadership.renew(session, new, first, 60.0) is None
        assert await leadership.renew(session, old, second, 60.0) is None
        assert await session.fetchval(row) == before
        assert await leadership.renew(session, new, second, 60.0) is False


async def test_a_lease_that_has_expired_is_not_renewed(database: str) -> None:
    async with awa.open_client(database) as client, client.pool.acquire() as session:
        me = uuid.uuid4()
        term = await leadership.acquire(session, me, 60.0)
        assert term is not None
        await session.execute("UPDATE awa.leadership SET expires_at = clock_timestamp() - interval '1 ms'")
        assert await leadership.renew(session, me, term, 60.0) is None


@pytest.mark.slow
async def test_a_leader_whose_renewal_is_not_answered_stops_before_anybody_else_may_start(database: str) -> None:
    async with maintaining(database, SHORT) as (client, first):
        term = await leads(first)
        with psycopg.connect(database) as blocker:
            blocker.execute("SELECT FROM awa.leadership FOR UPDATE")
            sent = float(blocker.execute("SELECT extract(epoch FROM renewed_at) FROM awa.leadership").fetchall()[0][0])
            await lost_by(first)
            stopped = time.time() - sent
            blocker.rollback()
        assert SHORT.trust - 0.2 < stopped < SHORT.lease
        await until_led_anew(client, term)


@attrs.define(eq=False)
class Other:
    """Another maintenance process, and what it prints."""

    process: trio.Process
    _read: bytes = b""

    async def line(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        with trio.fail_after(30):
            while b"\n" not in self._read:
                self._read += await self.process.stdout.receive_some()
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()


@asynccontextmanager
async def candidate(url: str, timing: awa.LeaseTiming) -> AsyncIterator[Other]:
    """Another process, that leads when this yields; killed at the end."""
    times = (timing.lease, timing.trust, timing.renew, timing.margin)
    command = [sys.executable, str(CANDIDATE), url, *map(str, times)]
    start = partial(trio.run_process, command, stdout=subprocess.PIPE, check=False, cwd=CANDIDATE.parents[1])
    async with trio.open_nursery() as nursery:
        other = Other(await nursery.start(start))
        try:
            assert (await other.line()).startswith("leads")
            yield other
        finally:
            other.process.kill()


@pytest.mark.slow
async def test_a_killed_process_is_replaced_within_a_second(database: str) -> None:
    async with candidate(database, LONG) as other, maintaining(database) as (_, second):
        began = trio.current_time()
        other.process.kill()
        await leads(second)
        assert trio.current_time() - began < 1.0


@pytest.mark.slow
async def test_a_frozen_process_is_replaced_within_its_lease_and_finds_its_term_over_when_it_thaws(
    database: str,
) -> None:
    async with candidate(database, SHORT) as other, maintaining(database, SHORT) as (client, second):
        other.process.send_signal(signal.SIGSTOP)
        began = trio.current_time()
        term = await leads(second)
        assert trio.current_time() - began < SHORT.lease + 1.0
        other.process.send_signal(signal.SIGCONT)
        assert await other.line() == "over"
        assert second.term == term
        lease = await client.admin.leader()
        assert lease is not None
        assert (lease.term, lease.holder) == (term, str(second.liveness.instance))


@pytest.mark.slow
async def test_where_sessions_mean_nothing_a_killed_leader_is_replaced_at_the_end_of_its_lease(database: str) -> None:
    pooled = DatabaseSettings(pooler=True)
    async with maintaining(database, SHORT, pooled) as (client, first):
        term = await leads(first)
        async with maintaining(database, SHORT, pooled) as (_, second):
            began = trio.current_time()
            await ask(client, "SELECT pg_terminate_backend(backend_pid) FROM awa.leadership")
            await until_led_anew(client, term)
            assert trio.current_time() - began < SHORT.lease + 1.0
            await one_leads(first, second)


async def test_a_process_that_does_not_want_to_lead_does_not_stand(database: str) -> None:
    async with awa.open_client(database) as client, trio.open_nursery() as nursery:
        settings = awa.MaintenanceSettings(lead=False)
        reluctant = await nursery.start(partial(client.run_maintenance, settings=settings))
        async with maintaining(database) as (_, willing):
            await leads(willing)
        assert not reluctant.is_leader
        lease = await client.admin.leader()
        assert lease is not None
        assert lease.holder is None
        nursery.cancel_scope.cancel()


async def test_a_worker_and_a_maintenance_process_stand_for_the_same_lease(database: str) -> None:
    registry = awa.Registry()

    @registry.worker(Nothing)
    async def do(job: awa.Job[Nothing]) -> None:
        pass

    async with awa.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
        worker: awa.Worker = await nursery.start(client.run_worker)
        assert worker.maintenance is not None
        term = await leads(worker.maintenance)
        async with maintaining(database) as (_, other):
            worker.maintenance.resign()
            assert await leads(other) > term
        nursery.cancel_scope.cancel()
