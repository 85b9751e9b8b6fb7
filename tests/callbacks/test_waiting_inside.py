"""Handlers that wait for the outside world themselves, and what they get from it."""

from __future__ import annotations

import pytest
import trio
from at_work import LIMIT, ask, becomes, working
from callback_office import QUICK_SWEEPS, SWIFT, Errand, Office, waiting_inside

import awa_actors as awa
from awa_actors.config import DatabaseSettings, WorkerSettings
from awa_actors.errors import CallbackExpired, CallbackNotFound, StaleAttempt
from awa_actors.jobs import JobState


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
