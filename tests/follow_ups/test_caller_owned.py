"""A handler whose own transaction completes its job: business writes and completion commit together."""

import logging
from typing import Any

import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
import trio
from at_work import LIMIT, ask, becomes, until, working
from follow_up_jobs import Notice, Signup, Welcome, enqueued

import awa_actors as awa
import awa_actors.bridge.psycopg as awa_psycopg
import awa_actors.bridge.sqlalchemy as awa_sqlalchemy
from awa_actors.jobs import JobState

WORKS = awa.QueueConfig("signup", poll_interval=0.02)


@pytest.fixture
async def books(database: str) -> str:
    """A database with a table of the application's own."""
    async with awa.open_client(database) as client, client.transaction() as tx:
        await tx.execute("CREATE TABLE public.books (user_id bigint)")
    return database


def charging(handler: Any) -> awa.Registry:
    registry = awa.Registry()
    registry.worker(Signup, completion=awa.Completion.CALLER_OWNED)(handler)
    registry.on_retried_enqueue(Signup)(lambda event: Notice(f"retried {event.error.splitlines()[0]}"))
    registry.on_exhausted_enqueue(Signup)(lambda event: Notice(f"exhausted {event.error.splitlines()[0]}"))
    return registry


async def charge(job: awa.Job[Signup], tx: awa.Transaction) -> awa.FinalizationReceipt:
    await tx.execute("INSERT INTO public.books (user_id) VALUES ($1)", job.args.user_id)
    await tx.insert(Welcome(job.args.user_id))
    return await tx.complete(job)


async def booked(client: awa.Client) -> int:
    return int(await ask(client, "SELECT count(*) FROM public.books"))


async def notices(client: awa.Client) -> list[str]:
    return [one.args["text"] for one in await enqueued(client, "notice")]


async def test_business_rows_completion_and_explicit_follow_up_are_one_commit(books: str) -> None:
    seen: list[Any] = []
    observed = trio.Event()

    async def handler(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
        job.update_metadata(charged=True)
        async with job.client.transaction() as tx:
            return await charge(job, tx)

    registry = charging(handler)

    @registry.on_event(Signup)
    async def watch(event: awa.Event[Signup]) -> None:
        seen.append(event)
        if isinstance(event, awa.events.Completed):
            observed.set()

    async with working(books, registry, WORKS) as (client, _):
        job = await client.insert(Signup(7))
        row = await becomes(client, job.id, JobState.COMPLETED)
        assert (await booked(client), len(await enqueued(client)), row.metadata) == (1, 1, {"charged": True})
        with trio.fail_after(LIMIT):
            await observed.wait()
        assert seen[-1].job.finalized_at == row.finalized_at


async def test_a_rolled_back_transaction_completes_nothing_although_there_is_a_receipt(books: str) -> None:
    runs: list[int] = []

    async def handler(job: awa.Job[Signup]) -> awa.FinalizationReceipt | None:
        runs.append(job.attempt)
        receipt = None
        try:
            async with job.client.transaction() as tx:
                receipt = await charge(job, tx)
                if job.attempt == 1:
                    raise LookupError("later on")
        except LookupError:
            pass
        return receipt

    async with working(books, charging(handler), WORKS) as (client, _):
        job = await client.insert(Signup(7))
        row = await becomes(client, job.id, JobState.RETRYABLE)
        assert "transaction that was not committed" in row.errors[-1]["error"]
        assert await booked(client) == 0
        assert len(await notices(client)) == 1
        await client.admin.retry(job.id)
        # An operator's retry starts at attempt 0.
        await until(lambda: _has_ended(client, job.id))
        assert await booked(client) == 0


async def _has_ended(client: awa.Client, job_id: int) -> bool:
    row = await client.admin.job(job_id)
    return row.state is JobState.RETRYABLE and len(row.errors) == 2


async def test_what_a_handler_raises_after_its_commit_changes_nothing(
    books: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
        async with job.client.transaction() as tx:
            await charge(job, tx)
        raise ValueError("after the commit")

    with caplog.at_level(logging.WARNING, "awa_actors.worker"):
        async with working(books, charging(handler), WORKS) as (client, worker):
            job = await client.insert(Signup(7))
            await becomes(client, job.id, JobState.COMPLETED)
            await worker.drain()
            row = await client.admin.job(job.id)
            assert (row.state, row.errors, await booked(client)) == (JobState.COMPLETED, (), 1)
            assert await notices(client) == []
    assert "was completed by its handler, which then ended otherwise: ValueError: after the commit" in caplog.text


async def test_an_ambiguous_commit_is_reconciled_before_anything_is_retried(
    books: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to COMMIT is lost: the handler cannot know, the database does."""
    from awa_actors.store.pool import Session

    runs: list[int] = []
    execute = Session.execute

    async def handler(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
        runs.append(job.attempt)

        async def losing(self: Session, sql: str, *args: Any) -> str:
            done = await execute(self, sql, *args)
            if sql == "COMMIT":
                self.cut()
                raise awa.TransientStoreError("the connection to the database was lost")
            return done

        monkeypatch.setattr(Session, "execute", losing)
        try:
            async with job.client.transaction() as tx:
                return await charge(job, tx)
        finally:
            monkeypatch.setattr(Session, "execute", execute)

    async with working(books, charging(handler), WORKS, maintenance=True) as (client, worker):
        job = await client.insert(Signup(7))
        await becomes(client, job.id, JobState.COMPLETED)
        await worker.drain()
        assert (runs, await booked(client), await notices(client)) == ([1], 1, [])


async def test_an_attempt_that_was_taken_away_aborts_the_business_writes(books: str) -> None:
    started, go, raised = trio.Event(), trio.Event(), []

    async def handler(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
        started.set()
        with trio.CancelScope(shield=True):
            await go.wait()
            try:
                async with job.client.transaction() as tx:
                    return await charge(job, tx)
            except awa.StaleAttempt as error:
                raised.append(error)
                raise
        raise AssertionError("the transaction went through")

    async with working(books, charging(handler), WORKS) as (client, worker):
        job = await client.insert(Signup(7))
        await started.wait()
        await client.admin.cancel(job.id)
        go.set()
        await worker.drain()
        assert len(raised) == 1
        assert (await client.admin.job(job.id)).state is JobState.CANCELLED
        assert (await booked(client), len(await enqueued(client)), await notices(client)) == (0, 0, [])


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (awa.RetryAfter(3600), JobState.RETRYABLE),
        (awa.Snooze(3600), JobState.SCHEDULED),
        (awa.Cancel(), JobState.CANCELLED),
    ],
)
async def test_verdicts_other_than_success_are_the_runtimes(books: str, verdict: Any, state: JobState) -> None:
    async def handler(job: awa.Job[Signup]) -> Any:
        return verdict

    async with working(books, charging(handler), WORKS) as (client, _):
        job = await client.insert(Signup(7))
        await becomes(client, job.id, state)


async def test_no_receipt_is_an_error_that_says_what_to_return(books: str) -> None:
    async def handler(job: awa.Job[Signup]) -> None:
        return None

    async with working(books, charging(handler), WORKS) as (client, _):
        job = await client.insert(Signup(7))
        row = await becomes(client, job.id, JobState.FAILED)
        assert "receipt of tx.complete(job)" in row.errors[-1]["error"]
        assert len(await notices(client)) == 1


async def test_no_receipt_after_a_commit_is_a_completed_job_all_the_same(books: str) -> None:
    async def handler(job: awa.Job[Signup]) -> None:
        async with job.client.transaction() as tx:
            await charge(job, tx)

    async with working(books, charging(handler), WORKS) as (client, worker):
        job = await client.insert(Signup(7))
        await becomes(client, job.id, JobState.COMPLETED)
        await worker.drain()
        assert (await client.admin.job(job.id)).state is JobState.COMPLETED


async def test_complete_is_refused_where_the_runtime_completes(database: str) -> None:
    registry = awa.Registry()

    @registry.worker(Signup)
    async def handler(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
        async with job.client.transaction() as tx:
            return await tx.complete(job)

    async with working(database, registry, WORKS) as (client, _):
        job = await client.insert(Signup(7))
        row = await becomes(client, job.id, JobState.RETRYABLE)
        assert "register with completion=awa.Completion.CALLER_OWNED" in row.errors[-1]["error"]


async def test_the_look_waits_for_a_transaction_that_is_just_committing(database: str) -> None:
    """Two looks in the other order, or without the lock, would call a completing attempt stale or live."""
    from small_load import new_instance, take

    from awa_actors.store.caller_owned import attempt_state

    async with awa.open_client(database) as client:
        await client.insert(Signup(1))
        async with client.pool.acquire() as one, client.pool.acquire() as two:
            instance = await new_instance(one)
            (claimed,) = await take(one, instance, "signup")
            answers: list[str] = []

            async def look() -> None:
                answers.append((await attempt_state(two, claimed.job_id, claimed.run_lease, instance))[0])

            async with trio.open_nursery() as nursery, one.transaction():
                await one.execute(
                    "SELECT awa.complete_attempt($1, $2, $3)", claimed.job_id, claimed.run_lease, instance
                )
                nursery.start_soon(look)
                await until(lambda: _waits_for_a_lock(client))
                assert answers == []
            assert answers == ["completed"]
            with pytest.raises(awa.StaleAttempt):
                await one.execute(
                    "SELECT awa.complete_attempt($1, $2, $3)", claimed.job_id, claimed.run_lease, instance
                )


async def _waits_for_a_lock(client: awa.Client) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(await ask(client, waiting))


def by_psycopg(url: str, job: awa.Job[Signup]) -> awa.FinalizationReceipt:
    with psycopg.connect(url) as conn:
        conn.execute("INSERT INTO public.books VALUES (%s)", [job.args.user_id])
        awa_psycopg.insert(conn, Welcome(job.args.user_id))
        return awa_psycopg.complete(conn, job)


def by_sqlalchemy(url: str, job: awa.Job[Signup]) -> awa.FinalizationReceipt:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    with sqlalchemy.orm.Session(engine) as session, session.begin():
        session.execute(sqlalchemy.text("INSERT INTO public.books VALUES (:n)"), {"n": job.args.user_id})
        awa_sqlalchemy.insert(session, Welcome(job.args.user_id))
        made = awa_sqlalchemy.complete(session, job)
    engine.dispose()
    return made


@pytest.mark.parametrize("write", [by_psycopg, by_sqlalchemy])
async def test_a_bridge_completes_in_the_applications_own_transaction(books: str, write: Any) -> None:
    registry = awa.Registry()

    @registry.worker(Signup, completion=awa.Completion.CALLER_OWNED)
    def handler(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
        job.update_metadata(by=write.__name__)
        made: awa.FinalizationReceipt = write(books, job)
        return made

    async with working(books, registry, WORKS) as (client, _):
        job = await client.insert(Signup(7))
        row = await becomes(client, job.id, JobState.COMPLETED)
        assert row.metadata == {"by": write.__name__}
        assert (await booked(client), len(await enqueued(client))) == (1, 1)


async def test_a_bridge_aborts_the_transaction_of_an_attempt_that_was_taken_away(books: str) -> None:
    registry, raised = awa.Registry(), []

    @registry.worker(Signup, completion=awa.Completion.CALLER_OWNED)
    def handler(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
        with psycopg.connect(books, autocommit=True) as other:
            other.execute("SELECT awa.cancel_job(%s)", [job.id])
        try:
            return by_psycopg(books, job)
        except awa.StaleAttempt as error:
            raised.append(error)
            raise

    async with working(books, registry, WORKS) as (client, worker):
        job = await client.insert(Signup(7))
        await becomes(client, job.id, JobState.CANCELLED)
        await worker.drain()
        assert len(raised) == 1
        assert (await booked(client), len(await enqueued(client))) == (0, 0)
