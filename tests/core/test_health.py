from typing import Any

import attrs
import pytest

from awa_actors.core.health import Deployment, Health, Lane, Leader, Process, QueueNumbers, Server

SERVER = Server("18.1", read_only=False, sessions=7, all_sessions=9, max_connections=100)
LEADER = Leader("a", term=3, led_for=60.0, lease_age=1.0, lease_left=9.0)
LANE = Lane("promote", healthy=True, last_success_age=0.1, last_error=None, blocked=None)
WORKER = Process("b", "worker", "host", 7, "1.0", "running", alive=True, beat_age=0.1, queues=("email",))
EMAIL = QueueNumbers("email", 3, 1, 0, 0, 0, 0, 0, oldest_available_age=2.0, counted_age=1.0)
WELL = Health(SERVER, 9, 9, Deployment(LEADER, (LANE,), (WORKER,), (EMAIL,), jobs_wait=True))


def with_deployment(**changes: Any) -> Health:
    assert WELL.deployment is not None
    return attrs.evolve(WELL, deployment=attrs.evolve(WELL.deployment, **changes))


def test_a_deployment_that_is_well_is_ready_without_a_warning() -> None:
    assert (WELL.reasons, WELL.warnings) == ([], [])
    assert WELL.as_json()["ready"] is True


@pytest.mark.parametrize(
    ("health", "reason"),
    [
        (attrs.evolve(WELL, schema_version=0, deployment=None), "run 'awa-actors migrate'"),
        (attrs.evolve(WELL, schema_version=8, deployment=None), "at version 8, this release needs 9"),
        (attrs.evolve(WELL, schema_version=10, deployment=None), "upgrade"),
        (attrs.evolve(WELL, server=attrs.evolve(SERVER, read_only=True)), "read-only"),
        (with_deployment(leader=None, lanes=()), "nobody leads"),
        (
            with_deployment(lanes=(attrs.evolve(LANE, healthy=False, last_error="out of disk"),)),
            "unhealthy: out of disk",
        ),
        (with_deployment(lanes=(attrs.evolve(LANE, healthy=False),)), "promote is unhealthy: its pass does not end"),
    ],
)
def test_what_keeps_a_deployment_from_being_ready_is_said(health: Health, reason: str) -> None:
    assert len(health.reasons) == 1
    assert reason in health.reasons[0]
    assert health.as_json()["ready"] is False


@pytest.mark.parametrize(
    ("health", "warning"),
    [
        (attrs.evolve(WELL, server=attrs.evolve(SERVER, all_sessions=95)), "95 of 100 connections"),
        (with_deployment(leader=None, lanes=(), jobs_wait=False), "nobody leads; no job needs it yet"),
        (with_deployment(lanes=(attrs.evolve(LANE, blocked="process 5 holds a lock"),)), "promote: process 5"),
        (with_deployment(processes=(WORKER, attrs.evolve(WORKER, alive=False, beat_age=50.0))), "not beaten for 50 s"),
        (with_deployment(processes=()), "queue email has 3 available jobs and no live worker"),
    ],
)
def test_what_should_be_looked_at_is_a_warning_and_no_reason(health: Health, warning: str) -> None:
    assert health.reasons == []
    assert len(health.warnings) == 1
    assert warning in health.warnings[0]


def test_the_names_in_json_are_the_same_whatever_is_known() -> None:
    assert set(WELL.as_json()) == set(attrs.evolve(WELL, schema_version=0, deployment=None).as_json())
