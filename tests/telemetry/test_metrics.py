"""What a worker and a leader measure, under the names of the list, and what is left of it without the extra."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
from at_work import LIMIT, becomes, until
from storage_states import make_canonical

import awa_actors as awa
from awa_actors.actors import liveness, refresh
from awa_actors.config import MaintenanceSettings, WorkerSettings
from awa_actors.core.liveness import Liveness
from awa_actors.core.metrics import METRICS, MetricKind
from awa_actors.jobs import JobState

QUICK = MaintenanceSettings(
    promote_interval=0.05, rescue_interval=0.05, hygiene_interval=0.05, refresh_interval=0.05, ring_turn=0.05
)


@attrs.frozen
class Task:
    queue = "tasks"
    what: str


@pytest.fixture
def registry() -> awa.Registry:
    registry = awa.Registry()
    registry.describe_queue("tasks", display_name="Tasks", owner="ops")

    @registry.worker(Task)
    async def work(job: awa.Job[Task]) -> awa.Verdict:
        match job.args.what:
            case "fail":
                raise awa.TerminalError("no")
            case "exhaust" | "retry":
                raise ValueError("not now")
            case "snooze" if job.attempt == 1 and not job.snoozes:
                return awa.Snooze(3600)
            case "cancel":
                return awa.Cancel("enough")
        return None

    return registry


@asynccontextmanager
async def measured(database: str, registry: awa.Registry, telemetry: Any) -> AsyncIterator[awa.Client]:
    """A worker with maintenance whose client has telemetry, drained at the end of the body."""
    async with (
        awa.open_client(database, registry=registry, telemetry=telemetry) as client,
        trio.open_nursery() as nursery,
    ):
        queues = awa.QueueConfig("tasks", 4, poll_interval=0.05)
        worker: awa.Worker = await nursery.start(
            lambda task_status: client.run_worker(queues, maintenance=QUICK, task_status=task_status)
        )
        yield client
        with trio.fail_after(LIMIT):
            await worker.drain()


async def ended(client: awa.Client, *whats: str) -> None:
    """Insert jobs of these fates and wait until each has met its own."""
    states = {
        "": JobState.COMPLETED,
        "fail": JobState.FAILED,
        "exhaust": JobState.FAILED,
        "retry": JobState.RETRYABLE,
        "snooze": JobState.SCHEDULED,
        "cancel": JobState.CANCELLED,
    }
    opts = {"exhaust": awa.InsertOpts(max_attempts=1)}
    for what in whats:
        job = await client.insert(Task(what), opts.get(what))
        await becomes(client, job.id, states[what], lambda row: row.attempted_at is not None)


async def test_every_fate_of_a_job_is_counted_by_kind_and_queue(
    database: str, registry: awa.Registry, observatory: Any
) -> None:
    async with measured(database, registry, observatory.telemetry) as client:
        await client.insert_many([Task(""), Task("")])
        await ended(client, "", "fail", "exhaust", "retry", "snooze", "cancel")
    of_task = ("task", "tasks")
    assert observatory.values("awa.job.inserted") == {of_task: 8}
    assert observatory.values("awa.job.completed") == {of_task: 3}
    assert observatory.values("awa.job.failed") == {(*of_task, True): 1, (*of_task, False): 1}
    assert observatory.values("awa.job.retried")[of_task] >= 1
    for name in ("snoozed", "cancelled"):
        assert observatory.values(f"awa.job.{name}") == {of_task: 1}, name
    assert observatory.values("awa.job.duration")[of_task] >= 8
    assert observatory.values("awa.job.wait_duration") == {of_task: 8}
    assert observatory.values("awa.job.claimed")[("tasks",)] >= 8
    assert observatory.values("awa.job.in_flight") == {}, "nothing is said of a worker that has ended"
    assert observatory.values("awa.enqueue.batch_size") == {(): 7}
    assert set(observatory.values("awa.completion.flushes")) == {("completer",), ("reschedule",)}


async def test_what_the_leader_counts_and_does_is_shown_while_it_leads(
    database: str, registry: awa.Registry, observatory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "KINDS_EVERY", 0.05)
    async with measured(database, registry, observatory.telemetry) as client:
        await client.insert(Task(""), awa.InsertOpts(queue="elsewhere"))
        await ended(client, "", "fail")

        async def counted() -> bool:
            depth = observatory.values("awa.queue.depth")
            return bool(depth.get(("elsewhere", "available")) == 1 and depth.get(("tasks", "failed")) == 1)

        await until(counted)
        assert observatory.values("awa.maintenance.leader") == {(): 1}
        assert observatory.values("awa.storage.state") == {("queue_storage", "active"): 1}
        assert observatory.values("awa.queue.lag")[("elsewhere",)] >= 0
        assert observatory.values("awa.job.dlq_depth") == {("elsewhere",): 0, ("tasks",): 0}
        assert observatory.values("awa.job.in_flight") == {("tasks",): 0}

        async def described() -> bool:
            return ("Tasks", "ops", "tasks") in observatory.values("awa.queue.info")

        await until(described)
        assert observatory.values("awa.heartbeat.age")[()] < LIMIT

        async def turned() -> bool:
            return ("ready", "turned") in observatory.values("awa.maintenance.rotate.attempts")

        await until(turned)
        assert {"promote", "rescue", "hygiene", "refresh", "batch"} <= {
            lane for (lane,) in observatory.values("awa.maintenance.branch.duration")
        }
    for name in ("awa.queue.depth", "awa.queue.lag", "awa.ring.generation", "awa.maintenance.leader"):
        assert observatory.values(name) == {}, name


async def test_stored_beats_are_counted(database: str, registry: awa.Registry, observatory: Any) -> None:
    brisk = WorkerSettings(liveness=Liveness(3.0, beat_every=0.02, beat_timeout=0.9))
    async with (
        awa.open_client(database, registry=registry, telemetry=observatory.telemetry) as client,
        trio.open_nursery() as nursery,
    ):
        worker: awa.Worker = await nursery.start(
            lambda task_status: client.run_worker(settings=brisk, maintenance=False, task_status=task_status)
        )

        async def beaten() -> bool:
            return bool(observatory.values("awa.heartbeat.batches").get((), 0) > 2)

        await until(beaten)
        with trio.fail_after(LIMIT):
            await worker.drain()


async def test_how_far_a_transition_may_go_is_shown_while_there_is_one(
    database: str, registry: awa.Registry, observatory: Any
) -> None:
    make_canonical(database)
    ready, able = "awa.storage.transition_ready", "awa.storage.live_runtime_capability"
    async with measured(database, registry, observatory.telemetry) as client:

        async def shown() -> bool:
            closed = {("enter_mixed_transition",): 0, ("finalize",): 0}
            return bool(observatory.values(ready) == closed and sum(observatory.values(able).values()) == 1)

        await until(shown)
        await client.admin.storage.prepare()

        async def opened() -> bool:
            mine = observatory.values(able) == {("queue_storage",): 1}
            return bool(mine and observatory.values(ready)[("enter_mixed_transition",)] == 1)

        await until(opened)
        await client.admin.storage.enter_mixed_transition()

        async def finalizable() -> bool:
            return bool(observatory.values(ready) == {("enter_mixed_transition",): 0, ("finalize",): 1})

        await until(finalizable)
        await client.admin.storage.finalize()

        async def over() -> bool:
            return bool(observatory.values(ready) == {} and observatory.values(able) == {("queue_storage",): 1})

        await until(over)


async def test_all_that_is_exported_is_on_the_list_with_its_attributes(
    database: str, registry: awa.Registry, observatory: Any
) -> None:
    async with measured(database, registry, observatory.telemetry) as client:
        await ended(client, "", "fail", "retry")

        async def led() -> bool:
            return bool(observatory.values("awa.ring.generation"))

        await until(led)
        points = observatory.points()
    for name, found in points.items():
        for point in found:
            assert set(point.attributes) == set(METRICS[name].attributes), name
        if METRICS[name].kind is MetricKind.HISTOGRAM:
            assert len(found[0].explicit_bounds) > 10, name


def test_names_and_units_are_well_formed() -> None:
    for name, metric in METRICS.items():
        assert name == metric.name
        assert name.startswith("awa.")
        assert (metric.unit == "s") == name.endswith(("duration", "lag", "age")), name
        assert all(key.startswith("awa.") for key in metric.attributes)


async def test_without_telemetry_health_and_the_log_have_the_totals(
    database: str,
    registry: awa.Registry,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "PUBLISH_EVERY", 0.05)
    caplog.set_level("INFO", "awa_actors.worker")
    async with measured(database, registry, None) as client:
        await ended(client, "", "fail", "retry")

        async def published() -> bool:
            deployment = (await client.admin.health()).deployment
            assert deployment is not None
            expected = {"claimed": 3, "completed": 1, "failed": 1, "retried": 1}
            return any(expected.items() <= process.totals.items() for process in deployment.processes)

        await until(published)
    assert "completed 1" in next(line for line in caplog.messages if "has ended" in line)
