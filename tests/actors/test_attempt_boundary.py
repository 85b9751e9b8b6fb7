"""The attempt boundary with a real worker: whatever a handler does, its end is recorded and the worker goes on."""

import contextvars
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import pytest
import trio
from at_work import Work, ask, becomes, until, working

import awa_actors as awa
from awa_actors.config import QueueConfig, WorkerSettings
from awa_actors.core.liveness import Liveness
from awa_actors.errors import TerminalError, ValidationError
from awa_actors.jobs import JobRow, JobState, WaitForCallback

AVAILABLE, CANCELLED, COMPLETED, FAILED = JobState.AVAILABLE, JobState.CANCELLED, JobState.COMPLETED, JobState.FAILED
RETRYABLE, RUNNING, SCHEDULED = JobState.RETRYABLE, JobState.RUNNING, JobState.SCHEDULED


def error_of(row: JobRow) -> str:
    """The last error that a job carries."""
    return str(row.errors[-1]["error"])


async def outcomes(
    database: str, deeds: dict[str, Callable[[], Any]], states: dict[str, JobState]
) -> dict[str, JobRow]:
    """Run one job per deed, all in one worker, until each is in its state; the worker must have survived them all."""
    registry, names = awa.Registry(), list(deeds)

    @registry.worker(Work)
    async def do(job: awa.Job[Work]) -> Any:
        return deeds[names[job.args.n]]()

    async with working(database, registry) as (client, _):
        jobs = await client.insert_many([Work(n) for n in range(len(names))])
        return {name: await becomes(client, job.id, states[name]) for name, job in zip(names, jobs, strict=True)}


async def test_each_verdict_is_recorded_as_what_it_says(database: str) -> None:
    rows = await outcomes(
        database,
        {
            "nothing": lambda: None,
            "no verdict": lambda: "ok",
            "retry after": lambda: awa.RetryAfter(60, "busy"),
            "snooze": lambda: awa.Snooze(60),
            "cancel": lambda: awa.Cancel("mailbox gone"),
        },
        {
            "nothing": COMPLETED,
            "no verdict": COMPLETED,
            "retry after": RETRYABLE,
            "snooze": SCHEDULED,
            "cancel": CANCELLED,
        },
    )
    assert rows["nothing"].attempt == 1
    assert (rows["retry after"].attempt, error_of(rows["retry after"])) == (1, "busy")
    assert (rows["snooze"].attempt, rows["snooze"].snoozes, rows["snooze"].errors) == (0, 1, ())
    assert error_of(rows["cancel"]) == "cancelled: mailbox gone"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def throw(error: BaseException) -> Callable[[], None]:
    def thrower() -> None:
        raise error

    return thrower


async def test_whatever_is_raised_is_recorded_and_stops_nobody(database: str) -> None:
    states = {
        "plain": RETRYABLE,
        "terminal": FAILED,
        "terminal in a group": FAILED,
        "group": RETRYABLE,
        "exit": RETRYABLE,
        "base": RETRYABLE,
        "unprintable": RETRYABLE,
        "nul": RETRYABLE,
        "surrogate": RETRYABLE,
        "five megabytes": RETRYABLE,
        "impossible verdict": RETRYABLE,
    }
    rows = await outcomes(
        database,
        {
            "plain": throw(ValueError("boom")),
            "terminal": throw(TerminalError("no such user")),
            "terminal in a group": throw(ExceptionGroup("both", [ValueError("a"), TerminalError("no such user")])),
            "group": throw(ExceptionGroup("both", [ValueError("one"), KeyError("two")])),
            "exit": lambda: sys.exit(3),
            "base": throw(BaseException("basic")),
            "unprintable": throw(Unprintable()),
            "nul": throw(ValueError("a\x00b")),
            "surrogate": throw(ValueError("lone \ud800 one")),
            "five megabytes": throw(ValueError("x" * 5_000_000)),
            # Not what mypy lets through, but an untyped application can return it.
            "impossible verdict": lambda: WaitForCallback("no token"),  # type: ignore[arg-type]  # on purpose
        },
        states,
    )
    texts = {name: error_of(row) for name, row in rows.items()}
    assert texts["plain"].startswith("ValueError: boom")
    assert "no such user" in texts["terminal"]
    assert "TerminalError: no such user" in texts["terminal in a group"]
    assert "ValueError: one" in texts["group"]
    assert "KeyError: 'two'" in texts["group"]
    assert texts["exit"].startswith("SystemExit: 3")
    assert texts["base"].startswith("BaseException: basic")
    assert "Unprintable" in texts["unprintable"]
    assert texts["nul"].startswith("ValueError: a\ufffdb")
    assert texts["surrogate"].startswith("ValueError: lone \ufffd one")
    assert len(texts["five megabytes"]) <= 8192
    assert "verdict" in texts["impossible verdict"]


async def test_the_error_ends_with_the_lines_that_raised_it(database: str) -> None:
    rows = await outcomes(database, {"plain": throw(ValueError("boom"))}, {"plain": RETRYABLE})
    last = error_of(rows["plain"]).splitlines()[-2:]
    assert f'File "{__file__}"' in last[0]
    assert last[0].endswith(".thrower")
    assert last[1].strip() == "raise error"


@attrs.define(eq=False)
class Stubborn:
    """Handlers that meet a cancellation in each of the three ways, and say when they run and when they end."""

    started: list[int] = attrs.field(factory=list)
    ended: list[int] = attrs.field(factory=list)
    ways: ClassVar[tuple[str, ...]] = ("lets it through", "returns", "raises")

    def registry(self) -> awa.Registry:
        registry = awa.Registry()

        @registry.worker(Work)
        async def resist(job: awa.Job[Work]) -> Any:
            self.started.append(job.id)
            try:
                await trio.sleep_forever()
            except BaseException:  # what a careless application does
                way = self.ways[job.args.n]
                if way == "lets it through":
                    raise
                if way == "raises":
                    raise ValueError("while cleaning up") from None
                return "ok"
            finally:
                self.ended.append(job.id)

        return registry

    async def all_run(self, client: awa.Client, opts: awa.InsertOpts | None = None) -> list[int]:
        jobs = await client.insert_many([Work(n) for n in range(len(self.ways))], opts)

        async def all_started() -> bool:
            return len(self.started) == len(self.ways)

        await until(all_started)
        return [job.id for job in jobs]


async def test_a_deadline_wins_over_what_the_handler_does_about_it(database: str) -> None:
    stubborn = Stubborn()
    async with working(database, stubborn.registry()) as (client, _):
        ids = await stubborn.all_run(client, awa.InsertOpts(deadline=0.1))
        through, returns, raises = [await becomes(client, job_id, RETRYABLE) for job_id in ids]
    assert [row.attempt for row in (through, returns, raises)] == [1, 1, 1]
    assert error_of(through) == error_of(returns) == "deadline exceeded"
    assert error_of(raises).startswith("deadline exceeded; then ValueError: while cleaning up")


async def test_a_cancel_wins_over_what_the_handler_does_about_it(database: str) -> None:
    stubborn = Stubborn()
    async with working(database, stubborn.registry()) as (client, worker):
        ids = await stubborn.all_run(client)
        for job_id in ids:
            await client.admin.cancel(job_id, "not needed")

        async def nothing_runs() -> bool:
            return worker.running == 0

        await until(nothing_runs)
    async with awa.open_client(database) as client:
        for job_id in ids:
            row = await client.admin.job(job_id)
            assert (row.state, error_of(row)) == (CANCELLED, "cancelled: not needed")


async def test_a_stop_wins_over_what_the_handler_does_about_it(database: str) -> None:
    stubborn = Stubborn()
    registry = stubborn.registry()
    async with awa.open_client(database, registry=registry) as client:
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run_worker)
            ids = await stubborn.all_run(client)
            nursery.cancel_scope.cancel()
        rows = [await client.admin.job(job_id) for job_id in ids]
    assert [(row.state, row.attempt, row.interrupted) for row in rows] == [(AVAILABLE, 0, 1)] * 3
    assert [len(row.errors) for row in rows] == [0, 0, 1]
    assert error_of(rows[2]).startswith("stopped with its worker; then ValueError: while cleaning up")


async def test_a_lost_lease_wins_over_what_the_handler_does_about_it(database: str) -> None:
    stubborn = Stubborn()
    settings = WorkerSettings(liveness=Liveness(1.2), cancel_poll=60.0)
    async with working(database, stubborn.registry(), settings=settings) as (client, worker):
        ids = await stubborn.all_run(client)
        await ask(client, "UPDATE awa.instances SET dead_at = clock_timestamp() RETURNING id")

        async def nothing_runs() -> bool:
            return worker.running == 0

        await until(nothing_runs)
        for job_id in ids:
            row = await client.admin.job(job_id)
            assert row.state is RUNNING, "whoever declared the instance dead takes the attempt, not the worker"
        await client.admin.pause_queue("default")
        await client.tick()
        rows = [await client.admin.job(job_id) for job_id in ids]
    assert {(row.attempt, row.rescues) for row in rows} == {(0, 1)}


async def test_a_cancelled_that_is_not_ours_is_an_error_and_the_siblings_go_on(database: str) -> None:
    registry, go_on = awa.Registry(), trio.Event()

    async def kept_from_a_scope_of_its_own() -> None:
        kept: list[BaseException] = []
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as cancelled:
                kept.append(cancelled)
                raise
        raise kept[0]

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        if job.args.n == 0:
            await kept_from_a_scope_of_its_own()
        await go_on.wait()

    async with working(database, registry) as (client, _):
        strange, sibling = await client.insert_many([Work(0), Work(1)])
        row = await becomes(client, strange.id, RETRYABLE)
        assert error_of(row).startswith("Cancelled")
        assert (await client.admin.job(sibling.id)).state is RUNNING
        go_on.set()
        await becomes(client, sibling.id, COMPLETED)


@pytest.mark.parametrize("grouped", [False, True], ids=["bare", "in a group"])
async def test_an_interrupt_gives_the_attempt_back_and_goes_on_up(database: str, grouped: bool) -> None:
    registry = awa.Registry()

    @registry.worker(Work)
    async def interrupt(job: awa.Job[Work]) -> None:
        raise BaseExceptionGroup("nursery", [KeyboardInterrupt()]) if grouped else KeyboardInterrupt

    async with awa.open_client(database, registry=registry) as client:
        job = await client.insert(Work())
        with pytest.raises(KeyboardInterrupt):
            await client.run_worker(maintenance=False)
        row = await client.admin.job(job.id)
        assert (row.state, row.attempt, row.errors) == (AVAILABLE, 0, ())


async def test_args_that_do_not_fit_fail_the_job_with_their_path(database: str) -> None:
    @attrs.frozen
    class Newer:
        kind: ClassVar[str] = "work"
        n: str = "seven"

    registry = awa.Registry()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        raise AssertionError("must not be called")

    async with working(database, registry) as (client, _):
        row = await becomes(client, (await client.insert(Newer())).id, FAILED)
    assert row.attempt == 1
    assert error_of(row).startswith("$.n: ")


async def test_an_unknown_kind_goes_back_until_a_worker_knows_it(database: str) -> None:
    @attrs.frozen
    class Other:
        pass

    ignorant, knowing, seen = awa.Registry(), awa.Registry(), list[int]()

    @ignorant.worker(Work)
    async def work(job: awa.Job[Work]) -> None: ...

    @knowing.worker(Other)
    async def other(job: awa.Job[Other]) -> None:
        seen.append(job.attempt)

    due = "UPDATE awa_queue.deferred_jobs SET run_at = clock_timestamp() RETURNING job_id"
    delays = []
    async with working(database, ignorant) as (client, _):
        job = await client.insert(Other())
        for times in (1, 2, 3):

            def given_back(row: JobRow, times: int = times) -> bool:
                return bool(row.metadata["awa:given_back"]["times"] == times)

            row = await becomes(client, job.id, SCHEDULED, given_back)
            assert (row.attempt, row.errors) == (0, ())
            assert row.metadata["awa:given_back"]["reason"].startswith("no handler for kind 'other' in instance ")
            delays.append(await ask(client, "SELECT run_at - attempted_at FROM awa_queue.deferred_jobs"))
            await ask(client, due)
            if times < 3:
                await client.tick()
    assert [int(delay.total_seconds()) for delay in delays] == [1, 2, 4]
    async with working(database, knowing) as (client, _):
        await client.tick()
        await becomes(client, job.id, COMPLETED)
    assert seen == [1]


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_context_variables_do_not_reach_another_attempt(database: str, kind: str) -> None:
    registry, seen = awa.Registry(), list[str]()
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")

    def look_and_set(job: awa.Job[Work]) -> None:
        seen.append(request.get())
        request.set(str(job.id))

    if kind == "def":
        registry.worker(Work)(look_and_set)
    else:

        @registry.worker(Work)
        async def work(job: awa.Job[Work]) -> None:
            look_and_set(job)

    async with working(database, registry, QueueConfig("default", 1)) as (client, _):
        for job in await client.insert_many([Work(n) for n in range(3)]):
            await becomes(client, job.id, COMPLETED)
    assert seen == ["none"] * 3


async def test_notes_that_cannot_be_stored_are_refused_where_they_are_made(database: str) -> None:
    registry, refused = awa.Registry(), list[str | None]()

    @registry.worker(Work)
    async def work(job: awa.Job[Work]) -> None:
        notes: list[Callable[[], None]] = [
            lambda: job.update_metadata(owner="a\x00b"),
            lambda: job.update_metadata(tags={"a", "set"}),
            lambda: job.set_checkpoint(cursor=float("nan")),
            lambda: job.set_progress(50, "lone \ud800 one"),
        ]
        for note in notes:
            with pytest.raises(ValidationError) as raised:
                note()
            refused.append(raised.value.path)
        job.update_metadata(owner="ann")

    async with working(database, registry) as (client, _):
        row = await becomes(client, (await client.insert(Work())).id, COMPLETED)
    assert row.metadata == {"owner": "ann"}
    assert refused == ["$.owner", "$.tags", "$.cursor", "$.message"]
