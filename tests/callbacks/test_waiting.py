"""Jobs that wait for the outside world, parked or inside their handler, and what they get from it."""

from __future__ import annotations

import logging
from typing import Any

import attrs
import pytest
import trio
from at_work import LIMIT, ask, becomes, until, working

import awa_actors as awa
from awa_actors.config import DatabaseSettings, MaintenanceSettings, WorkerSettings
from awa_actors.errors import CallbackExpired, CallbackNotFound, StaleAttempt, TransientStoreError, ValidationError
from awa_actors.jobs import CallbackToken, JobState

SWIFT = WorkerSettings(cancel_poll=0.02)
QUICK_SWEEPS = MaintenanceSettings(rescue_interval=0.02)
NOBODY = "00000000-0000-0000-0000-000000000000"


@attrs.frozen
class Errand:
    n: int = 0


@attrs.define
class Office:
    """A handler that registers a callback, and where the test meets it."""

    registry: awa.Registry = attrs.field(factory=awa.Registry)
    tokens: list[CallbackToken] = attrs.field(factory=list)
    results: list[Any] = attrs.field(factory=list)
    told: trio.Event = attrs.field(factory=trio.Event)
    go_on: trio.Event = attrs.field(factory=trio.Event)

    async def register(self, job: awa.Job[Errand], **options: Any) -> CallbackToken:
        token = await job.register_callback(**options)
        self.tokens.append(token)
        self.told.set()
        return token

    async def next_id(self) -> str:
        """The id of the newest callback, when there is one."""
        with trio.fail_after(LIMIT):
            await self.told.wait()
        return self.tokens[-1].callback_id


def parking(**options: Any) -> Office:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        if job.callback_result is not None:
            office.results.append(job.callback_result)
            return None
        return awa.WaitForCallback(await office.register(job, **options))

    return office


def waiting_inside(**options: Any) -> Office:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> None:
        token = await office.register(job, **options)
        office.results.append(await job.wait_for_callback(token))

    return office


async def test_a_parked_job_completes_with_the_payload_as_its_result(database: str) -> None:
    office = parking()
    async with working(database, office.registry) as (client, worker):
        job = await client.insert(Errand())
        parked = await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        assert worker.running == 0
        assert (parked.callback_id, parked.deadline_at) == (office.tokens[0].callback_id, None)
        done = await client.complete_external(office.tokens[0].callback_id, {"status": "paid"})
        assert (done.state, done.result) == (JobState.COMPLETED, {"status": "paid"})
        row = await client.admin.job(job.id)
        assert (row.state, row.result, row.attempt, row.callback_id) == (
            JobState.COMPLETED,
            {"status": "paid"},
            1,
            None,
        )


async def test_what_the_handler_noted_before_it_parked_is_kept(database: str) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        job.update_metadata(order=7)
        job.set_progress(50, "asked")
        return awa.WaitForCallback(await office.register(job))

    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        row = await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        assert (row.metadata["order"], row.progress) == (7, {"percent": 50, "message": "asked"})
        await client.complete_external(office.tokens[0].callback_id)
        assert (await client.admin.job(job.id)).metadata == {"order": 7}


async def test_a_callback_that_comes_while_the_handler_runs_completes_the_job(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        token = await office.register(job)
        await office.go_on.wait()
        return awa.WaitForCallback(token)

    with caplog.at_level(logging.WARNING):
        async with working(database, office.registry) as (client, worker):
            job = await client.insert(Errand())
            await client.complete_external(await office.next_id(), 1)
            office.go_on.set()
            row = await becomes(client, job.id, JobState.COMPLETED)
            assert (row.result, row.run_lease) == (1, 1)
            with trio.fail_after(LIMIT):
                await worker.drain()
            assert (await client.admin.job(job.id)).state is JobState.COMPLETED
    assert not caplog.records


async def test_a_callback_that_comes_between_the_handlers_return_and_the_parking_completes_the_job(
    database: str,
) -> None:
    office = parking()
    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        async with client.transaction() as tx:
            # The recorder wants to park now, and waits for this transaction.
            await tx.complete_external(await office.next_id(), 1)
            blocked = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            await until(lambda: ask(client, blocked))
        assert (await becomes(client, job.id, JobState.COMPLETED)).result == 1


@pytest.mark.parametrize("notify", [True, False], ids=["notified", "polling"])
async def test_a_handler_that_waits_inside_gets_what_the_job_is_resumed_with(database: str, notify: bool) -> None:
    office = waiting_inside()
    settings = WorkerSettings() if notify else SWIFT
    async with working(database, office.registry, settings=settings, database=DatabaseSettings(notify=notify)) as (
        client,
        worker,
    ):
        job = await client.insert(Errand())
        row = await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        assert (row.callback_id, worker.running) == (office.tokens[0].callback_id, 1)
        resumed = await client.resume_external(office.tokens[0].callback_id, {"n": 1})
        assert resumed.state is JobState.RUNNING
        await becomes(client, job.id, JobState.COMPLETED)
    assert office.results == [{"n": 1}]


async def test_a_resume_that_comes_before_the_wait_is_there_when_it_begins(database: str) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> None:
        token = await office.register(job)
        await office.go_on.wait()
        # Asked twice, since an answer may get lost on its way.
        office.results += [await job.wait_for_callback(token), await job.wait_for_callback(token)]

    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        await client.resume_external(await office.next_id(), None)
        office.go_on.set()
        await becomes(client, job.id, JobState.COMPLETED)
    assert office.results == [None, None]


async def test_a_parked_job_that_is_resumed_runs_again_with_the_payload(database: str) -> None:
    office = parking()
    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        await client.resume_external(office.tokens[0].callback_id, [1, 2])
        row = await becomes(client, job.id, JobState.COMPLETED)
    assert office.results == [[1, 2]]
    assert (row.attempt, row.run_lease, len(office.tokens)) == (1, 2, 1)


async def test_a_resume_that_comes_before_the_parking_runs_the_job_again(database: str) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        if job.callback_result is not None:
            office.results.append(job.callback_result)
            return None
        token = await office.register(job)
        await office.go_on.wait()
        return awa.WaitForCallback(token)

    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        await client.resume_external(await office.next_id(), "early")
        office.go_on.set()
        row = await becomes(client, job.id, JobState.COMPLETED)
    assert (office.results, row.attempt) == (["early"], 1)


async def test_callbacks_can_be_waited_for_one_after_the_other(database: str) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> None:
        for _ in range(3):
            office.results.append(await job.wait_for_callback(await office.register(job)))

    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        for turn in range(3):
            callback_id = await office.next_id()
            office.told = trio.Event()
            await client.resume_external(callback_id, turn)
        await becomes(client, job.id, JobState.COMPLETED)
        with pytest.raises(CallbackNotFound):
            await client.resume_external(office.tokens[0].callback_id, "late")
    assert office.results == [0, 1, 2]


async def test_a_newer_registration_voids_the_older_one(database: str) -> None:
    office = Office()
    errors: list[Exception] = []

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        older = await office.register(job)
        newer = await office.register(job)
        try:
            await job.wait_for_callback(older)
        except CallbackNotFound as error:
            errors.append(error)
        return awa.WaitForCallback(newer)

    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        with pytest.raises(CallbackNotFound):
            await client.complete_external(office.tokens[0].callback_id)
        await client.complete_external(office.tokens[1].callback_id)
    assert len(errors) == 1


async def test_a_registration_can_be_taken_back(database: str) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> None:
        token = await office.register(job)
        office.results += [await job.cancel_callback(token), await job.cancel_callback(token)]

    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        await becomes(client, job.id, JobState.COMPLETED)
        with pytest.raises(CallbackNotFound):
            await client.complete_external(office.tokens[0].callback_id)
    assert office.results == [True, False]


@pytest.mark.parametrize("token", [None, "of nobody", "nonsense"])
async def test_to_wait_without_a_registered_callback_fails_the_job_visibly(database: str, token: str | None) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        if token is None:
            kept = await office.register(job)
            await job.cancel_callback(kept)
            return awa.WaitForCallback(kept)
        return awa.WaitForCallback(CallbackToken(NOBODY if token == "of nobody" else token, job.id, job.run_lease))

    async with working(database, office.registry) as (client, _):
        await ask(client, "INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('default', true) RETURNING 1")
        job = await client.insert(Errand())
        row = await becomes(client, job.id, JobState.FAILED)
    assert row.dlq_reason == "wait_for_callback_contract_violation"
    assert "without a registered callback" in row.errors[-1]["error"]


async def test_nobody_answers_a_parked_job_so_it_is_tried_again_and_then_fails(database: str) -> None:
    office = parking(expires_in=0.01)
    async with working(database, office.registry, maintenance=QUICK_SWEEPS) as (client, _):
        await ask(client, "INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('default', true) RETURNING 1")
        job = await client.insert(Errand(), awa.InsertOpts(max_attempts=2))
        row = await becomes(client, job.id, JobState.RETRYABLE)
        assert (row.attempt, row.errors[-1]["error"]) == (1, "callback timed out")
        with pytest.raises(CallbackNotFound):
            await client.complete_external(office.tokens[0].callback_id)
        await client.admin.retry(job.id)
        last = await client.insert(Errand(), awa.InsertOpts(max_attempts=1))
        row = await becomes(client, last.id, JobState.FAILED)
        assert row.dlq_reason == "callback_timeout"


async def test_nobody_answers_a_handler_so_it_is_told(database: str) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        token = await office.register(job, expires_in=0.01)
        try:
            await job.wait_for_callback(token)
        except CallbackExpired as error:
            office.results.append(error)
        return awa.Cancel("nobody answered")

    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        await becomes(client, job.id, JobState.CANCELLED)
    assert len(office.results) == 1


async def test_a_heartbeat_puts_the_expiry_off(database: str) -> None:
    office = parking(expires_in=0.3)
    async with working(database, office.registry, maintenance=QUICK_SWEEPS) as (client, _):
        job = await client.insert(Errand())
        await client.heartbeat_callback(await office.next_id(), 3600)
        await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        left = "SELECT extract(epoch FROM timeout_at - now())::float8 FROM awa_queue.callbacks"
        assert 3590 < await ask(client, left) <= 3600


@pytest.mark.parametrize("end", ["complete", "fail", "retry", "cancel"])
async def test_a_handler_that_waits_inside_stops_when_its_job_is_ended(database: str, end: str) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> None:
        token = await office.register(job)
        if len(office.tokens) == 1:
            try:
                await job.wait_for_callback(token)
            except StaleAttempt as error:
                office.results.append(error)
                raise

    async with working(database, office.registry) as (client, worker):
        job = await client.insert(Errand())
        await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        callback_id = office.tokens[0].callback_id
        match end:
            case "complete":
                await client.complete_external(callback_id)
            case "fail":
                await client.fail_external(callback_id, "no such thing")
            case "retry":
                await client.retry_external(callback_id)
            case "cancel":
                await client.admin.cancel(job.id)
        ends = {"fail": JobState.FAILED, "cancel": JobState.CANCELLED}
        row = await becomes(client, job.id, ends.get(end, JobState.COMPLETED))
        if end == "fail":
            assert (row.errors[-1]["error"], row.errors[-1]["terminal"]) == ("no such thing", True)
        if end == "retry":
            assert (row.attempt, row.run_lease) == (1, 2)
        with trio.fail_after(LIMIT):
            await worker.drain()


async def test_a_retry_asked_for_while_the_handler_runs_is_refused_for_now(database: str) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        token = await office.register(job)
        await office.go_on.wait()
        return awa.WaitForCallback(token)

    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        with pytest.raises(TransientStoreError, match="still runs"):
            await client.retry_external(await office.next_id())
        office.go_on.set()
        await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        assert (await client.retry_external(office.tokens[0].callback_id)).state is JobState.AVAILABLE


async def test_the_deadline_stands_still_while_the_job_waits(database: str) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> None:
        token = await office.register(job)
        office.results.append(await job.wait_for_callback(token))
        await trio.sleep_forever()

    async with working(database, office.registry, maintenance=QUICK_SWEEPS) as (client, worker):
        job = await client.insert(Errand(), awa.InsertOpts(deadline=0.4, max_attempts=1))
        row = await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        assert row.deadline_at is None
        await ask(client, "SELECT 1 FROM pg_sleep(0.5)")
        assert worker.running == 1
        await client.resume_external(office.tokens[0].callback_id)
        row = await becomes(client, job.id, JobState.FAILED)
    assert "deadline exceeded" in row.errors[-1]["error"]
    assert office.results == [None]


async def test_a_wait_that_the_handler_gives_up_leaves_the_callback_open(database: str) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        token = await office.register(job)
        with trio.move_on_after(0.01):
            await job.wait_for_callback(token)
        office.results.append((await job.client.admin.job(job.id)).state)
        return awa.WaitForCallback(token)

    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        await becomes(client, job.id, JobState.WAITING_EXTERNAL, lambda _: bool(office.results))
        await client.complete_external(office.tokens[0].callback_id)
    assert office.results == [JobState.RUNNING]


async def test_a_worker_that_is_stopped_gives_back_what_waits_inside_and_leaves_what_is_parked(database: str) -> None:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        token = await office.register(job)
        if job.args.n == 0:
            return awa.WaitForCallback(token)
        await job.wait_for_callback(token)
        return None

    async with awa.open_client(database, registry=office.registry) as client:
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run_worker)
            jobs = await client.insert_many([Errand(0), Errand(1)])
            for job in jobs:
                await becomes(client, job.id, JobState.WAITING_EXTERNAL)
            nursery.cancel_scope.cancel()
        parked, inside = [await client.admin.job(job.id) for job in jobs]
        assert (parked.state, inside.state, inside.attempt) == (JobState.WAITING_EXTERNAL, JobState.AVAILABLE, 0)
        assert (await client.complete_external(parked.callback_id or "")).state is JobState.COMPLETED


async def test_a_late_or_unknown_callback_gets_a_definite_answer(database: str) -> None:
    office = parking()
    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        callback_id = office.tokens[0].callback_id
        await client.complete_external(callback_id)
        for late in (callback_id, NOBODY):
            for resolve in (
                client.complete_external,
                client.retry_external,
                client.resume_external,
                client.heartbeat_callback,
                client.resolve_external,
            ):
                with pytest.raises(CallbackNotFound, match=late):
                    await resolve(late)
            with pytest.raises(CallbackNotFound):
                await client.fail_external(late, "no")
        for wrong in ("", " ", "x" * 10_000, "a\x00b", NOBODY[:-1]):
            with pytest.raises(ValidationError, match="not a UUID"):
                await client.complete_external(wrong)
        with pytest.raises(ValidationError, match="timeout_seconds"):
            await client.heartbeat_callback(NOBODY, -1)


async def test_text_that_postgres_cannot_hold_is_mended_and_not_refused(database: str) -> None:
    office = parking()
    async with working(database, office.registry) as (client, _):
        jobs = await client.insert_many([Errand(), Errand()])
        for job in jobs:
            await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        by_job = {token.job_id: token.callback_id for token in office.tokens}
        done = await client.complete_external(by_job[jobs[0].id], {"a\x00": ["b\x00c", "\ud800", 1.5, None]})
        assert done.result == {"a\ufffd": ["b\ufffdc", "\ufffd", 1.5, None]}
        assert (await client.admin.job(jobs[0].id)).result == done.result
        failed = await client.fail_external(by_job[jobs[1].id], "nul \x00 here")
        assert failed.errors[-1]["error"] == "nul \ufffd here"
        with pytest.raises(ValidationError):
            await client.complete_external(NOBODY, float("nan"))


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), "soon"])
async def test_an_expiry_that_is_no_time_is_refused(database: str, wrong: Any) -> None:
    office = parking(expires_in=wrong)
    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand(), awa.InsertOpts(max_attempts=1))
        row = await becomes(client, job.id, JobState.FAILED)
    assert "expires_in" in row.errors[-1]["error"]


async def test_resolutions_in_a_transaction_that_rolls_back_never_happened(database: str) -> None:
    office = parking()
    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        callback_id = office.tokens[0].callback_id

        async def changes_its_mind() -> None:
            async with client.transaction() as tx:
                await tx.complete_external(callback_id, 1)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await changes_its_mind()
        async with client.transaction() as tx:
            with pytest.raises(CallbackNotFound):
                await tx.complete_external(NOBODY)
            assert await tx.fetchval("SELECT 1") == 1
            await tx.complete_external(callback_id, 2)
        assert (await client.admin.job(job.id)).result == 2
