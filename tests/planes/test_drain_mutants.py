"""The drain on a small scale, without the mover: it converges, and with any of its rules broken it does not."""

import uuid
from contextlib import closing

import pytest
import trio
from psycopg.types.json import Jsonb
from queue_plane import Plane, open_plane
from storage_rehearsal import (
    LOOK,
    Errand,
    Seed,
    Watch,
    at_work,
    flip,
    leading,
    registry_of,
    rows,
    sow,
    until,
)
from storage_states import make_canonical

import awa_actors as awa
from awa_actors.store.claim import ANSWER

pytestmark = pytest.mark.slow

CAP = 30.0
"""Seconds that a sound drain may take on a busy machine; it takes two."""
BROKEN_CAP = 4.0
"""Seconds after which a broken one is believed to be stuck."""
LOSES_ITS_CLAIM = "11011000"
"""A unique mask under which a running job does not hold its key."""
LIVES = ["scheduled", "available", "running", "completed", "retryable", "waiting_external"]
SEEDS = [
    Seed("snoozes for ever", 10, Errand("snooze", 0.1)),
    Seed("is tried again", 5, Errand("retry", 0.2)),
    Seed("is due after the flip", 10, Errand("done"), delay=1.5),
    Seed("lost", 5, Errand("done"), queue="lost"),
    Seed("lost and superseded", 2, Errand("done"), queue="lost", masks=(LOSES_ITS_CLAIM,) * 2),
]

CLAIM_LOST = f"CALL awa.claim_planes('lost', 100, 1000000, %s, 0, NULL, NULL, false, {ANSWER})"


def change(session: Plane, function: str, was: str, becomes: str) -> None:
    """Break one rule of a function."""
    definition: str = session.value("SELECT pg_get_functiondef(%s::regproc)", function)
    assert was in definition, definition
    session.rows(definition.replace(was, becomes))


def reschedule_stays_canonical(session: Plane) -> None:
    session.rows(
        "CREATE OR REPLACE FUNCTION awa_queue.defer(j awa_queue.deferred_jobs) RETURNS void LANGUAGE plpgsql AS $$"
        " BEGIN INSERT INTO awa.scheduled_jobs SELECT j.*; END $$"
    )


def a_leader_of_the_queue_plane_promotes_only_that(session: Plane) -> None:
    session.rows(
        "CREATE OR REPLACE FUNCTION awa.promote_canonical(p_rows integer, OUT moved integer, OUT failed integer,"
        " OUT next_due timestamptz) LANGUAGE plpgsql AS $$ BEGIN moved := 0; failed := 0; END $$"
    )


def a_leader_of_the_canonical_plane_promotes_only_that(session: Plane) -> None:
    change(
        session,
        "awa_queue.promote",
        "FROM awa_queue.deferred_jobs x WHERE x.run_at <= v_now",
        "FROM awa_queue.deferred_jobs x WHERE false",
    )


def rescue_goes_through_the_view(session: Plane) -> None:
    # What the view of the routed plane shows after the flip: nothing of the canonical one.
    change(
        session, "awa.rescue_canonical_stale", "FROM awa.jobs_hot h WHERE h.state = 'running'\n        AND NOT EXISTS",
        "FROM awa.jobs_hot h WHERE h.state = 'running' AND awa.writes_canonical()\n        AND NOT EXISTS",
    )  # fmt: skip


def rescue_is_a_batch_and_nothing_else(session: Plane) -> None:
    change(
        session,
        "awa.rescue_canonical_stale",
        "FOREACH l IN ARRAY coalesce(v_lost, '{}') LOOP",
        "FOREACH l IN ARRAY '{}'::awa_queue.leases[] LOOP",
    )


def lose(session: Plane) -> None:
    """Claim the jobs of a queue for a process that is gone."""
    instance = uuid.uuid4()
    session.rows(
        "INSERT INTO awa.instances (id, role, hostname, pid, version, stale_after, details)"
        " VALUES (%s, 'worker', 'here', 1, '0', interval '1 hour', '{\"storage\": \"queue_storage\"}')", instance,
    )  # fmt: skip
    session.rows(CLAIM_LOST, instance)
    assert session.value("SELECT count(*) FROM awa.jobs_hot WHERE state = 'running' AND queue = 'lost'") == 7
    for row in session.rows(
        "SELECT encode(unique_key, 'hex') AS key FROM awa.jobs_hot WHERE unique_key IS NOT NULL AND state = 'running'"
    ):
        opts = {"queue": "work", "delay": 1.5, "unique_key": row["key"], "unique_states": LIVES}
        session.rows("SELECT id FROM awa.insert_job('errand', '{\"what\": \"done\"}', %s)", Jsonb(opts))
    session.rows("UPDATE awa.instances SET last_beat_at = '-infinity' WHERE id = %s", instance)


async def drain(url: str, leader: str, cap: float, broken: object = None) -> list[str]:
    """Flip a small installation under work; returns what is wrong after `cap` seconds."""
    make_canonical(url)
    watch = Watch()
    registry = registry_of(watch)
    with closing(open_plane(url)) as session:
        if callable(broken):
            broken(session)
        async with awa.open_client(url, registry=registry) as client:
            storage = client.admin.storage
            ids = await sow(client, SEEDS)
            await storage.pause_mover()
            await storage.prepare()
            lose(session)
            async with at_work(url, registry, "work", leads=False):
                await until(lambda: all_ran(watch, ids["snoozes for ever"]))
                await flip(storage)
                async with leading(url, registry, leader), at_work(url, registry, "work", "lost", leads=False):
                    wrong = await end(client, watch, ids, cap)
    return wrong + watch.wrong


async def all_ran(watch: Watch, ids: list[int], times: int = 1) -> bool:
    return all(watch.runs.get(job, 0) >= times for job in ids)


async def end(client: awa.Client, watch: Watch, ids: dict[str, list[int]], cap: float) -> list[str]:
    """What has not come to its end in time."""
    lost: tuple[set[str], ...] = ()
    with trio.move_on_after(cap):
        await client.admin.storage.finalize_when_ready(look_every=0.1)
        runs = max(watch.runs[job] for job in ids["snoozes for ever"])
        await until(lambda: all_ran(watch, ids["snoozes for ever"], runs + 1))
        while lost != ({"completed"}, {"cancelled"}):
            await trio.sleep(LOOK)
            found = await rows(client, [job for jobs in ids.values() for job in jobs])
            states = {shape: {found[job]["state"] for job in jobs} for shape, jobs in ids.items()}
            lost = states["lost"], states["lost and superseded"]
        return []
    if lost:
        return [f"the lost ones are {lost}"]
    now = await client.admin.storage.status()
    return [f"{now.state}: {dict(now.backlog)}"]


@pytest.mark.parametrize("leader", ["auto", "canonical"])
async def test_a_sound_drain_ends_under_a_leader_of_either_kind(database: str, leader: str) -> None:
    assert await drain(database, leader, CAP) == []


@pytest.mark.parametrize(
    ("broken", "leader", "left"),
    [
        (reschedule_stays_canonical, "auto", "mixed_transition: {"),
        (a_leader_of_the_queue_plane_promotes_only_that, "auto", "scheduled"),
        (a_leader_of_the_canonical_plane_promotes_only_that, "canonical", "active: {}"),
        (rescue_goes_through_the_view, "auto", "mixed_transition: {'running': 7}"),
        (rescue_is_a_batch_and_nothing_else, "auto", "mixed_transition: {'running': 2}"),
    ],
)
async def test_a_broken_drain_does_not_end(database: str, broken: object, leader: str, left: str) -> None:
    (wrong,) = await drain(database, leader, BROKEN_CAP, broken)
    assert left in wrong
