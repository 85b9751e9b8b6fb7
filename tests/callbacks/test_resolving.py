"""A resolution and what follows from it: closures, declarations, expressions. Both happen, or neither."""

from __future__ import annotations

from typing import Any

import attrs
import psycopg
import pytest
from at_work import ask, counted, until, working
from callback_jobs import CallbackJob, found, registered

import awa_actors as awa
from awa_actors.errors import CallbackNotFound, FollowUpError, UsageError
from awa_actors.jobs import JobState


@attrs.frozen
class Errand:
    n: int = 0


@attrs.frozen
class Next:
    what: str


def parked(url: str, state: str = "parked", **options: Any) -> CallbackJob:
    with psycopg.connect(url, autocommit=True) as connection:
        return registered(connection, state, **options)


def following(closure: Any = None) -> awa.Registry:
    registry = awa.Registry()

    @registry.on_completed_enqueue(Errand)
    def completed(event: awa.events.Completed[Errand]) -> Next:
        return Next(f"completed {event.job.result} {event.duration}") if closure is None else closure(event)

    @registry.on_exhausted_enqueue(Errand)
    def exhausted(event: awa.events.Exhausted[Errand]) -> Next:
        return Next(f"exhausted {event.error} {event.attempt}")

    @registry.on_retried_enqueue(Errand)
    def retried(event: awa.events.Retried[Errand]) -> Next:
        return Next(f"retried {event.attempt} {event.job.attempt}")

    return registry


async def nexts(client: awa.Client) -> list[str]:
    async with client.transaction() as tx:
        rows = await tx.fetch("SELECT args ->> 'what' FROM awa.jobs WHERE kind = 'next' ORDER BY id")
    return [row[0] for row in rows]


@pytest.mark.parametrize("own_transaction", [False, True])
async def test_follow_ups_are_enqueued_with_the_resolution(database: str, own_transaction: bool) -> None:
    async with awa.open_client(database, registry=following()) as client:
        ids = [parked(database).callback_id for _ in range(4)]

        async def resolve(by: awa.Client | awa.Transaction) -> None:
            await by.complete_external(ids[0], {"a": 1})
            await by.fail_external(ids[1], "no such thing")
            await by.retry_external(ids[2])
            await by.resume_external(ids[3])

        if own_transaction:
            async with client.transaction() as tx:
                await resolve(tx)
        else:
            await resolve(client)
        assert await nexts(client) == ["completed {'a': 1} 0.0", "exhausted no such thing 1", "retried 1 0"]


async def test_a_follow_up_that_fails_leaves_the_callback_open(database: str) -> None:
    def broken(event: object) -> Next:
        raise RuntimeError("cannot tell")

    job = parked(database)
    async with awa.open_client(database, registry=following(broken)) as client:
        with pytest.raises(FollowUpError, match="cannot tell"):
            await client.complete_external(job.callback_id)
        async with client.transaction() as tx:
            with pytest.raises(FollowUpError, match="cannot tell"):
                await tx.complete_external(job.callback_id)
            with pytest.raises(FollowUpError, match="cannot tell"):
                await tx.resolve_external(job.callback_id, default_action="complete")
            assert await tx.fetchval("SELECT 1") == 1
        assert (await client.admin.job(job.job_id)).state is JobState.WAITING_EXTERNAL
        assert (await client.fail_external(job.callback_id, "give up")).state is JobState.FAILED
        assert await nexts(client) == ["exhausted give up 1"]


async def test_a_follow_up_that_cannot_be_inserted_leaves_the_callback_open(database: str) -> None:
    def taken(event: object) -> awa.Enqueue[Next]:
        unique = awa.UniqueOpts(key="taken", on_conflict=awa.OnConflict.RAISE)
        return awa.Enqueue(Next("taken"), awa.InsertOpts(unique=unique))

    job = parked(database)
    async with awa.open_client(database, registry=following(taken)) as client:
        await client.insert(Next("holder"), awa.InsertOpts(unique=awa.UniqueOpts(key="taken")))
        with pytest.raises(FollowUpError, match="unique key"):
            await client.complete_external(job.callback_id)
        assert (await client.admin.job(job.job_id)).state is JobState.WAITING_EXTERNAL


async def test_what_the_database_declares_is_enqueued_by_a_client_without_a_registry(database: str) -> None:
    declaring = awa.Registry()
    declaring.declare_follow_up(
        "tell", kind="errand", outcome="completed", enqueue="next", args={"what": "${job.result.who}"}
    )

    @declaring.worker(Next)
    async def never(job: awa.Job[Next]) -> None: ...

    async with working(database, declaring, awa.QueueConfig("elsewhere")) as (client, _):
        assert await ask(client, "SELECT count(*) FROM awa.follow_up_specs") == 1
    job = parked(database)
    async with awa.open_client(database) as client:
        await client.complete_external(job.callback_id, {"who": "ann"})
        assert await nexts(client) == ["ann"]


async def test_a_job_that_parks_enqueues_what_follows_from_that(database: str) -> None:
    registry = awa.Registry()

    @registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        token = await job.register_callback()
        if job.args.n:
            await job.cancel_callback(token)
        return awa.WaitForCallback(token)

    @registry.on_waiting_for_callback_enqueue(Errand)
    def waits(event: awa.events.WaitingForCallback[Errand]) -> Next:
        return Next(f"waits for {event.callback_id == event.job.callback_id}")

    @registry.on_exhausted_enqueue(Errand)
    def fails(event: awa.events.Exhausted[Errand]) -> Next:
        return Next(event.error)

    async with working(database, registry) as (client, _):
        await client.insert_many([Errand(0), Errand(1)])

        async def both() -> bool:
            return len(await nexts(client)) == 2

        await until(both)
        what = sorted(await nexts(client))
    assert what[1] == "waits for True"
    assert what[0].startswith("returned WaitForCallback without a registered callback")


CEL = {
    "filter": "payload.kind == 'final'",
    "on_fail": "payload.status == 'declined'",
    "on_complete": "payload.status == 'paid'",
    "transform": "{'amount': payload.amount}",
}


async def wait_with(database: str, expressions: dict[str, Any]) -> tuple[awa.Registry, str]:
    """A job that waits on a callback with expressions."""
    registry, ids = awa.Registry(), []

    @registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        token = await job.register_callback(**expressions)
        ids.append(token.callback_id)
        return awa.WaitForCallback(token)

    async with working(database, registry) as (client, _):
        await client.insert(Errand())
        await until(lambda: counted(client, JobState.WAITING_EXTERNAL))
    return registry, ids[0]


async def test_the_callbacks_expressions_decide_under_its_lock(database: str) -> None:
    pytest.importorskip("cel")
    _, callback_id = await wait_with(database, CEL)
    async with awa.open_client(database, registry=following()) as client:
        ignored = await client.resolve_external(callback_id, {"kind": "draft", "status": "paid"}, "complete")
        assert (ignored.outcome, ignored.job.state) == ("ignored", JobState.WAITING_EXTERNAL)
        undecided = await client.resolve_external(callback_id, {"kind": "final", "status": "pending"})
        assert undecided.outcome == "ignored"
        done = await client.resolve_external(callback_id, {"kind": "final", "status": "paid", "amount": 7})
        assert (done.outcome, done.payload, done.job.result) == ("completed", {"amount": 7}, {"amount": 7})
        assert await nexts(client) == ["completed {'amount': 7} 0.0"]
        with pytest.raises(CallbackNotFound):
            await client.resolve_external(callback_id, {})


async def test_on_fail_names_its_rule(database: str) -> None:
    pytest.importorskip("cel")
    _, callback_id = await wait_with(database, CEL)
    async with awa.open_client(database) as client:
        failed = await client.resolve_external(callback_id, {"kind": "final", "status": "declined"})
        assert (failed.outcome, failed.job.state) == ("failed", JobState.FAILED)
        assert failed.job.errors[-1]["error"] == "callback matched on_fail: payload.status == 'declined'"


async def test_a_default_decides_where_no_expression_does(database: str) -> None:
    async with awa.open_client(database) as client:
        jobs = [parked(database) for _ in range(3)]
        outcomes = [
            (await client.resolve_external(job.callback_id, 1, action)).outcome
            for job, action in zip(jobs, ("complete", "fail", "ignore"), strict=True)
        ]
        assert outcomes == ["completed", "failed", "ignored"]
        with pytest.raises(UsageError, match="default_action"):
            await client.resolve_external(jobs[2].callback_id, 1, "guess")


UNIQUE = "aa"


@pytest.mark.parametrize("state", ["parked", "inside"])
async def test_a_key_that_waiting_does_not_hold_is_free_meanwhile(database: str, state: str) -> None:
    """A newer job took it, so the one that waited ends as a duplicate when it would need its key again."""
    mask = ["available", "running", "completed"]
    with psycopg.connect(database, autocommit=True) as connection:
        job = registered(connection, state, unique_key=UNIQUE, unique_states=mask)
        newer = connection.execute(
            "SELECT id, inserted FROM awa.insert_job('errand', '{}', '{\"unique_key\": \"aa\"}')"
        ).fetchone()
        assert newer is not None
        assert newer[1]
        async with awa.open_client(database) as client:
            assert (await client.resume_external(job.callback_id)).state is JobState.CANCELLED
        assert found(connection, job.job_id)["errors"][-1]["duplicate"]
        assert found(connection, newer[0])["state"] == "available"


@pytest.mark.parametrize("state", ["running", "parked", "inside"])
@pytest.mark.parametrize("mask", ["waiting_external", "completed", None])
async def test_a_unique_key_follows_the_job_through_its_callback(database: str, state: str, mask: str | None) -> None:
    states = ["available", *([mask] if mask else [])]
    with psycopg.connect(database, autocommit=True) as connection:
        job = registered(connection, state, unique_key=UNIQUE, unique_states=states)
        holds = connection.execute("SELECT count(*) FROM awa.job_unique_claims").fetchone()
        assert holds == (int(mask == "waiting_external" and state != "running"),)
        async with awa.open_client(database) as client:
            await client.complete_external(job.callback_id)
        holds = connection.execute("SELECT count(*) FROM awa.job_unique_claims").fetchone()
        assert holds == (int(mask == "completed"),)
