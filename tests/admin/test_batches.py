"""Changing many waiting jobs as an operator does it, through the client and the command line."""

import datetime as dt

import pytest
import trio
from at_work import until
from command_line import awa as command
from command_line import one_line, running
from failing_jobs import Invoice, Payment
from jobs_at_hand import inserted

import awa_actors as awa
from awa_actors.actors.batches import Batches
from awa_actors.batch_admin import BatchRequest
from awa_actors.errors import NotFound, UsageError, ValidationError
from awa_actors.store import batches


async def finish(client: awa.Client) -> None:
    """Do the steps of what was submitted, as any lane or tick would."""
    async with client.pool.acquire() as session:
        while (await Batches(1.0).run(session, 100)).more:
            pass


async def queue_of(client: awa.Client, job: awa.InsertedJob) -> tuple[str, int]:
    row = await client.admin.job(job.id)
    return row.queue, row.priority


async def test_what_is_previewed_is_what_is_changed(client: awa.Client) -> None:
    payments = await client.insert_many([Payment(n) for n in range(3)])
    invoice = await client.insert(Invoice())
    request = BatchRequest(move_to="slow", set_priority=4, kind="payment")
    seen = await client.admin.batches.preview(request)
    assert (seen.matched, seen.is_exact, seen.sample) == (3, True, tuple(job.id for job in payments))
    assert await queue_of(client, payments[0]) == ("default", 2)
    submitted = await client.admin.batches.submit(request, by="ann")
    assert (submitted.state, submitted.total_matched, submitted.submitted_by) == ("pending", 3, "ann")
    await finish(client)
    done = await client.admin.batches.show(submitted.id)
    assert (done.state, done.processed, done.share, done.has_ended) == ("completed", 3, 1, True)
    assert {await queue_of(client, job) for job in payments} == {("slow", 4)}
    summary = (await client.admin.dump(payments[0].id))["summary"]
    assert (summary["original_queue"], summary["original_priority"]) == ("default", 2)
    assert await queue_of(client, invoice) == ("default", 2)


async def test_a_preview_of_very_much_says_at_least(client: awa.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "PREVIEW_PAGE", 2)
    monkeypatch.setattr(batches, "PREVIEW_PAGES", 2)
    await client.insert_many([Payment(n) for n in range(6)])
    seen = await client.admin.batches.preview(BatchRequest(set_priority=1, all=True))
    assert (seen.matched, seen.is_exact) == (4, False)
    submitted = await client.admin.batches.submit(BatchRequest(set_priority=1, all=True))
    await finish(client)
    assert (await client.admin.batches.show(submitted.id)).processed == 6


async def test_the_leader_does_it_and_so_does_a_tick(client: awa.Client) -> None:
    jobs = await client.insert_many([Payment(n) for n in range(3)])
    await client.admin.batches.submit(BatchRequest(set_priority=1, ids=[jobs[0].id]))
    report = await client.tick(awa.Budget(seconds=20, rows=100))
    assert (report.done["batch"], report.errors) == (1, {})
    assert await queue_of(client, jobs[0]) == ("default", 1)
    async with trio.open_nursery() as nursery:
        maintenance = await nursery.start(client.run_maintenance)
        await maintenance.wait_leader()
        second = await client.admin.batches.submit(BatchRequest(set_priority=3, ids=[jobs[1].id]))

        async def ended() -> bool:
            return (await client.admin.batches.show(second.id)).has_ended

        await until(ended)
        nursery.cancel_scope.cancel()
    assert [(await queue_of(client, job))[1] for job in jobs] == [1, 3, 2]


async def test_a_cancelled_operation_changes_nothing_more(client: awa.Client) -> None:
    (job,) = await client.insert_many([Payment(1)])
    submitted = await client.admin.batches.submit(BatchRequest(move_to="slow", kind="payment"))
    stopped = await client.admin.batches.cancel(submitted.id)
    assert stopped is not None
    assert (stopped.state, stopped.processed) == ("cancelled", 0)
    await finish(client)
    assert await queue_of(client, job) == ("default", 2)
    assert await client.admin.batches.cancel(submitted.id) is None
    with pytest.raises(NotFound, match="no batch operation 99"):
        await client.admin.batches.cancel(99)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (BatchRequest(set_priority=1), "no filter"),
        (BatchRequest(kind="payment"), "nothing is changed"),
        (BatchRequest(set_priority=1, state=awa.JobState.RUNNING), "do not wait"),
        (BatchRequest(set_priority=1, ids=range(20_000)), "too many"),
    ],
)
async def test_what_cannot_be_meant_is_wrong_usage(client: awa.Client, request_: BatchRequest, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        await client.admin.batches.submit(request_)
    assert await client.admin.batches.list() == []


async def test_values_that_no_job_can_have_are_refused(client: awa.Client) -> None:
    for request in (BatchRequest(set_priority=5, all=True), BatchRequest(move_to=" ", all=True)):
        with pytest.raises(ValidationError):
            await client.admin.batches.preview(request)


async def test_ended_operations_are_forgotten_when_they_are_old(client: awa.Client) -> None:
    first = await client.admin.batches.submit(BatchRequest(set_priority=1, all=True))
    await finish(client)
    async with client.transaction() as tx:
        await tx.execute("UPDATE awa.batch_operations SET finalized_at = now() - interval '31 days'")
    second = await client.admin.batches.submit(BatchRequest(set_priority=1, all=True))
    assert [one.id for one in await client.admin.batches.list()] == [second.id]
    assert first.id != second.id


def test_an_operator_previews_submits_watches_and_cancels(database: str) -> None:
    jobs = inserted(database, 2, awa.InsertOpts(run_at=dt.timedelta(hours=1)))
    asked = ("--move-to", "slow", "--kind", "errand", "--state", "scheduled")
    answer = command("batch", "preview", *asked, url=database)
    assert answer.out == f"2 jobs would be changed\nthe first of them: {jobs[0]}, {jobs[1]}\n"
    answer = command("batch", "submit", *asked, "--by", "ann", "--json", url=database)
    op = str(answer.json["id"])
    assert (answer.json["state"], answer.json["spec"]) == ("pending", {"queue": "slow"})
    assert command("tick", "--json", url=database).json["done"]["batch"] == 2
    answer = command("batch", "show", op, url=database)
    assert "state      completed" in answer.out
    assert "changed    2" in answer.out
    assert "queue slow" in command("batch", "list", url=database).out
    answer = command("batch", "cancel", op, url=database)
    assert (answer.status, answer.out) == (1, f"batch operation {op} had ended already\n")
    waiting = command("batch", "submit", "--set-priority", "1", "--id", str(jobs[0]), url=database)
    assert waiting.out.startswith("batch operation 2 is submitted")
    assert command("batch", "cancel", "2", url=database).out == (
        "batch operation 2 is cancelled; it has changed 0 jobs\n"
    )
    assert [one["state"] for one in command("batch", "list", "--json", url=database).json] == ["cancelled", "completed"]


def test_a_batch_without_a_filter_needs_all(database: str) -> None:
    answer = command("batch", "submit", "--set-priority", "1", url=database)
    assert answer.status == 2
    one_line(answer.err, "--all")
    assert command("batch", "preview", "--set-priority", "1", "--all", url=database).out == "0 jobs would be changed\n"
    answer = command("batch", "show", "7", url=database)
    assert answer.status == 1
    one_line(answer.err, "no batch operation 7")


@pytest.mark.slow
def test_an_operator_who_waits_is_told_how_it_ended(database: str) -> None:
    inserted(database, 1)
    with running("--role", "maintenance", url=database) as process:
        process.says("elected")
        answer = command("batch", "submit", "--set-priority", "1", "--all", "--wait", url=database)
    assert answer.status == 0
    assert "state      completed" in answer.out
