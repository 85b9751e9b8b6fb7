"""The hygiene lane where rings are full: history goes early and says so, live jobs are moved, nobody is forgotten."""

import pytest
from queue_plane import Plane

import awa_actors as awa
from awa_actors.actors.hygiene import Hygiene
from awa_actors.actors.lane import StepReport
from awa_actors.config import MaintenanceSettings

EAGER = MaintenanceSettings(segment_rows=1)
"""Segments turn as soon as they hold anything; history is to be kept for a day."""


async def passing(url: str, rows: int = 1000) -> StepReport:
    """One pass of the lane."""
    async with awa.open_client(url) as client, client.pool.acquire() as session:
        return await Hygiene(EAGER).run(session, rows)


def settle_down(plane: Plane) -> None:
    """Let the wait for dumps be over."""
    plane.rows("UPDATE awa_queue.emptied_slots SET found_at = '-infinity'")


def fill(plane: Plane, *, live: bool) -> list[int]:
    """Fill every segment with one job, from the oldest to the current one; returns the jobs."""
    jobs = []
    for number in range(8):
        (job_id,) = plane.insert(queue="live" if live else "default")
        jobs.append(job_id)
        if not live:
            plane.complete([plane.take(job_id)])
        plane.rows("UPDATE awa_queue.ring_turns SET turned_at = turned_at - interval '1 minute'")
        assert (plane.turn("segments") is None) == (number == 7)
    return jobs


async def test_a_full_ring_drops_its_oldest_history_and_says_so(database: str, plane: Plane) -> None:
    jobs = fill(plane, live=False)
    assert plane.current("segments") == 7
    report = await passing(database)
    assert report.blocked == (
        "completed history of segment 0 is about to be dropped before its retention: the ring was full"
    )
    settle_down(plane)
    report = await passing(database)
    assert report.blocked == "completed history of segment 0 was dropped before its retention: the ring was full"
    assert [row["id"] for row in plane.rows("SELECT id FROM awa.jobs ORDER BY id")] == jobs[1:]
    assert (await passing(database)).blocked is None
    assert plane.current("segments") == 0


async def test_a_key_is_held_until_its_history_goes(database: str, plane: Plane) -> None:
    keyed = plane.keyed(b"oldest", {"available", "running", "completed"})
    plane.complete([plane.take(keyed)])
    fill(plane, live=False)
    await passing(database)
    assert plane.holder(b"oldest") == keyed
    settle_down(plane)
    await passing(database)
    assert plane.holder(b"oldest") is None


async def test_live_jobs_move_out_of_the_oldest_segment_when_the_ring_is_full(database: str, plane: Plane) -> None:
    jobs = fill(plane, live=True)
    report = await passing(database)
    assert (report.done, report.blocked) == (1, "every segment holds live jobs; those of segment 0 are being moved")
    await passing(database)
    settle_down(plane)
    await passing(database)
    await passing(database)
    assert plane.current("segments") == 0
    assert plane.claim(queue="live").ids == jobs


async def test_a_slot_that_the_ledger_has_forgotten_is_still_emptied(database: str, plane: Plane) -> None:
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    for _ in range(30):
        plane.turn("leases")
    assert plane.value("SELECT count(*) FROM awa_queue.ring_turns WHERE ring = 'leases' AND slot = 0") == 0
    await passing(database)
    assert plane.value("SELECT count(*) FROM awa_queue.leases WHERE lslot = 0") == 0
    assert plane.complete([attempt]) == {job_id}


@pytest.mark.parametrize("ring", ["ready", "leases"])
async def test_a_blocker_of_truncation_is_named_after_some_passes(
    database: str, plane: Plane, other: Plane, ring: str
) -> None:
    plane.insert()
    plane.complete(plane.claim().attempts)
    plane.turn(ring)
    lane = Hygiene(MaintenanceSettings())
    other.rows("BEGIN")
    other.rows("LOCK TABLE awa_queue.ready, awa_queue.leases IN ACCESS SHARE MODE")
    async with awa.open_client(database) as client, client.pool.acquire() as session:
        blocked = [(await lane.run(session, 100)).blocked for _ in range(5)]
    other.rows("ROLLBACK")
    assert blocked == [None] * 4 + [f"server process {other.pid} holds a lock on slot 0 of the {ring} ring"]
