"""What maintenance achieves and costs, printed: promotion rate and latency, and what an idle leader does."""

import datetime as dt
import time
from functools import partial
from typing import ClassVar

import attrs
import trio
from at_work import ask, until
from bench_meters import Meters, server_cpu

import awa_actors as awa
from awa_actors.store.promote import promote

FUTURE = 1_000_000
DUE = 100_000

_DEFER = """
INSERT INTO awa_queue.deferred_jobs (job_id, kind, queue, state, args, priority, max_attempts, run_at, created_at)
SELECT nextval('awa.job_id_seq'), 'noop', 'bench', 'scheduled', '{{"i": 1}}', 2, 25,
       clock_timestamp() + interval '{delay}' + n * interval '1 millisecond', clock_timestamp()
FROM generate_series(1, {jobs}) n
"""


_STRAND = """
WITH jobs AS MATERIALIZED (SELECT nextval('awa.job_id_seq') AS id FROM generate_series(1, {jobs})), bodied AS (
    INSERT INTO awa_queue.bodies (slot, priority, max_attempts, shard, job_id, created_at, kind, queue, args)
    SELECT awa_queue.current_slot('segments'), 2, 25, 0, id, clock_timestamp(), 'noop', 'bench', '{{}}' FROM jobs)
INSERT INTO awa_queue.leases (lslot, slot, attempt, frees_claim, job_id, run_lease, instance, claimed_at)
SELECT awa_queue.current_slot('leases'), awa_queue.current_slot('segments'), 1, false, id, 1, gen_random_uuid(), now()
FROM jobs
"""


@attrs.frozen
class Noop:
    queue: ClassVar[str] = "timed"
    i: int


async def _promote_all(url: str) -> int:
    moved = 0
    async with awa.open_client(url) as client, client.pool.acquire() as session:
        while (report := await promote(session, 2_000)).moved:
            moved += report.moved
    return moved


def test_promotion_rate(meters: Meters, durable_server: tuple[str, int]) -> None:
    meters._connection.execute(_DEFER.format(delay="-1 day", jobs=DUE).encode())
    with meters.measured(time.perf_counter) as reading:
        moved = trio.run(_promote_all, durable_server[0])
    assert moved == DUE
    rate, cpu = DUE / reading.seconds, reading.server / DUE * 1e6
    print(f"\n\npromotion in batches: {rate:,.0f} jobs/s, {cpu:.0f} µs of server CPU each")


async def _latencies(url: str) -> list[float]:
    async with awa.open_client(url) as client, trio.open_nursery() as nursery:
        maintenance = await nursery.start(client.run_maintenance)
        await maintenance.wait_leader()
        for n in range(400):
            await client.insert(Noop(n), awa.InsertOpts(run_at=dt.timedelta(seconds=0.3 + n % 7 / 10)))
            await trio.sleep(0.02)
        await trio.sleep(2)
        async with client.pool.acquire() as session:
            rows = await session.fetch(
                "SELECT extract(epoch FROM r.ready_at - b.run_at)::float8 AS late FROM awa_queue.ready r "
                "JOIN awa_queue.bodies b ON b.slot = r.slot AND b.job_id = r.job_id WHERE r.queue = 'timed'"
            )
        nursery.cancel_scope.cancel()
    return sorted(row["late"] for row in rows)


def test_promotion_latency_beside_a_million_future_jobs(meters: Meters, durable_server: tuple[str, int]) -> None:
    meters._connection.execute(_DEFER.format(delay="1 year", jobs=FUTURE).encode())
    late = trio.run(_latencies, durable_server[0])
    assert len(late) == 400
    p50, p99 = late[200] * 1e3, late[395] * 1e3
    print(f"\n\npromotion latency beside {FUTURE:,} future jobs: p50 {p50:.0f} ms, p99 {p99:.0f} ms")


async def _rescue_all(url: str, interval: float) -> float:
    settings = awa.MaintenanceSettings(rescue_interval=interval)
    async with awa.open_client(url) as client, trio.open_nursery() as nursery:
        maintenance: awa.Maintenance = await nursery.start(partial(client.run_maintenance, settings=settings))
        await maintenance.wait_leader()
        began = trio.current_time()
        await until(partial(ask, client, "SELECT NOT EXISTS (SELECT FROM awa_queue.leases)"), 60.0)
        took = trio.current_time() - began
        nursery.cancel_scope.cancel()
    return took


def test_a_mass_failure_of_attempts(meters: Meters, durable_server: tuple[str, int]) -> None:
    meters._connection.execute(_STRAND.format(jobs=DUE).encode())
    took = trio.run(_rescue_all, durable_server[0], 5.0)
    print(f"\n\n{DUE:,} attempts of dead instances are back after {took:.1f} s, {DUE / took:,.0f}/s")


async def _idle(url: str, meters: Meters, pid: int, seconds: float) -> tuple[float, float]:
    async with awa.open_client(url) as client, trio.open_nursery() as nursery:
        maintenance = await nursery.start(client.run_maintenance)
        await maintenance.wait_leader()
        await trio.sleep(3)
        commits, cpu = meters.commits(), server_cpu(pid)
        await trio.sleep(seconds)
        spent = (meters.commits() - commits) / seconds, (server_cpu(pid) - cpu) / seconds
        nursery.cancel_scope.cancel()
    return spent


def test_an_idle_leader_on_an_empty_database(meters: Meters, durable_server: tuple[str, int]) -> None:
    statements, cpu = trio.run(_idle, durable_server[0], meters, durable_server[1], 20.0)
    print(f"\n\nidle leader: {statements:.2f} transactions/s, {cpu * 1e3:.1f} ms of server CPU per second")
