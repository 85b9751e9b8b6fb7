"""The atomicity matrix with SIGKILL: an outcome is committed if and only if its follow-up is, exactly once."""

import signal
import sys
from pathlib import Path

import pytest
import trio
from at_work import ask, becomes, until, working
from follow_up_jobs import Notice, Signup, enqueued, strand
from follow_up_victim import CALLER_ACTS, OUTCOME_OF, POINTS, WORKER_ACTS, registry_for, rescued_registry

import awa_actors as awa
from awa_actors.jobs import JobState

pytestmark = pytest.mark.slow

VICTIM = Path(__file__).parents[1] / "follow_up_victim.py"
STATE = {
    "completed": JobState.COMPLETED,
    "caller_owned": JobState.COMPLETED,
    "retried": JobState.RETRYABLE,
    "exhausted": JobState.FAILED,
    "cancelled": JobState.CANCELLED,
    "waiting_for_callback": JobState.WAITING_EXTERNAL,
}

MORE: dict[str, tuple[str | None, ...]] = {"fail_external": ("no",), "resolve_external": (None, "complete")}
"""What a resolution needs beside the callback."""


async def kill(url: str, act: str, point: str) -> None:
    """Run the victim until it has killed itself."""
    command = [sys.executable, str(VICTIM), url, act, point]
    repository = str(VICTIM.parents[1])
    with trio.fail_after(60):
        ended = await trio.run_process(
            command,
            check=False,
            cwd=repository,
            capture_stderr=True,
            env={"PYTHONPATH": f"{repository}:{VICTIM.parent}"},
        )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()


async def bury(client: awa.Client) -> None:
    async with client.transaction() as tx:
        await tx.execute("UPDATE awa.instances SET dead_at = clock_timestamp() WHERE dead_at IS NULL")


def has_ended(row: awa.JobRow, state: JobState) -> bool:
    """Whether the handler's own outcome is there: a rescue makes a job retryable too."""
    by_rescue = bool(row.errors) and "rescue" in row.errors[-1]
    return row.state is state and not (state is JobState.RETRYABLE and by_rescue)


async def agree(client: awa.Client, job_id: int, state: JobState) -> bool:
    """Whether outcome and follow-up are both there or both not; gives which."""
    notices = len(await enqueued(client, "notice"))
    is_committed = has_ended(await client.admin.job(job_id), state)
    assert notices == int(is_committed), (notices, is_committed)
    return is_committed


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("act", WORKER_ACTS)
async def test_a_worker_killed_on_the_way_leaves_both_or_neither(database: str, act: str, point: str) -> None:
    state = STATE[act]
    async with awa.open_client(database) as client:
        job = await client.insert(Signup(1))
        await kill(database, act, point)
        assert await agree(client, job.id, state) == (point == "after the commit")
        await bury(client)
    async with working(database, registry_for(act), maintenance=True) as (client, _):
        await becomes(client, job.id, state, lambda row: has_ended(row, state))
        assert await agree(client, job.id, state)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("act", CALLER_ACTS)
async def test_a_caller_killed_on_the_way_leaves_both_or_neither(database: str, act: str, point: str) -> None:
    outcome = OUTCOME_OF[act]
    # retry_external makes the job available, which nothing here claims.
    state = JobState.AVAILABLE if act == "retry_external" else STATE[outcome]
    waits = act not in ("cancel", "drain")
    async with working(database, registry_for("waiting_for_callback" if waits else "retried")) as (client, _):
        job = await client.insert(Signup(1))
        await becomes(client, job.id, JobState.WAITING_EXTERNAL if waits else JobState.RETRYABLE)
        (first,) = await enqueued(client, "notice")
    async with awa.open_client(database, registry=registry_for(act)) as client:
        async with client.transaction() as tx:
            await tx.execute("DELETE FROM awa_queue.ready WHERE job_id = $1", first.id)
            await tx.execute("DELETE FROM awa_queue.bodies WHERE job_id = $1", first.id)
        callback = await ask(client, "SELECT callback_id::text FROM awa_queue.callbacks WHERE job_id = $1", job.id)
        await kill(database, act, point)
        assert await agree(client, job.id, state) == (point == "after the commit")
        if point != "after the commit":
            # Nothing was changed: the same call succeeds now.
            match act:
                case "cancel":
                    await client.admin.cancel(job.id)
                case "drain":
                    await client.admin.drain_queue("signup")
                case _:
                    await getattr(client, act)(callback, *MORE.get(act, ()))
            assert await agree(client, job.id, state)


@pytest.mark.parametrize("point", POINTS)
async def test_a_killed_drain_of_the_outbox_enqueues_once_in_the_end(
    database: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("awa_actors.actors.rescued_follow_ups.OUTBOX_INTERVAL", 0.05)
    async with awa.open_client(database, registry=rescued_registry("outbox")) as client:
        await client.tick()
        (job_id,) = await strand(client, Signup(1))
        await kill(database, "outbox", point)
        assert (await client.admin.job(job_id)).rescues == 1, "the rescue stands"
        waiting = sum(one.rows for one in await client.admin.follow_up_outbox())
        assert waiting + len(await enqueued(client, "notice")) == 1
        async with client.transaction() as tx:
            await tx.execute("UPDATE awa.rescue_outbox SET next_try = clock_timestamp()")
        await client.tick()
        (notice,) = await enqueued(client, "notice")
        assert notice.metadata["awa:follow_up_of"] == job_id
        assert await client.admin.follow_up_outbox() == []


async def test_a_kill_between_a_rescue_and_its_best_effort_costs_the_follow_up_and_never_the_rescue(
    database: str,
) -> None:
    async with awa.open_client(database) as client:
        (job_id,) = await strand(client, Signup(1))
        await kill(database, "best_effort", "before the insert")
        assert (await client.admin.job(job_id)).rescues == 1, "the rescue stands"
        assert await enqueued(client, "notice") == []


EXITS = """
import os, sys, trio
from functools import partial
from follow_up_jobs import Notice, Signup, Welcome
import awa_actors as awa

registry = awa.Registry("victim")

@registry.on_rescued_enqueue(Signup, delivery="outbox")
def leaves(event):
    if event.args.user_id == 1:
        os._exit(7)
    return Notice(str(event.args.user_id))

async def main():
    async with awa.open_client(sys.argv[1], registry=registry) as client:
        await client.run_maintenance(
            settings=awa.MaintenanceSettings(lead=False))

trio.run(main)
"""


async def test_a_closure_that_ends_its_process_is_parked_and_rescues_never_stop(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leaves() -> int:
        repository = str(VICTIM.parents[1])
        with trio.fail_after(60):
            ended = await trio.run_process(
                [sys.executable, "-c", EXITS, database],
                check=False, cwd=repository, env={"PYTHONPATH": f"{repository}:{VICTIM.parent}"},
            )  # fmt: skip
        return ended.returncode

    registry = awa.Registry("victim")
    registry.on_rescued_enqueue(Signup, delivery="outbox")(leaves_stand_in)
    async with awa.open_client(database, registry=registry) as client:
        await client.tick()
    async with awa.open_client(database) as leader:
        ids = await strand(leader, Signup(1), Signup(2))
        await leader.tick()
        for job_id in ids:
            assert (await leader.admin.job(job_id)).rescues == 1
        for _ in range(5):
            assert await leaves() == 7
            async with leader.transaction() as tx:
                await tx.execute("UPDATE awa.rescue_outbox SET next_try = clock_timestamp()")
        # The rescue lane of whoever leads goes on meanwhile.
        more = await strand(leader, Signup(3))
        await leader.tick()
        assert (await leader.admin.job(more[0])).rescues == 1
    async with awa.open_client(database, registry=registry) as client:

        async def parked() -> bool:
            await client.tick()
            return bool(await client.admin.follow_up_failures())

        await until(parked)
        (failure,) = await client.admin.follow_up_failures()
        assert failure.job_id == ids[0]
        assert "ended" in failure.error
        assert sorted(one.args["text"] for one in await enqueued(client, "notice")) == ["2", "3"]


def leaves_stand_in(event: awa.events.Rescued[Signup]) -> Notice:
    """The same spec in a process that survives it."""
    return Notice(str(event.args.user_id))


leaves_stand_in.__name__ = "leaves"
