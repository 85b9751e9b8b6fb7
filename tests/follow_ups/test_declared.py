"""Follow-ups as data: published by one process, enqueued by every process that moves the job."""

import logging
from typing import Any

import pytest
from at_work import becomes, until, working
from follow_up_jobs import Notice, Signup, enqueued, strand

import awa_actors as awa
from awa_actors.jobs import JobState

WORKS = awa.QueueConfig("signup")


def declaring(application: str = "shop", **fields: Any) -> awa.Registry:
    registry = awa.Registry(application)
    known: dict[str, Any] = {
        "kind": "signup", "outcome": "completed", "enqueue": "audit", "queue": "audit",
        "args": {"user": "${args.user_id}", "what": "job ${job.id} ${outcome.name}"},
    }  # fmt: skip
    registry.declare_follow_up("audit", **(known | fields))
    return registry


async def publish(url: str, registry: awa.Registry) -> None:
    async with awa.open_client(url, registry=registry) as client:
        await client.tick()


def worker(registry: awa.Registry | None = None) -> awa.Registry:
    registry = registry or awa.Registry("worker")

    @registry.worker(Signup)
    async def sign_up(job: awa.Job[Signup]) -> None:
        if job.args.user_id == 13:
            raise awa.TerminalError("unlucky")

    return registry


async def test_a_worker_without_the_code_enqueues_it(database: str) -> None:
    await publish(database, declaring(priority=1, max_attempts=3, tags=["x"], delay=60, metadata={"m": 1}))
    async with working(database, worker(), WORKS) as (client, _):
        job = await client.insert(Signup(5))
        await becomes(client, job.id, JobState.COMPLETED)
        (audit,) = await enqueued(client, "audit")
        assert audit.args == {"user": 5, "what": f"job {job.id} completed"}
        assert (audit.queue, audit.priority, audit.max_attempts, audit.tags) == ("audit", 1, 3, ("x",))
        assert audit.state is JobState.SCHEDULED
        assert audit.metadata == {"m": 1, "awa:follow_up_of": job.id, "awa:follow_up_depth": 1}


async def test_a_running_worker_takes_a_new_declaration_over(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("awa_actors.actors.follow_ups.OUTBOX_INTERVAL", 0.02)
    async with working(database, worker(), WORKS) as (client, _):
        await publish(database, declaring())

        async def followed() -> bool:
            job = await client.insert(Signup(5))
            await becomes(client, job.id, JobState.COMPLETED)
            return bool(await enqueued(client, "audit"))

        await until(followed)
        await client.admin.withdraw_follow_up("audit", "shop")

        async def no_more() -> bool:
            before = len(await enqueued(client, "audit"))
            job = await client.insert(Signup(5))
            await becomes(client, job.id, JobState.COMPLETED)
            return len(await enqueued(client, "audit")) == before

        await until(no_more)
        with pytest.raises(awa.NotFound):
            await client.admin.withdraw_follow_up("audit", "shop")


async def test_declared_and_registered_follow_ups_both_come(database: str) -> None:
    registry = worker(declaring())
    registry.on_completed_enqueue(Signup)(lambda event: Notice("code"))
    async with working(database, registry, WORKS) as (client, _):
        job = await client.insert(Signup(5))
        await becomes(client, job.id, JobState.COMPLETED)
        assert len(await enqueued(client, "audit")) == 1, "declared here and stored: still one"
        assert len(await enqueued(client, "notice")) == 1


@pytest.mark.parametrize("delivery", ["best_effort", "outbox"])
async def test_a_pool_only_process_follows_rescues(database: str, delivery: str) -> None:
    await publish(database, declaring(outcome="rescued", delivery=delivery, args={"why": "${outcome.reason}"}))
    async with awa.open_client(database) as client:
        (job_id,) = await strand(client, Signup(1))
        await client.tick()
        (audit,) = await enqueued(client, "audit")
        assert (audit.args, audit.metadata["awa:follow_up_of"]) == ({"why": "stale_instance"}, job_id)


async def test_an_operator_and_a_callback_without_the_code_enqueue_it(database: str) -> None:
    await publish(database, declaring(outcome="cancelled", args={"why": "${outcome.reason}"}))
    async with awa.open_client(database) as client:
        job = await client.insert(Signup(1))
        await client.admin.cancel(job.id, "duplicate")
        assert [one.args for one in await enqueued(client, "audit")] == [{"why": "duplicate"}]

    registry = awa.Registry("other")

    @registry.worker(Signup)
    async def waits(job: awa.Job[Signup]) -> awa.WaitForCallback:
        token = await job.register_callback(expires_in=60)
        tokens.append(token.callback_id)
        return awa.WaitForCallback(token)

    tokens: list[str] = []
    await publish(database, declaring("billing", args={"result": "${job.result.status}"}))
    async with working(database, registry, WORKS) as (client, _):
        job = await client.insert(Signup(2))
        await becomes(client, job.id, JobState.WAITING_EXTERNAL)
    async with awa.open_client(database) as client:
        await client.complete_external(tokens[0], {"status": "paid"})
        assert {"result": "paid"} in [one.args for one in await enqueued(client, "audit")]


async def test_a_higher_version_replaces_a_lower_one_and_never_the_other_way_round(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(database, declaring(version=2, args={"v": 2}))
    with caplog.at_level(logging.WARNING, "awa_actors.follow_ups"):
        await publish(database, declaring(version=1, args={"v": 1}))
        assert "version 2 is in force, this process has 1" in caplog.text
        await publish(database, declaring(version=2, args={"v": "other"}))
        assert "stored differently under version 2" in caplog.text
    async with awa.open_client(database) as client:
        (one,) = await client.admin.declared_follow_ups()
        assert (one.application, one.version, one.args) == ("shop", 2, {"v": 2})
    await publish(database, declaring(version=3, args={"v": 3}))
    async with awa.open_client(database) as client:
        assert (await client.admin.declared_follow_ups())[0].version == 3


async def test_applications_do_not_overwrite_each_other(database: str) -> None:
    await publish(database, declaring("shop"))
    await publish(database, declaring("billing", enqueue="bill"))
    async with working(database, worker(), WORKS) as (client, _):
        job = await client.insert(Signup(5))
        await becomes(client, job.id, JobState.COMPLETED)
        assert len(await enqueued(client, "audit")) == len(await enqueued(client, "bill")) == 1


async def test_a_template_that_does_not_fit_the_job_is_a_failing_spec(database: str) -> None:
    await publish(database, declaring(args={"x": "${args.nothing}"}))
    async with working(database, worker(), WORKS, settings=awa.WorkerSettings(follow_up_failures=1)) as (client, _):
        job = await client.insert(Signup(5))
        await becomes(client, job.id, JobState.COMPLETED)
        (failure,) = await client.admin.follow_up_failures()
        assert failure.spec == "shop:audit"
        assert "args.nothing" in failure.error
    await publish(database, declaring(version=2))
    async with awa.open_client(database) as client:
        await client.admin.replay_follow_up(failure.id)
        assert len(await enqueued(client, "audit")) == 1


async def test_a_unique_declaration_enqueues_one_of_equal_args(database: str) -> None:
    await publish(database, declaring(args={"user": "${args.user_id}"}, unique=True))
    async with working(database, worker(), WORKS) as (client, _):
        for n in (5, 5, 6):
            job = await client.insert(Signup(n))
            await becomes(client, job.id, JobState.COMPLETED)
        assert [one.args["user"] for one in await enqueued(client, "audit")] == [5, 6]


async def test_a_completion_that_its_handler_owns_ignores_what_others_declare_for_it(database: str) -> None:
    await publish(database, declaring())
    registry = awa.Registry("owner")

    @registry.worker(Signup, completion=awa.Completion.CALLER_OWNED)
    async def sign_up(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
        async with job.client.transaction() as tx:
            return await tx.complete(job)

    async with working(database, registry, WORKS) as (client, _):
        job = await client.insert(Signup(5))
        await becomes(client, job.id, JobState.COMPLETED)
        assert await enqueued(client, "audit") == []


async def test_cel_computes_args(database: str) -> None:
    pytest.importorskip("cel")
    await publish(database, declaring(cel=True, args={"big": "${args.user_id > 4}"}))
    async with working(database, worker(), WORKS) as (client, _):
        job = await client.insert(Signup(5))
        await becomes(client, job.id, JobState.COMPLETED)
        assert [one.args for one in await enqueued(client, "audit")] == [{"big": True}]
