"""The executor works wherever a worker would: on the canonical plane, and in a transition the older plane first."""

import attrs
import pytest

import awa_actors as awa
from awa_actors.jobs import JobState
from awa_actors.testing import Outcome, abandon_one, expire_instance_and_tick, work_all, work_one


@attrs.frozen
class Parcel:
    n: int = 0


@attrs.frozen
class Letter:
    n: int = 0


@pytest.fixture(autouse=True)
async def canonical(client: awa.Client) -> None:
    async with client.transaction() as tx:
        await tx.execute("UPDATE awa.storage_transition_state SET state = 'canonical', current_engine = 'canonical'")


@pytest.fixture
def seen(registry: awa.Registry) -> list[int]:
    found: list[int] = []

    @registry.worker(Parcel)
    async def carry(job: awa.Job[Parcel]) -> awa.Verdict:
        found.append(job.args.n)
        if job.args.n < 0:
            raise ValueError("not there")
        return awa.Snooze(0) if job.args.n == 99 and not job.snoozes else None

    return found


async def test_a_canonical_job_is_run_and_recorded(client: awa.Client, seen: list[int]) -> None:
    job = await client.insert(Parcel(7))
    worked = await work_one(client)
    assert (worked.outcome, worked.job.id, seen) == (Outcome.COMPLETED, job.id, [7])
    failing = await client.insert(Parcel(-1), awa.InsertOpts(max_attempts=1))
    worked = await work_one(client)
    assert (worked.outcome, worked.job.id) == (Outcome.EXHAUSTED, failing.id)
    assert "not there" in str(worked.error)


async def test_the_first_by_priority_is_taken_of_the_asked_kind_in_a_queue_that_is_not_paused(
    client: awa.Client, seen: list[int]
) -> None:
    await client.insert(Letter())
    await client.insert(Parcel(1))
    await client.insert(Parcel(2), awa.InsertOpts(priority=1))
    await client.insert(Parcel(3), awa.InsertOpts(priority=1, queue="closed"))
    await client.admin.pause_queue("closed")
    assert [(await work_one(client, Parcel)).job.args["n"] for _ in range(2)] == [2, 1]
    with pytest.raises(AssertionError, match="what waits: job"):
        await work_one(client, Parcel)


async def test_an_abandoned_canonical_attempt_is_rescued(client: awa.Client, seen: list[int]) -> None:
    await client.insert(Parcel(1))
    abandoned = await abandon_one(client)
    assert abandoned.state is JobState.RUNNING
    await expire_instance_and_tick(client)
    worked = await work_one(client)
    assert (worked.job.id, worked.job.rescues) == (abandoned.id, 1)


async def test_through_a_transition_both_planes_are_worked(client: awa.Client, seen: list[int]) -> None:
    await client.insert(Parcel(1))
    async with client.transaction() as tx:
        await tx.execute(
            "UPDATE awa.storage_transition_state SET state = 'mixed_transition', prepared_engine = 'queue_storage'"
        )
    await client.insert(Parcel(99))
    assert [one.outcome for one in await work_all(client)] == [Outcome.COMPLETED, Outcome.SNOOZED, Outcome.COMPLETED]
    assert seen == [1, 99, 99]
