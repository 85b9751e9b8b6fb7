"""Whoever leads serves both planes; what one row does to a sweep, it does alone."""

import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, LiteralString

import pytest
import trio
from at_work import LIMIT, ask, until
from canonical_plane import CanonicalPlane, flip

import awa_actors as awa
from awa_actors.config import Budget, MaintenanceSettings, WorkerSettings

PAUSED: LiteralString = (
    "UPDATE awa.storage_transition_state SET details = details || jsonb_build_object('mover_paused', true)"
)
BACKLOG: LiteralString = "SELECT awa.canonical_live_backlog()"
SEEDED: LiteralString = (
    "INSERT INTO awa.jobs_hot (job_id, kind, queue, state, args, priority, attempt, run_lease, max_attempts, run_at,"
    " created_at, attempted_at, instance, deadline_at, errors, pos, ready_at)"
    " VALUES (nextval('awa.job_id_seq'), 'email', 'default', %s::awa.job_state, '{}', 2, 3, 5, 25, now(), now(), now(),"
    " %s, %s::timestamptz, %s::jsonb, 1, now()) RETURNING job_id"
)


def seeded(
    plane: CanonicalPlane,
    state: str = "running",
    instance: uuid.UUID | None = None,
    *,
    deadline: str | None = None,
    errors: str | None = None,
) -> int:
    """A job that is stuck in the canonical plane: its instance is one nobody knows, unless it is said."""
    job_id: int = plane.value(SEEDED, state, instance or uuid.uuid4(), deadline, errors)
    return job_id


def seeded_waiting(plane: CanonicalPlane) -> int:
    """One that waits for a callback which has expired."""
    job_id = seeded(plane, "waiting_external")
    plane.rows(
        "INSERT INTO awa_queue.callbacks (callback_id, job_id, run_lease, instance, timeout_at)"
        " SELECT gen_random_uuid(), h.job_id, h.run_lease, h.instance, now() - interval '1 minute'"
        " FROM awa.jobs_hot h WHERE h.job_id = %s",
        job_id,
    )
    return job_id


@pytest.mark.parametrize("role", ["auto", "canonical"])
async def test_a_leader_that_resolved_to_the_queue_plane_rescues_seeded_stuck_canonical_rows(
    database: str, plane: CanonicalPlane, role: str
) -> None:
    """In mixed transition; stale, expired callback, past deadline. So does one that resolved to the canonical plane."""
    plane.register()
    stale, late = seeded(plane), seeded(plane, instance=plane.instance, deadline="2001-01-01 00:00+00")
    waiting = seeded_waiting(plane)
    plane.rows(PAUSED)
    flip(plane)
    lanes = MaintenanceSettings(rescue_interval=0.02, promote_interval=60.0)
    async with awa.open_client(database) as client, trio.open_nursery() as nursery:
        run = partial(client.run_maintenance, settings=lanes, life=WorkerSettings(storage=role))
        leader: awa.Maintenance = await nursery.start(run)
        with trio.fail_after(LIMIT):
            await leader.wait_leader()

        async def drained() -> bool:
            return bool(await ask(client, BACKLOG) == 0)

        await until(drained)
        rows = {job.id: job for job in [await client.admin.job(one) for one in (stale, late, waiting)]}
        nursery.cancel_scope.cancel()
    assert {job_id: (job.attempt, job.run_lease, job.rescues) for job_id, job in rows.items()} == {
        stale: (2, 5, 1), late: (3, 5, 0), waiting: (3, 5, 0),
    }  # fmt: skip
    deferred = plane.rows("SELECT job_id FROM awa_queue.deferred_jobs")
    # The one that is due at once may have been promoted already.
    assert {row["job_id"] for row in deferred} >= {late, waiting}


async def tick(database: str, budget: Budget | None = None) -> Any:
    async with awa.open_client(database) as client:
        return await client.tick(budget)


def a_snoozer_returns(plane: CanonicalPlane) -> None:
    attempt = plane.take(plane.job())
    flip(plane)
    assert plane.end(attempt, state="scheduled", delay=60.0, snooze=True)


def a_sleeper_comes_due(plane: CanonicalPlane) -> None:
    plane.job(delay=0.0)
    flip(plane)


def a_worker_is_gone(plane: CanonicalPlane) -> None:
    for _ in range(3):
        seeded(plane)
    flip(plane)


def one_of_them_is_poison(plane: CanonicalPlane) -> None:
    seeded(plane)
    seeded(plane, errors='{"no": "list"}')
    older = plane.keyed(b"key", {"available", "retryable"})
    plane.take(older)
    seeded(plane)
    flip(plane)
    plane.keyed(b"key", {"available", "retryable"})


MUTANTS: dict[str, tuple[LiteralString, LiteralString, LiteralString, Callable[[CanonicalPlane], None]]] = {
    "reschedule stays canonical": (
        "awa_queue.defer(awa_queue.deferred_jobs)",
        "IF awa.writes_canonical() THEN",
        "IF true THEN",
        a_snoozer_returns,
    ),
    "a leader promotes only its own plane": (
        "awa.promote_canonical(integer)",
        "WHERE s.run_at <= clock_timestamp()\n",
        "WHERE s.run_at <= clock_timestamp() AND awa.writes_canonical()\n",
        a_sleeper_comes_due,
    ),
    "rescue through a view that shows the plane in use": (
        "awa.rescue_canonical_stale(integer, integer)",
        "WHERE h.state = 'running'\n",
        "WHERE h.state = 'running' AND awa.writes_canonical()\n",
        a_worker_is_gone,
    ),
    "batch-only rescue": (
        "awa.rescue_canonical_stale(integer, integer)",
        "FOREACH l IN ARRAY coalesce(v_lost, '{}')",
        "FOREACH l IN ARRAY ARRAY[]::awa_queue.leases[]",
        one_of_them_is_poison,
    ),
}
"""What each of them breaks: a function, a text in it, what it says instead, and the jobs that then never leave."""


@pytest.mark.parametrize("is_broken", [False, True], ids=["whole", "broken"])
@pytest.mark.parametrize("name", MUTANTS)
async def test_the_canonical_plane_empties_without_a_mover_and_not_when_broken(
    database: str, plane: CanonicalPlane, name: str, is_broken: bool
) -> None:
    function, text, instead, story = MUTANTS[name]
    plane.rows(PAUSED)
    if is_broken:
        definition = plane.value("SELECT pg_get_functiondef(%s::regprocedure)", function)
        assert definition.count(text) == 1
        plane.connection.execute(definition.replace(text, instead).encode())
    story(plane)
    # What is broken may find more to do for as long as it is let.
    await tick(database, Budget(seconds=2.0) if is_broken else None)
    assert (plane.value(BACKLOG) > 0) is is_broken


async def test_innocent_rows_move_in_the_same_pass_and_the_others_end_visibly(
    database: str, plane: CanonicalPlane
) -> None:
    one_of_them_is_poison(plane)
    await tick(database)
    states = plane.rows("SELECT j.state, count(*) AS n FROM awa.jobs j GROUP BY j.state")
    counted = {row["state"]: row["n"] for row in states}
    assert counted == {"retryable": 2, "failed": 1, "cancelled": 1, "available": 1}


async def test_before_the_flip_both_sweeps_land_in_the_canonical_plane(database: str, plane: CanonicalPlane) -> None:
    plane.register()
    seeded(plane)
    seeded(plane, instance=plane.instance, deadline="2001-01-01 00:00+00")
    seeded_waiting(plane)
    plane.job(delay=0.0)
    await tick(database)
    assert plane.rows("SELECT j.state FROM awa.jobs j ORDER BY 1") == [
        {"state": "available"}, *[{"state": "retryable"}] * 3,
    ]  # fmt: skip
    assert plane.value(BACKLOG) == 4


@pytest.mark.parametrize("is_flipped", [False, True], ids=["canonical", "flipped"])
def test_a_promotion_that_is_logged_does_the_same(plane: CanonicalPlane, is_flipped: bool) -> None:
    plane.job(delay=0.0)
    if is_flipped:
        flip(plane)
    ids = [row["id"] for row in plane.rows("SELECT id FROM awa.jobs")] + [plane.job(delay=0.0)]
    done = plane.row("SELECT moved, steps, is_whole FROM awa_queue.promote_traced(10)")
    assert (done["moved"], done["is_whole"]) == (2, True)
    assert [
        (one["job_id"], one["from"], one["to"]) for one in sorted(done["steps"], key=lambda one: one["job_id"])
    ] == [(job_id, "scheduled", "available") for job_id in ids]
    assert plane.value(BACKLOG) == (0 if is_flipped else 2)


def test_a_batch_operation_changes_jobs_of_both_planes_and_keeps_their_places(plane: CanonicalPlane) -> None:
    first, second = plane.insert(2)
    later, running = plane.job(delay=60.0), plane.take(plane.job(queue="other"), "other")
    for is_flipped in (False, True):
        page = plane.row("SELECT ids FROM awa.waiting_page('{}', NULL, 1::smallint, 0, 1000, 100)")
        assert page["ids"] == ([second, later] if is_flipped else [first, second, later])
        assert plane.value("SELECT awa.change_waiting(%s, NULL, 1::smallint)", second if is_flipped else first)
        flip(plane)
    assert not plane.value("SELECT awa.change_waiting(%s, NULL, 1::smallint)", running.job_id)
    assert plane.value("SELECT awa.change_waiting(%s, NULL, 1::smallint)", later)
    assert plane.claim().ids == [first, second]
    assert plane.stored(later)["priority"] == 1
    assert plane.value(BACKLOG) == 4  # they are changed where they are; moving them is the mover's


class Sweep:
    """A stand-in for what a pass asks of the database: nothing, once the transition is over."""

    def __init__(self, state: str) -> None:
        self.asked, self.state = 0, state

    async def fetchval(self, sql: str, *args: object) -> str:
        await trio.lowlevel.checkpoint()
        self.asked += 1
        return self.state


async def test_the_state_is_asked_for_until_it_is_final_and_never_again() -> None:
    from awa_actors.store.planes import Planes

    planes = Planes()
    mixed, active = Sweep("mixed_transition"), Sweep("active")
    refresh: Callable[[Any], Awaitable[None]] = planes.refresh
    await refresh(mixed)
    await refresh(mixed)
    assert (mixed.asked, planes.claim_from.value) == (1, "both")
    planes.changed()
    await refresh(active)
    assert planes.finalized
    planes.changed()
    await refresh(active)
    assert (active.asked, planes.claim_from.value) == (1, "queue")
