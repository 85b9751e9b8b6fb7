"""Jobs that are parked until the outside world answers, and what they get from it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from at_work import LIMIT, ask, becomes, until, working
from callback_office import NOBODY, QUICK_SWEEPS, Errand, Office, parking

import awa_actors as awa
from awa_actors.errors import CallbackNotFound, TransientStoreError, ValidationError
from awa_actors.jobs import CallbackToken, JobState


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
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        token = await office.register(job)
        await office.go_on.wait()
        return awa.WaitForCallback(token)

    async with working(database, office.registry) as (client, _):
        job = await client.insert(Errand())
        async with client.transaction() as tx:
            await tx.complete_external(await office.next_id(), 1)
            # The handler returns, and the recorder wants to park its attempt: it waits for this transaction.
            office.go_on.set()
            blocked = """
                SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%awa_queue.park%'"""
            await until(lambda: ask(client, blocked))
        assert (await becomes(client, job.id, JobState.COMPLETED)).result == 1


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


async def test_a_job_that_the_outside_world_fails_is_a_dead_letter_where_the_queue_keeps_them(database: str) -> None:
    office = parking()
    async with working(database, office.registry) as (client, _):
        await client.admin.dead_letters.set_policy("default", enabled=True)
        job = await client.insert(Errand())
        await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        await client.fail_external(await office.next_id(), "no such account")
        letter = await client.admin.dead_letters.show(job.id)
    assert (letter.reason, letter.job.errors[-1]["error"]) == ("external_fail", "no such account")


async def test_a_heartbeat_puts_the_expiry_off(database: str) -> None:
    office = parking(expires_in=0.3)
    async with working(database, office.registry, maintenance=QUICK_SWEEPS) as (client, _):
        job = await client.insert(Errand())
        await client.heartbeat_callback(await office.next_id(), 3600)
        await becomes(client, job.id, JobState.WAITING_EXTERNAL)
        left = "SELECT extract(epoch FROM timeout_at - now())::float8 FROM awa_queue.callbacks"
        assert 3590 < await ask(client, left) <= 3600


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
