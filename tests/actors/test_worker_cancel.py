"""Cancelling running jobs: at once through LISTEN, by polling without it, whatever else the worker is busy with."""

import attrs
import pytest
import trio
from at_work import LIMIT, Work, becomes, until, working
from freezing_proxy import freezing_proxy

import awa_actors as awa
from awa_actors.actors import listener
from awa_actors.config import DatabaseSettings, QueueConfig, WorkerSettings
from awa_actors.jobs import JobState

CANCELLED, RUNNING = JobState.CANCELLED, JobState.RUNNING


@attrs.define(eq=False)
class Waiting:
    """Handlers that wait for ever, and when each began and was cancelled."""

    began: dict[int, trio.Event] = attrs.field(factory=dict)
    cancelled: dict[int, float] = attrs.field(factory=dict)
    ended: dict[int, trio.Event] = attrs.field(factory=dict)
    registry: awa.Registry = attrs.field(factory=awa.Registry)

    def __attrs_post_init__(self) -> None:
        @self.registry.worker(Work)
        async def wait(job: awa.Job[Work]) -> None:
            self.began.setdefault(job.id, trio.Event()).set()
            try:
                await trio.sleep_forever()
            finally:
                self.cancelled[job.id] = trio.current_time()
                self.ended.setdefault(job.id, trio.Event()).set()

    async def run_of(self, job_id: int) -> None:
        with trio.fail_after(LIMIT):
            await self.began.setdefault(job_id, trio.Event()).wait()

    async def end_of(self, job_id: int) -> None:
        with trio.fail_after(LIMIT):
            await self.ended.setdefault(job_id, trio.Event()).wait()


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


async def test_a_running_handler_is_cancelled_right_after_the_cancel_is_committed(
    database: str, waiting: Waiting, capsys: pytest.CaptureFixture[str]
) -> None:
    delays = []
    # Polling must not be what finds it.
    async with working(database, waiting.registry, settings=WorkerSettings(cancel_poll=60.0)) as (client, _):
        for n in range(50):
            job = await client.insert(Work(n))
            await waiting.run_of(job.id)
            asked = trio.current_time()
            assert await client.admin.cancel(job.id) is not None
            await waiting.end_of(job.id)
            delays.append(waiting.cancelled[job.id] - asked)
    delays.sort()
    with capsys.disabled():
        print(f"\ncancel of a running job, from the call: p50 {delays[25]:.4f} s, p95 {delays[47]:.4f} s, "
              f"most {delays[-1]:.4f} s")  # fmt: skip
    assert delays[47] < 0.25


@pytest.mark.parametrize("how", ["notify is off", "behind a pooler"])
async def test_without_notifications_a_cancel_is_found_by_polling(database: str, waiting: Waiting, how: str) -> None:
    settings = DatabaseSettings(notify=False) if how == "notify is off" else DatabaseSettings(pooler=True)
    lives = WorkerSettings(cancel_poll=0.02)
    queue = QueueConfig("default", poll_interval=0.02)
    async with working(database, waiting.registry, queue, database=settings, settings=lives) as (client, _):
        job = await client.insert(Work())
        await waiting.run_of(job.id)
        await client.admin.cancel(job.id)
        await waiting.end_of(job.id)
        await becomes(client, job.id, CANCELLED)


async def test_a_cancel_is_found_when_all_slots_and_all_connections_are_taken(database: str) -> None:
    registry, holding, ended = awa.Registry(), list[int](), list[int]()

    @registry.worker(Work)
    async def hold(job: awa.Job[Work]) -> None:
        try:
            async with job.client.transaction() as tx:
                await tx.execute("SELECT 1")
                holding.append(job.id)
                await trio.sleep_forever()
        finally:
            ended.append(job.id)

    settings = DatabaseSettings(pool_size=2, notify=False)
    queue = QueueConfig("default", 2, poll_interval=0.02)
    async with awa.open_client(database) as operator:
        jobs = await operator.insert_many([Work(n) for n in range(3)])

        async def hold_all(ids: list[int]) -> None:
            async def do() -> bool:
                return sorted(holding) == ids

            await until(do)

        lives = WorkerSettings(cancel_poll=0.02)
        async with working(database, registry, queue, database=settings, settings=lives):
            await hold_all([job.id for job in jobs[:2]])
            for job in reversed(jobs):  # the one that waits first: a slot that comes free would let it start
                await operator.admin.cancel(job.id)

            async def both_ended() -> bool:
                return sorted(ended) == [job.id for job in jobs[:2]]

            await until(both_ended)
    assert len(holding) == 2, "the third was cancelled before it could start"


async def test_a_running_job_can_be_cancelled_while_its_worker_drains(database: str, waiting: Waiting) -> None:
    lives = WorkerSettings(cancel_poll=60.0)
    async with awa.open_client(database) as operator:
        job = await operator.insert(Work())
        async with working(database, waiting.registry, settings=lives) as (_, worker), trio.open_nursery() as nursery:
            await waiting.run_of(job.id)
            nursery.start_soon(worker.drain)
            await trio.testing.wait_all_tasks_blocked(0.01)
            await operator.admin.cancel(job.id)
            await waiting.end_of(job.id)


@pytest.fixture
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look after the listening connection often, so that a test need not wait."""
    monkeypatch.setattr(listener, "PROBE_EVERY", 0.1)


@pytest.mark.usefixtures("quick_probe")
async def test_a_frozen_listener_costs_speed_and_is_replaced(database: str, waiting: Waiting) -> None:
    async with freezing_proxy(database) as proxy, awa.open_client(database) as operator:
        queue = QueueConfig("default", poll_interval=0.02)
        lives = WorkerSettings(cancel_poll=0.02)
        async with working(proxy.url, waiting.registry, queue, settings=lives):
            proxy.freeze("listener")
            job = await operator.insert(Work())
            await waiting.run_of(job.id)
            await operator.admin.cancel(job.id)
            await waiting.end_of(job.id)
            proxy.thaw()


@pytest.mark.usefixtures("quick_probe")
@pytest.mark.parametrize("harm", ["killed", "frozen"])
async def test_a_listener_comes_back_and_is_heard(database: str, waiting: Waiting, harm: str) -> None:
    # Polling is so slow that only a notification, or the look after a reconnection, finds anything in time.
    queue, lives = QueueConfig("default", poll_interval=600.0), WorkerSettings(cancel_poll=600.0)
    terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%listener'"
    async with (
        freezing_proxy(database) as proxy,
        awa.open_client(database) as operator,
        working(proxy.url, waiting.registry, queue, settings=lives),
    ):
        first = await operator.insert(Work())
        await waiting.run_of(first.id)
        if harm == "killed":
            async with operator.transaction() as tx:
                await tx.fetch(terminate)
        else:
            proxy.freeze("listener")
        second = await operator.insert(Work())
        if harm == "frozen":
            with trio.move_on_after(0.5):  # long enough for the probe to give the connection up
                await waiting.run_of(second.id)
            proxy.thaw()
        await waiting.run_of(second.id)
        third = await operator.insert(Work())
        await waiting.run_of(third.id)
        for job in (first, second, third):
            await operator.admin.cancel(job.id)
            await waiting.end_of(job.id)
