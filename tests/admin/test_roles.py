"""Each documented role does what it is for, and is refused everything else in one line; row security is on."""

import datetime as dt
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import attrs
import psycopg
import pytest
import trio
from at_work import until
from callback_jobs import CallbackJob, registered
from database_roles import Granted, granted_roles
from postgres_servers import Server
from psycopg import sql
from storage_states import make_canonical

import awa_actors as awa
from awa_actors.batch_admin import BatchRequest
from awa_actors.config import MaintenanceSettings, WorkerSettings
from awa_actors.core.liveness import Liveness
from awa_actors.errors import StoreError
from awa_actors.store import leadership
from awa_actors.store.claim import claim

QUICK = MaintenanceSettings(refresh_interval=0.1)


@attrs.frozen
class Errand:
    n: int = 0


@attrs.frozen
class Note:
    n: int = 0


@attrs.frozen
class Stage:
    """What operations find.

    Attributes:
        client: of the role.
        owner: of the schema's owner.
        callbacks: open ones.
        failed, dead, waiting: ids of jobs in these states.
    """

    client: awa.Client
    owner: awa.Client
    callbacks: list[CallbackJob]
    failed: list[int]
    waiting: list[int]


Operation = Callable[[Stage], Awaitable[object]]
OPERATIONS: dict[str, tuple[frozenset[str], Operation]] = {}


def allowed(*roles: str) -> Callable[[Operation], Operation]:
    def note(operation: Operation) -> Operation:
        OPERATIONS[operation.__name__] = (frozenset(roles), operation)
        return operation

    return note


WRITERS = ("producer", "worker", "maintenance", "callbacks", "admin")
VIEWERS = ("reader", "admin")
MOVERS = (*VIEWERS, "maintenance")
"""Maintenance sees every job, since it moves every job."""


@allowed(*WRITERS)
async def enqueue(stage: Stage) -> object:
    return await stage.client.insert_many([Errand(n) for n in range(3)])


@allowed(*WRITERS)
async def enqueue_with_options(stage: Stage) -> object:
    once = awa.UniqueOpts(by_args=True, on_conflict=awa.OnConflict.RETURN_EXISTING)
    late = awa.InsertOpts(run_at=dt.timedelta(hours=1), unique=once, tags=["late"])
    await stage.client.insert(Errand(7), late)
    again = awa.InsertOpts(unique=once)
    return await stage.client.insert(Errand(7), again)


@allowed("producer", "admin")
async def enqueue_by_the_sql_function(stage: Stage) -> object:
    async with stage.client.transaction() as tx:
        return await tx.fetch("""SELECT awa.insert_job('errand', '{"n": 1}', '{"delay": 60}')""")


@allowed("worker")
async def work(stage: Stage) -> object:
    """Every kind of end, callbacks and follow-ups included."""
    async with stage.client.pool.acquire() as session:
        # A worker that may not claim says so and tries again; here it is asked once.
        await claim(session, "nothing", 1, uuid.uuid4(), max_bytes=1, aging=0, deadline=None, hints=[])
    settings = WorkerSettings(liveness=Liveness(6.0), cancel_poll=0.05)
    queues = [awa.QueueConfig("errands", poll_interval=0.05), awa.QueueConfig("default")]
    jobs = await stage.owner.insert_many([Errand(n) for n in range(100, 107)], awa.InsertOpts(queue="errands"))
    wanted = ["completed", "retryable", "scheduled", "failed", "cancelled", "waiting_external", "completed"]
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[awa.Worker]) -> None:
            await stage.client.run_worker(*queues, maintenance=False, settings=settings, task_status=task_status)

        worker = await nursery.start(run)

        async def ended() -> bool:
            return [(await stage.owner.admin.job(job.id)).state.value for job in jobs] == wanted

        await until(ended)
        await worker.drain()
    followed = {job.args["n"] for job in await stage.owner.admin.jobs(kind="note", limit=10_000)}
    assert followed >= {100, 106}
    return followed


@allowed("maintenance")
async def keep_moving(stage: Stage) -> object:
    report = await stage.client.tick(awa.Budget(), QUICK)
    if report.errors:
        assert all("permission denied" in error for error in report.errors.values()), report.errors
        raise StoreError("; ".join(report.errors.values()))
    return report


@allowed("maintenance")
async def lead(stage: Stage) -> object:
    async with stage.client.pool.acquire() as session:
        # The same here: a candidate that may not lead stands again.
        term = await leadership.acquire(session, (nobody := uuid.uuid4()), 10)
        assert term is not None
        await leadership.resign(session, nobody, term)
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[awa.Maintenance]) -> None:
            await stage.client.run_maintenance(settings=QUICK, task_status=task_status)

        maintenance = await nursery.start(run)
        await maintenance.wait_leader()
        lanes = maintenance.lanes

        async def passed() -> bool:
            # What moves jobs between planes has nothing to do where no move is under way.
            return all(lane.health.passes for lane in lanes if lane.step.name != "mover")

        await until(passed)
        nursery.cancel_scope.cancel()
    errors = [lane.health.last_error for lane in lanes if lane.health.last_error]
    assert not errors, errors
    return lanes


@allowed("callbacks")
async def complete_a_callback(stage: Stage) -> object:
    return await stage.client.complete_external(stage.callbacks[0].callback_id, {"paid": True})


@allowed("callbacks")
async def fail_a_callback(stage: Stage) -> object:
    return await stage.client.fail_external(stage.callbacks[1].callback_id, "no")


@allowed("callbacks")
async def retry_by_callback(stage: Stage) -> object:
    return await stage.client.retry_external(stage.callbacks[2].callback_id)


@allowed("callbacks")
async def resume_and_extend_a_callback(stage: Stage) -> object:
    await stage.client.heartbeat_callback(stage.callbacks[3].callback_id, 60)
    return await stage.client.resume_external(stage.callbacks[3].callback_id, {})


@allowed(*MOVERS)
async def look_at_health(stage: Stage) -> object:
    return await stage.client.admin.health()


@allowed(*VIEWERS)
async def look_at_jobs(stage: Stage) -> object:
    assert await stage.client.admin.jobs(limit=5)
    await stage.client.admin.history(stage.failed[0])
    return await stage.client.admin.queue_stats()


@allowed(*MOVERS)
async def look_at_dead_letters(stage: Stage) -> object:
    await stage.client.admin.dead_letters.list()
    return await stage.client.admin.dead_letters.depth()


@allowed(*MOVERS)
async def look_at_schedules_and_follow_ups(stage: Stage) -> object:
    admin = stage.client.admin
    await admin.cron_list()
    await admin.descriptors()
    await admin.follow_up_failures()
    return [await admin.follow_up_outbox(), await admin.declared_follow_ups()]


@allowed("maintenance", *VIEWERS)
async def look_at_the_storage(stage: Stage) -> object:
    return await stage.client.admin.storage.status()


@allowed()
async def begin_a_move(stage: Stage) -> object:
    """The schema's owner does that."""
    return await stage.client.admin.storage.prepare()


@allowed("admin")
async def change_many(stage: Stage) -> object:
    request = BatchRequest(set_priority=4, kind="errand")
    await stage.client.admin.batches.preview(request)
    submitted = await stage.client.admin.batches.submit(request)
    return await stage.client.admin.batches.cancel(submitted.id)


@allowed("admin")
async def cancel(stage: Stage) -> object:
    return await stage.client.admin.cancel(stage.waiting[0])


@allowed("admin")
async def retry(stage: Stage) -> object:
    return await stage.client.admin.retry(stage.failed[0])


@allowed("admin")
async def pause_and_resume(stage: Stage) -> object:
    await stage.client.admin.pause_queue("errands", by="me")
    return await stage.client.admin.resume_queue("errands")


@allowed("admin")
async def tune(stage: Stage) -> object:
    await stage.client.admin.overrides.set("errands", claim_batch=5)
    return await stage.client.admin.overrides.clear("errands")


@allowed("admin")
async def move_retry_and_purge_dead_letters(stage: Stage) -> object:
    letters = stage.client.admin.dead_letters
    await letters.set_policy("default", enabled=True)
    await letters.move(kind="errand")
    await letters.retry_bulk(kind="errand")
    return await letters.purge(kind="errand")


@allowed("admin")
async def act_in_bulk(stage: Stage) -> object:
    admin = stage.client.admin
    await admin.drain_queue("somewhere")
    await admin.retry_failed(kind="errand")
    return await admin.discard("nothing")


def _registry() -> awa.Registry:
    registry = awa.Registry()

    @registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        match job.args.n:
            case 101:
                raise RuntimeError("again")
            case 102:
                return awa.Snooze(60)
            case 103:
                raise awa.TerminalError("never")
            case 104:
                return awa.Cancel("no more")
            case 105:
                return awa.WaitForCallback(await job.register_callback(expires_in=60))
        job.set_progress(50)
        return None

    @registry.on_completed_enqueue(Errand)
    def note(event: awa.events.Completed[Errand]) -> Note:
        return Note(event.args.n)

    @registry.on_rescued_enqueue(Errand, delivery="outbox")
    def rescued(event: awa.events.Rescued[Errand]) -> Note:
        return Note(event.args.n)

    registry.describe_kind(Errand, description="Runs an errand")
    registry.cron("nightly", "0 3 * * *", Errand())
    return registry


@asynccontextmanager
async def staged(granted: Granted, role: str, prepare: Callable[[str], object]) -> AsyncIterator[Stage]:
    with psycopg.connect(granted.url, autocommit=True) as connection:
        callbacks = [registered(connection, "parked") for _ in range(4)]
    prepare(granted.url)
    settings = awa.DatabaseSettings(pool_size=3)
    async with (
        awa.open_client(granted.url) as owner,
        awa.open_client(granted.url_of(role), registry=_registry(), settings=settings) as client,
    ):
        failed = await owner.insert_many([Errand(n) for n in range(2)], awa.InsertOpts(queue="aside"))
        waiting = await owner.insert_many([Errand(n) for n in range(2)], awa.InsertOpts(queue="aside"))
        async with owner.transaction() as tx:
            for job in failed:
                await tx.cancel(job.id)
        yield Stage(client, owner, callbacks, [job.id for job in failed], [job.id for job in waiting])


@pytest.fixture
def granted(database: str, server: Server) -> Iterator[Granted]:
    with granted_roles(database, server) as granted:
        yield granted


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Errors come out of nurseries wrapped."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _is_clear(error: Exception) -> bool:
    return all(
        isinstance(leaf, StoreError)
        and str(leaf).startswith("permission denied for")
        and "'awa-actors doctor' says what this role lacks" in str(leaf)
        and "\n" not in str(leaf)
        for leaf in _leaves(error)
    )


@pytest.mark.slow
@pytest.mark.parametrize("role", [*WRITERS, "reader", "nobody"])
async def test_a_role_does_what_it_is_for_and_nothing_else(role: str, granted: Granted) -> None:
    await _try_everything(role, granted, lambda url: None)


@pytest.mark.slow
@pytest.mark.parametrize("role", WRITERS)
async def test_so_it_does_where_jobs_live_on_the_canonical_plane(role: str, granted: Granted) -> None:
    await _try_everything(role, granted, make_canonical)


async def _try_everything(role: str, granted: Granted, prepare: Callable[[str], object]) -> None:
    wrong = []
    async with staged(granted, role, prepare) as stage:
        for name, (roles, operation) in OPERATIONS.items():
            try:
                await operation(stage)
            except Exception as error:  # whatever an operation does when it is not allowed
                if role in roles or not _is_clear(error):
                    wrong.append(f"{name}: " + "; ".join(map(repr, _leaves(error))))
            else:
                if role not in roles:
                    wrong.append(f"{name} is not for {role}, and worked")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
async def test_an_owner_that_is_no_superuser_migrates_and_does_everything(empty_database: str, server: Server) -> None:
    name = f"awa owner {uuid.uuid4()}"[:40]
    server.ask(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
    granted = Granted(empty_database, {"owner": name})
    try:
        async with awa.open_client(granted.url_of("owner")) as client:
            with pytest.raises(StoreError, match="permission denied for database"):
                await client.migrate()
            async with awa.open_client(empty_database) as administrator:
                await administrator.admin.grant([("owner", name)])
            await client.migrate()
            job = await client.insert(Errand())
            assert not (await client.tick()).errors
            assert await client.admin.cancel(job.id) is not None
    finally:
        with psycopg.connect(empty_database, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
        server.ask(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))
