"""Traces: from the producer's span to each attempt, and no span that lives as long as its loop."""

from collections import Counter
from functools import partial
from typing import Any

import attrs
import psycopg
import pytest
import trio
from at_work import LIMIT, becomes, until
from opentelemetry import trace
from schedules import SELDOM, lane_of, one_pass, scheduled

import awa_actors as awa
import awa_actors.bridge.psycopg as awa_psycopg
from awa_actors.core.validation import TRACEPARENT_KEY
from awa_actors.jobs import JobState
from awa_actors.store.ambient_trace import ambient_trace
from awa_actors.store.insert import admit, admit_many
from awa_actors.testing import work_all, work_one


@attrs.frozen
class Parcel:
    n: int = 0


@attrs.frozen
class Note:
    text: str


@pytest.fixture
def registry() -> awa.Registry:
    registry = awa.Registry()

    @registry.worker(Parcel)
    async def send(job: awa.Job[Parcel]) -> None:
        if job.args.n == 13 and job.attempt == 1:
            raise ValueError("unlucky")

    @registry.worker(Note)
    def write(job: awa.Job[Note]) -> None:
        job.update_metadata(span=format_span(trace.get_current_span()))

    @registry.on_completed_enqueue(Parcel)
    def tell(event: awa.events.Completed[Parcel]) -> Note:
        return Note("sent")

    return registry


def format_span(span: trace.Span) -> str:
    return trace.format_span_id(span.get_span_context().span_id)


def ids(span: Any) -> tuple[str, str]:
    """Trace and span, as a traceparent has them."""
    context = span.get_span_context()
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


def traceparent(span: Any) -> str:
    return f"00-{'-'.join(ids(span))}-{int(span.get_span_context().trace_flags):02x}"


async def test_an_attempt_continues_the_trace_of_its_producer(
    database: str, registry: awa.Registry, observatory: Any
) -> None:
    tracer = observatory.tracers.get_tracer("shop")
    async with awa.open_client(database, registry=registry, telemetry=observatory.telemetry) as client:
        with tracer.start_as_current_span("checkout") as checkout:
            job = await client.insert(Parcel(1))
        await work_all(client)
    (send,) = observatory.spans("send ")
    (attempt,) = observatory.spans("job.execute parcel")
    assert (send.name, send.parent.span_id) == ("send default", checkout.get_span_context().span_id)
    assert attempt.parent.span_id == send.get_span_context().span_id
    assert ids(attempt)[0] == ids(checkout)[0]
    assert dict(attempt.attributes) == {
        "messaging.system": "awa",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "messaging.message.id": str(job.id),
        "awa.job.kind": "parcel",
        "awa.job.attempt": 1,
        "awa.job.outcome": "completed",
    }


async def test_what_follows_from_a_job_belongs_to_its_trace_and_a_thread_sees_its_span(
    database: str, registry: awa.Registry, observatory: Any
) -> None:
    with observatory.tracers.get_tracer("shop").start_as_current_span("checkout") as checkout:
        async with awa.open_client(database, registry=registry, telemetry=observatory.telemetry) as client:
            await client.insert(Parcel(1))
            worked = await work_all(client)
    (note,) = observatory.spans("job.execute note")
    assert ids(note)[0] == ids(checkout)[0]
    job = worked[-1].job
    assert (job.kind, job.metadata["span"]) == ("note", ids(note)[1])


async def test_a_retry_is_a_trace_of_its_own_with_a_link(
    database: str, registry: awa.Registry, observatory: Any
) -> None:
    async with awa.open_client(database, registry=registry, telemetry=observatory.telemetry) as client:
        job = await client.insert(Parcel(13))
        await work_one(client)
        await client.admin.retry(job.id)
        async with client.transaction() as tx:  # the second attempt, as after a back-off
            await tx.execute("UPDATE awa_queue.ready SET attempt = 1")
        await work_one(client)
    (send,) = observatory.spans("send")
    first, second = observatory.spans("job.execute parcel")
    assert (first.parent.span_id, first.links) == (send.get_span_context().span_id, ())
    assert not first.status.is_ok
    assert "unlucky" in first.status.description
    assert second.parent is None
    assert ids(second)[0] != ids(first)[0]
    (link,) = second.links
    assert link.context.span_id == send.get_span_context().span_id


async def test_the_trace_of_a_producer_is_stored_whatever_the_way_in(
    database: str, registry: awa.Registry, observatory: Any
) -> None:
    """No client here has telemetry: an active span is enough."""
    async with awa.open_client(database, registry=registry) as client:
        with (
            observatory.tracers.get_tracer("shop").start_as_current_span("checkout") as checkout,
            psycopg.connect(database) as connection,
        ):
            jobs = [awa_psycopg.insert(connection, Parcel(1))]
            jobs.append(awa_psycopg.insert(connection, Parcel(2), awa.InsertOpts(tags=["t"], metadata={"mine": 1})))
            connection.commit()
            jobs += [await client.insert(Parcel(3)), *await client.insert_many([Parcel(4), Parcel(5)])]
            async with client.transaction() as tx:
                jobs.append(await tx.insert(Parcel(6), awa.InsertOpts(priority=1)))
        rows = [await client.admin.job(job.id) for job in jobs]
        assert {row.metadata[TRACEPARENT_KEY] for row in rows} == {traceparent(checkout)}
        assert rows[1].metadata["mine"] == 1
        untraced = await client.admin.job((await client.insert(Parcel(7))).id)
        assert untraced.metadata == {}


def test_a_trace_that_the_caller_names_wins(observatory: Any) -> None:
    mine = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
    with observatory.tracers.get_tracer("shop").start_as_current_span("checkout"):
        admitted = admit(Parcel(), awa.InsertOpts(metadata={TRACEPARENT_KEY: mine}))
        assert admitted.options is not None
        assert mine in admitted.options
        assert len({job.options for job in admit_many([Parcel(), Parcel(1)])}) == 1


def test_a_schedule_that_is_declared_within_a_span_is_not_part_of_its_trace(observatory: Any) -> None:
    registry = awa.Registry()
    with observatory.tracers.get_tracer("shop").start_as_current_span("start-up"):
        registry.cron("nightly", "0 3 * * *", Parcel())
    assert registry.schedules["nightly"].job.options is None


def test_a_span_that_is_not_recorded_is_no_trace() -> None:
    assert ambient_trace() is None


async def test_an_attempt_whose_trace_cannot_be_read_runs_all_the_same(
    database: str, registry: awa.Registry, observatory: Any
) -> None:
    said: list[dict[str, Any]] = [{TRACEPARENT_KEY: "nonsense"}, {TRACEPARENT_KEY: 7}, {"mine": 1}]
    async with awa.open_client(database, registry=registry) as producer:
        jobs = [await producer.insert(Parcel(1), awa.InsertOpts(metadata=metadata)) for metadata in said]
    async with awa.open_client(database, registry=registry, telemetry=observatory.telemetry) as client:
        assert [(await work_one(client, Parcel)).job.id for _ in jobs] == [job.id for job in jobs]
    assert [span.parent for span in observatory.spans("job.execute parcel")] == [None] * 3


async def test_no_span_lives_as_long_as_a_loop_and_idle_polls_make_none(
    database: str, registry: awa.Registry, observatory: Any
) -> None:
    quick = awa.MaintenanceSettings(
        promote_interval=0.01, rescue_interval=0.01, hygiene_interval=0.01, refresh_interval=3600
    )
    async with (
        awa.open_client(database, registry=registry, telemetry=observatory.telemetry) as client,
        trio.open_nursery() as nursery,
    ):
        run = partial(client.run_worker, awa.QueueConfig("default", poll_interval=0.01), maintenance=quick)
        worker: awa.Worker = await nursery.start(run)
        assert worker.maintenance is not None
        await worker.maintenance.wait_leader()
        job = await client.insert(Parcel(1))
        await becomes(client, job.id, JobState.COMPLETED)
        lanes = [one for one in worker.maintenance.lanes if one.step.name in ("promote", "rescue")]
        passes = {one.step.name: one.health.passes for one in lanes}

        async def polled() -> bool:
            return all(one.health.passes > passes[one.step.name] + 20 for one in lanes)

        await until(polled)
        with trio.fail_after(LIMIT):
            await worker.drain()
    names = Counter(span.name for span in observatory.spans())
    assert names["job.execute parcel"] == 1
    assert not {name for name in names if name.startswith("maintenance.promote") or name.startswith("maintenance.resc")}
    by_trace = Counter(span.get_span_context().trace_id for span in observatory.spans())
    assert max(by_trace.values()) <= 3, "a trace is of one producer and its jobs"
    assert max(span.end_time - span.start_time for span in observatory.spans()) < LIMIT * 1e9


async def test_a_triggered_schedule_belongs_to_the_trace_of_who_triggered_it(database: str, observatory: Any) -> None:
    async with awa.open_client(database) as client:
        await one_pass(client, lane_of(scheduled("nightly", SELDOM, Parcel(1))))
        untraced = await client.admin.cron_trigger("nightly")
        assert TRACEPARENT_KEY not in (await client.admin.job(untraced.id)).metadata
        with observatory.tracers.get_tracer("operator").start_as_current_span("trigger"):
            here = ambient_trace()
            traced = await client.admin.cron_trigger("nightly")
        metadata = (await client.admin.job(traced.id)).metadata
    assert here is not None
    assert metadata[TRACEPARENT_KEY] == here
    assert (metadata["cron_name"], metadata["triggered_manually"]) == ("nightly", True)
