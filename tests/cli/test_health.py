import datetime as dt
import functools

import pytest
import trio
from command_line import awa
from jobs_at_hand import Errand, inserted

import awa_actors
from awa_actors.config import MaintenanceSettings


def test_a_migrated_database_without_jobs_is_ready(database: str) -> None:
    answer = awa("health", url=database)
    assert answer.status == 0
    assert answer.out.startswith("ready\n  warning: nobody leads; no job needs it yet\n")


def test_jobs_that_wait_while_nobody_leads_are_not_ready(database: str) -> None:
    inserted(database)
    answer = awa("health", url=database)
    assert answer.status == 1
    assert answer.out.startswith("NOT READY\n  jobs wait and nobody leads: run 'awa-actors --role maintenance'")


@pytest.mark.slow
async def test_health_knows_leader_lanes_processes_and_queues(database: str) -> None:
    """In one look, as a client has it; the command only prints this."""
    registry = awa_actors.Registry()

    @registry.worker(Errand)
    async def run(job: awa_actors.Job[Errand]) -> None: ...

    settings = MaintenanceSettings(refresh_interval=0.05)
    async with awa_actors.open_client(database, registry=registry) as client, trio.open_nursery() as nursery:
        worker = await nursery.start(functools.partial(client.run_worker, maintenance=settings))
        assert worker.maintenance is not None
        term = await worker.maintenance.wait_leader()
        await client.insert(Errand(), awa_actors.InsertOpts(run_at=dt.timedelta(hours=1)))
        with trio.fail_after(15):
            health = await client.admin.health()
            while health.deployment is None or not (health.deployment.lanes and health.deployment.queues):
                await trio.sleep(0.05)
                health = await client.admin.health()
        nursery.cancel_scope.cancel()
    assert health.reasons == []
    deployment = health.deployment
    assert deployment.leader is not None
    assert (deployment.leader.instance, deployment.leader.term) == (worker.instance, term)
    assert {"promote", "rescue", "hygiene"} <= {lane.name for lane in deployment.lanes}
    assert all(lane.healthy for lane in deployment.lanes)
    assert [(one.role, one.alive, one.queues) for one in deployment.processes] == [("worker", True, ("default",))]
    assert [(one.queue, one.scheduled) for one in deployment.queues] == [("default", 1)]
    assert 0 < health.server.sessions <= health.server.all_sessions <= health.server.max_connections
