"""A queue plane in a schema of another name: everybody works there, and nobody has to say so."""

import datetime as dt
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from functools import partial

import attrs
import psycopg
import psycopg.errors
import pytest
import trio
from at_work import LIMIT, Work, becomes, until, working
from command_line import awa as command
from producers import PRODUCERS
from queue_plane import Plane, open_plane
from storage_states import enter_mixed, live, make_canonical, step

import awa_actors as awa
from awa_actors.config import MaintenanceSettings
from awa_actors.core.transition import Transition
from awa_actors.store import migrate

SCHEMA = "shop_jobs"


@attrs.frozen
class Payment:
    order: int


@pytest.fixture
def moved(database: str) -> Iterator[Plane]:
    """A session of a database whose queue plane has another schema."""
    with closing(open_plane(database)) as session:
        assert session.value("SELECT awa.storage_prepare_schema(%s)", SCHEMA)
        yield session


def test_nothing_names_the_usual_schema_any_more(moved: Plane) -> None:
    assert moved.value("SELECT to_regnamespace('awa_queue')") is None
    assert moved.value("SELECT count(*) FROM pg_proc WHERE prosrc LIKE '%%awa\\_queue.%%'") == 0
    assert moved.value("SELECT awa.storage_schema()") == SCHEMA
    assert moved.row("SELECT * FROM awa.storage_status()")["details"]["schema"] == SCHEMA
    assert moved.value("SELECT awa.storage_prepare_schema(%s)", SCHEMA) is False


NO_NAMES = ("", "q", "Shop", "shop jobs", 'x"; DROP SCHEMA awa; --', "pg_shop", "select", "9lives", "a" * 51, None)


def test_a_name_that_would_have_to_be_quoted_is_refused(database: str) -> None:
    with closing(open_plane(database)) as session:
        for name in NO_NAMES:
            with pytest.raises(psycopg.errors.InvalidParameterValue, match="3 to 50"):
                session.value("SELECT awa.storage_prepare_schema(%s)", name)


def test_a_schema_is_not_changed_under_those_who_use_it(database: str) -> None:
    make_canonical(database)
    with closing(open_plane(database)) as session:
        session.rows("CREATE SCHEMA taken")
        for name, make, why in [
            ("taken", None, "there is a schema taken already"),
            (SCHEMA, lambda: live(session), "live processes use the queue plane"),
            (SCHEMA, lambda: session.rows("DELETE FROM awa.instances"), None),
        ]:
            if make is not None:
                make()
            if why is not None:
                with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=why):
                    session.value("SELECT awa.storage_prepare_schema(%s)", name)
        enter_mixed(session)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="the state is mixed_transition"):
            session.value("SELECT awa.storage_prepare_schema(%s)", SCHEMA)
        session.insert()
        step(session, "finalize")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="the queue plane has jobs"):
            session.value("SELECT awa.storage_prepare_schema(%s)", SCHEMA)


def test_a_schema_has_one_other_name_in_its_life(moved: Plane) -> None:
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=f"has been given schema {SCHEMA} already"):
        moved.value("SELECT awa.storage_prepare_schema('another')")


async def test_workers_and_maintenance_work_there(database: str, moved: Plane) -> None:
    registry = awa.Registry()

    @registry.worker(Work)
    async def run(job: awa.Job[Work]) -> awa.Verdict:
        match job.args.n:
            case 1 if job.snoozes == 0:
                return awa.Snooze(0.01)
            case 2 if job.attempt == 1:
                return awa.RetryAfter(0.01)
            case 3:
                raise awa.TerminalError("no")
        return None

    lanes = MaintenanceSettings(promote_interval=0.05)
    async with working(database, registry, awa.QueueConfig("default"), maintenance=lanes) as (client, _):
        jobs = [job.id for job in await client.insert_many([Work(n) for n in range(4)])]
        for job, state in zip(jobs, ["completed", "completed", "completed", "failed"], strict=True):
            await becomes(client, job, awa.JobState(state))
        assert (await client.tick()).errors == {}
        assert {one.queue for one in await client.admin.queue_stats()} == {"default"}
        assert await client.admin.retry(jobs[3]) is not None
        await becomes(client, jobs[3], awa.JobState.FAILED, lambda row: row.attempt == 1 and row.run_lease == 2)


BRIDGES = ("asyncpg", "psycopg", "psycopg async", "sqlalchemy session", "django")


def test_bridges_insert_and_resolve_callbacks_there(database: str, moved: Plane) -> None:
    registry = awa.Registry()
    tokens: list[str] = []

    @registry.worker(Payment)
    async def pay(job: awa.Job[Payment]) -> awa.Verdict:
        token = await job.register_callback(expires_in=60)
        tokens.append(token.callback_id)
        return awa.WaitForCallback(token)

    jobs: list[int] = []
    for name in BRIDGES:
        with PRODUCERS[name](database) as producer:
            jobs.append(producer.insert(Payment(len(jobs))).id)
            producer.commit()

    async def park() -> None:
        async with working(database, registry) as (client, _):
            for job in jobs:
                await becomes(client, job, awa.JobState.WAITING_EXTERNAL)

    trio.run(park)
    for name, token in zip(BRIDGES, tokens, strict=True):
        with PRODUCERS[name](database) as producer:
            done = producer.bridge("complete_external", token, {"paid": name}, registry=registry)
            producer.commit()
        assert (done.state, done.result) == (awa.JobState.COMPLETED, {"paid": name})


def test_the_command_line_works_there(database: str, moved: Plane) -> None:
    (job,) = moved.insert()
    moved.job(delay=3600)
    for line in (
        *("job list", f"job show {job}", f"job dump {job}", "queue list", "queue stats", "health", "dlq list"),
        *("dlq depth", "tick", "storage status", f"job cancel {job}", f"job retry {job}", "queue drain default"),
        "migrate",
    ):  # fmt: skip
        answer = command(*line.split(), url=database)
        assert answer.status == 0 or line == "health", (line, answer)
        assert "does not exist" not in answer.err


async def test_later_migrations_are_made_there(database: str, moved: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    known = migrate.migrations()
    more = migrate.Migration(known[-1].version + 1, "more", "CREATE TABLE awa_queue.more ()")
    monkeypatch.setattr(migrate, "migrations", lambda: [*known, more])
    async with awa.open_client(database) as client:
        assert [step.name for step in await client.migrate()] == ["more"]
    assert moved.value("SELECT to_regclass(%s)", f"{SCHEMA}.more") is not None


async def test_a_client_that_was_open_meanwhile_finds_it_again(database: str) -> None:
    async with awa.open_client(database) as client:
        job = await client.insert(Work())
        await client.admin.cancel(job.id)
        async with client.pool.acquire() as session:
            await session.execute("TRUNCATE awa_queue.terminal")
        with closing(open_plane(database)) as other:
            other.value("SELECT awa.storage_prepare_schema(%s)", SCHEMA)
        await client.insert(Work())
        with pytest.raises(awa.SchemaNotMigrated):
            await client.admin.dead_letters.depth()
        assert await client.admin.dead_letters.depth() == ()


async def test_the_whole_way_in_a_schema_of_another_name(database: str) -> None:
    make_canonical(database)
    with closing(open_plane(database)) as session:
        assert session.value("SELECT awa.storage_prepare_schema(%s)", SCHEMA)
    registry = awa.Registry()

    @registry.worker(Work)
    async def run(job: awa.Job[Work]) -> awa.Verdict:
        return awa.Snooze(3600) if job.args.n else None

    async with working(database, registry, awa.QueueConfig("default"), maintenance=True) as (client, _):
        before = [job.id for job in await client.insert_many([Work(0), Work(1)])]
        later = await client.insert(Work(0), awa.InsertOpts(run_at=dt.timedelta(days=1)))
        await becomes(client, before[0], awa.JobState.COMPLETED)
        await becomes(client, before[1], awa.JobState.SCHEDULED)
        storage = client.admin.storage
        await storage.prepare()
        await until(partial(opens, storage.enter_mixed_transition))
        after = await client.insert(Work(0))
        await becomes(client, after.id, awa.JobState.COMPLETED)
        with trio.fail_after(LIMIT):
            assert (await storage.finalize_when_ready(look_every=0.05)).state == "active"
        assert (await client.admin.job(later.id)).state is awa.JobState.SCHEDULED
        await client.admin.cancel(before[1])


async def opens(step: Callable[[], Awaitable[Transition]]) -> bool:
    """Take a step that waits for a worker to say what it can do."""
    try:
        return bool(await step())
    except awa.StorageGateClosed:
        return False
