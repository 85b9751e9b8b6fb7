"""Batch operations step by step: bounded, repeatable, stopped at any step, and nobody is touched who was not meant."""

import json
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from queue_plane import DEADLINE, Plane, blocked

SUBMIT = (
    "INSERT INTO awa.batch_operations (op_kind, filter, spec, from_id, cursor, upto_id)"
    " SELECT 'move_queue', %s::jsonb, %s::jsonb, awa.lowest_job() - 1, awa.lowest_job() - 1, last_value"
    " FROM awa.job_id_seq RETURNING id"
)
STEP = "SELECT op, changed, more FROM awa.batch_step(%s)"


def submit(plane: Plane, wanted: dict[str, Any], **change: Any) -> int:
    return int(plane.value(SUBMIT, json.dumps(wanted), json.dumps(change)))


def operation(plane: Plane, op: int) -> dict[str, Any]:
    return plane.row("SELECT * FROM awa.batch_operations WHERE id = %s", op)


def run(plane: Plane, rows: int = 100) -> list[int]:
    """Do steps until none is left; returns what each changed."""
    changed = []
    while (step := plane.row(STEP, rows))["op"] is not None:
        changed.append(step["changed"])
    return changed


def queues(plane: Plane, ids: list[int]) -> list[str]:
    return [plane.stored(job_id)["queue"] for job_id in ids]


def park(plane: Plane, queue: str) -> None:
    plane.rows("INSERT INTO awa.queues (queue, paused) VALUES (%s, true)", queue)
    slot = plane.current("ready")
    plane.turn("ready")
    plane.value("SELECT awa_queue.park_ready(%s, 1000)", slot)


def test_all_that_waits_is_moved_wherever_it_waits_and_the_rest_is_left(plane: Plane) -> None:
    running = plane.insert(1, "old")
    attempt = plane.take(running[0], "old")
    parked = plane.insert(2, "old")
    park(plane, "old")
    plane.rows("UPDATE awa.queues SET paused = false")
    ready, scheduled = plane.insert(2, "old"), plane.job(queue="old", delay=3600.0)
    elsewhere = plane.insert(1, "elsewhere")
    op = submit(plane, {"queue": "old"}, queue="new")
    assert sum(run(plane)) == 5
    assert queues(plane, [*parked, *ready, scheduled]) == ["new"] * 5
    assert queues(plane, [*running, *elsewhere]) == ["old", "elsewhere"]
    done = operation(plane, op)
    assert (done["state"], done["processed"], done["skipped"], done["errored"]) == ("completed", 5, 0, 0)
    assert plane.complete([attempt]) == set(running)
    assert plane.claim(10, "new").ids == [*parked, *ready]


def test_a_moved_job_keeps_its_age_and_its_place_among_jobs_of_its_age(plane: Plane) -> None:
    (first,), (between,), (last,) = plane.insert(1, "a"), plane.insert(1, "b"), plane.insert(1, "a")
    since = plane.value("SELECT ready_at FROM awa_queue.ready WHERE job_id = %s", first)
    submit(plane, {"queue": "a"}, queue="b")
    run(plane)
    assert plane.value("SELECT ready_at FROM awa_queue.ready WHERE job_id = %s", first) == since
    assert plane.claim(10, "b").ids == [first, between, last]


def test_a_job_that_was_claimed_once_keeps_its_place_too(plane: Plane) -> None:
    """Its place is not its id any more."""
    first, second = plane.insert(2, "a")
    for attempt in plane.claim(2, "a").attempts:
        plane.retry(attempt)
    plane.promote()
    place = "SELECT pos FROM awa_queue.ready WHERE job_id = %s"
    before = [plane.value(place, job_id) for job_id in (first, second)]
    submit(plane, {"queue": "a"}, priority=1)
    run(plane)
    assert [plane.value(place, job_id) for job_id in (first, second)] == before
    assert [(one.job_id, one.priority, one.run_lease) for one in plane.claim(2, "a").attempts] == [
        (first, 1, 2),
        (second, 1, 2),
    ]


def test_what_a_job_was_first_stays_in_its_metadata(plane: Plane) -> None:
    job_id = plane.job(queue="a", priority=3, metadata={"mine": 1})
    for target, priority in (("b", 1), ("c", 4)):
        submit(plane, {"kind": "email"}, queue=target, priority=priority)
        run(plane)
    stored = plane.stored(job_id)
    assert (stored["queue"], stored["priority"]) == ("c", 4)
    assert stored["metadata"] == {"mine": 1, "_awa_original_queue": "a", "_awa_original_priority": 3}


def test_every_filter_narrows(plane: Plane) -> None:
    tagged = plane.job("email", queue="a", tags=["vip"])
    other_kind = plane.job("sms", queue="a")
    later = plane.job("email", queue="a", delay=3600.0)
    plain = plane.job("email", queue="a")
    created = plane.stored(later)["created_at"].isoformat()
    everything = [tagged, other_kind, later, plain]
    for wanted, expected in (
        ({"tag": "vip"}, [tagged]),
        ({"kind": "sms"}, [other_kind]),
        ({"state": "scheduled"}, [later]),
        ({"ids": [plain, tagged, 999]}, [tagged, plain]),
        ({"since": created}, [later, plain]),
        ({"until": created}, [tagged, other_kind]),
        ({"queue": "a", "kind": "email", "state": "available"}, [tagged, plain]),
        ({}, everything),
        ({"queue": "b"}, []),
    ):
        found = plane.row("SELECT * FROM awa.waiting_page(%s::jsonb, 'z', NULL, 0, 1000, 100)", json.dumps(wanted))
        assert (found["ids"] or [], found["reached"]) == (expected, 1000), wanted


def test_a_page_passes_over_no_more_than_it_may_and_misses_nobody(plane: Plane) -> None:
    """Jobs with several bodies take several rows of a page."""
    again = plane.insert(10, "a")
    plane.rows("SELECT awa_queue.turn('segments', 0)")
    for attempt in plane.claim(10, "a").attempts:
        plane.retry(attempt)
    plane.promote()
    mixed = [job for n in range(10) for job in (*plane.insert(1, "a"), plane.job(queue="a", delay=3600.0 + n))]
    submit(plane, {"queue": "a"}, priority=1)
    steps = run(plane, 4)
    assert sum(steps) == 30
    assert max(steps) <= 8
    assert all(plane.stored(job_id)["priority"] == 1 for job_id in [*again, *mixed])


def test_repeating_an_operation_changes_nothing_twice(plane: Plane) -> None:
    plane.insert(3, "a")
    submit(plane, {"kind": "email"}, queue="b")
    assert sum(run(plane)) == 3
    before = plane.rows("SELECT * FROM awa_queue.ready ORDER BY job_id")
    submit(plane, {"kind": "email"}, queue="b")
    assert sum(run(plane)) == 0
    assert plane.rows("SELECT * FROM awa_queue.ready ORDER BY job_id") == before


def test_jobs_that_come_after_the_submission_are_left(plane: Plane) -> None:
    before = plane.insert(1, "a")
    submit(plane, {"queue": "a"}, queue="b")
    after = plane.insert(1, "a")
    run(plane)
    assert queues(plane, [*before, *after]) == ["b", "a"]


def test_a_step_that_is_interrupted_has_not_happened_and_the_next_one_does_it(plane: Plane, other: Plane) -> None:
    ids = plane.insert(4, "a")
    op = submit(plane, {"queue": "a"}, queue="b")
    with other.transaction():
        assert other.row(STEP, 2)["changed"] == 2
        raise_on_purpose = psycopg.Rollback()
        assert plane.row(STEP, 2) == {"op": None, "changed": 0, "more": False}, "who finds it taken does nothing"
        raise raise_on_purpose
    assert operation(plane, op)["state"] == "pending"
    assert run(plane, 2) == [2, 2]
    assert queues(plane, ids) == ["b"] * 4


def test_a_cancelled_operation_stops_at_the_next_step_and_says_how_far_it_came(
    plane: Plane, other: Plane, watcher: Plane
) -> None:
    ids = plane.insert(4, "a")
    op = submit(plane, {"queue": "a"}, queue="b")
    cancel = (
        "UPDATE awa.batch_operations SET state = 'cancelled', finalized_at = now()"
        " WHERE id = %s AND state IN ('pending', 'running') RETURNING processed"
    )
    with plane.transaction():
        plane.row(STEP, 2)
        waiting = blocked(other, watcher, lambda: other.value(cancel, op))
    assert waiting.join() == 2, "a cancellation waits for the step that is under way"
    assert run(plane) == []
    assert queues(plane, ids) == ["b", "b", "a", "a"]


def test_one_job_that_cannot_be_changed_is_named_and_stops_nobody(plane: Plane) -> None:
    first, poison, last = plane.insert(3, "a")
    plane.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'no room for %', NEW.job_id USING ERRCODE = 'check_violation'; END $$"
    )
    plane.rows(
        "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON awa_queue.bodies_0 FOR EACH ROW"
        f" WHEN (NEW.job_id = {int(poison)} AND NEW.queue = 'b') EXECUTE FUNCTION refuse()"
    )
    op = submit(plane, {"queue": "a"}, queue="b")
    assert sum(run(plane)) == 2
    done = operation(plane, op)
    assert (done["state"], done["processed"], done["errored"]) == ("completed", 2, 1)
    assert done["refused"] == [{"job_id": poison, "reason": f"no room for {poison}"}]
    assert queues(plane, [first, poison, last]) == ["b", "a", "b"]


def test_an_operation_that_nobody_can_do_fails_and_the_next_one_is_done(plane: Plane) -> None:
    plane.insert(1, "a")
    bad, good = submit(plane, {"state": "asleep"}, queue="b"), submit(plane, {"queue": "a"}, queue="c")
    assert sum(run(plane)) == 1
    assert operation(plane, bad)["state"] == "failed"
    assert "asleep" in operation(plane, bad)["last_error"]
    assert operation(plane, good)["state"] == "completed"


@pytest.mark.parametrize("state", ["running", "waiting_external", "completed"])
def test_a_job_that_does_not_wait_is_skipped_when_its_turn_comes(plane: Plane, state: str) -> None:
    (job_id,) = plane.insert(1, "a")
    attempt = plane.take(job_id, "a")
    if state == "completed":
        plane.complete([attempt])
    elif state == "waiting_external":
        plane.rows("UPDATE awa_queue.leases SET state = 'waiting_external'")
    assert plane.value("SELECT awa.change_waiting(%s, 'b', NULL)", job_id) is False
    assert plane.state(job_id) == state


def test_the_workers_of_the_other_queue_are_woken(plane: Plane, other: Plane) -> None:
    plane.insert(1, "a")
    other.rows('LISTEN "awa:b"')
    plane.rows("INSERT INTO awa.sleepers (name, until) VALUES ('b', now() + interval '1 minute')")
    submit(plane, {"queue": "a"}, queue="b")
    run(plane)
    assert [notice.channel for notice in other.connection.notifies(timeout=5.0, stop_after=1)] == ["awa:b"]


CANONICAL_JOB = """
INSERT INTO awa.jobs_hot (job_id, kind, queue, state, args, priority, max_attempts, run_at, created_at, pos, ready_at)
VALUES (nextval('awa.job_id_seq'), 'email', 'old', 'available', '{}', 2, 25, now(), now(), 7, now()) RETURNING job_id
"""
CANONICAL_LATER = """
INSERT INTO awa.scheduled_jobs (job_id, kind, queue, state, args, priority, max_attempts, run_at, created_at)
VALUES (nextval('awa.job_id_seq'), 'email', 'old', 'scheduled', '{}', 2, 25, now(), now()) RETURNING job_id
"""


def test_jobs_of_the_canonical_plane_are_changed_too(plane: Plane) -> None:
    waiting = [plane.value(CANONICAL_JOB) for _ in range(3)]
    running = plane.value(CANONICAL_JOB)
    plane.rows("UPDATE awa.jobs_hot SET state = 'running' WHERE job_id = %s", running)
    later, (here,) = plane.value(CANONICAL_LATER), plane.insert(1, "old")
    submit(plane, {"queue": "old", "kind": "email"}, queue="new", priority=4)
    assert sum(run(plane, 2)) == 5
    told = "SELECT queue, priority, pos, metadata FROM awa.jobs_hot WHERE job_id = %s"
    for job_id in waiting:
        assert plane.row(told, job_id) == {
            "queue": "new",
            "priority": 4,
            "pos": 7,
            "metadata": {"_awa_original_queue": "old", "_awa_original_priority": 2},
        }
    assert plane.row(told, running)["queue"] == "old"
    assert plane.value("SELECT queue FROM awa.scheduled_jobs WHERE job_id = %s", later) == "new"
    assert plane.claim(1, "new").ids == [here]


@pytest.mark.slow
def test_jobs_that_move_while_they_are_claimed_each_run_once(sessions: Callable[[], Plane]) -> None:
    """Movers, claimers, promotion and carrying of bodies at the same jobs: every job ends once, wherever it was."""
    looker, jobs = sessions(), 300
    ids = [
        job for n in range(jobs // 20) for job in (*looker.insert(19, "ab"[n % 2]), looker.job(queue="a", delay=0.2))
    ]
    done: list[int] = []
    errors: list[BaseException] = []
    lock, over = threading.Lock(), threading.Event()

    def until_over(step: Callable[[Plane, random.Random], None], seed: int) -> threading.Thread:
        plane, dice = sessions(), random.Random(seed)
        plane.rows("SET lock_timeout = '10s'")

        def run() -> None:
            try:
                while not over.is_set():
                    with suppress(psycopg.errors.DeadlockDetected):
                        step(plane, dice)
            except BaseException as error:
                errors.append(error)
                over.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def move(plane: Plane, dice: random.Random) -> None:
        page = sorted(dice.sample(ids, 50))
        change = "SELECT changed FROM awa_queue.change_each(%s::bigint[], %s, %s::smallint)"
        plane.rows(change, page, dice.choice("ab"), dice.randint(1, 4))

    def work(plane: Plane, dice: random.Random) -> None:
        attempts = plane.claim(5, dice.choice("ab")).attempts
        back = attempts[: dice.randint(0, 2)]
        for attempt in back:
            plane.retry(attempt)
        completed = plane.complete([attempt for attempt in attempts if attempt not in back])
        with lock:
            done.extend(completed)
            if len(done) >= jobs:
                over.set()

    def maintain(plane: Plane, dice: random.Random) -> None:
        plane.promote(50)
        plane.turn("ready")
        plane.turn("segments")
        for slot in range(8):
            plane.rows("SELECT awa_queue.carry_bodies(%s, 20)", slot)
        plane.rows("SELECT pg_sleep(0.01)")

    threads = [until_over(step, seed) for seed, step in enumerate((move, move, work, work, maintain))]
    over.wait(60)
    over.set()
    for thread in threads:
        thread.join(DEADLINE)
    assert not errors, errors[0]
    assert sorted(done) == sorted(ids)
    assert looker.rows("SELECT * FROM awa.jobs WHERE state <> 'completed'") == []
