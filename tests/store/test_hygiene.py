"""Hygiene: rings turn, slots empty, space comes back by truncation, and never something that is needed."""

from collections.abc import Callable

import psycopg
import pytest
from queue_plane import Attempt, Plane, blocked


def truncate_now(plane: Plane, ring: str, slot: int, retention: float = 0.0) -> str:
    """Truncate without the wait that dumps need."""
    outcome: str = plane.row(
        "SELECT outcome FROM awa_queue.truncate_slot(%s, %s, make_interval(secs => %s), interval '0')",
        ring,
        slot,
        retention,
    )["outcome"]
    return outcome


def sealed(plane: Plane, ring: str) -> int:
    """Turn a ring; returns the slot that was current."""
    slot = plane.current(ring)
    assert plane.turn(ring) is not None
    return slot


def size(plane: Plane, table: str) -> int:
    return int(plane.value("SELECT pg_relation_size(%s::regclass)", f"awa_queue.{table}"))


def test_a_ring_turns_to_any_empty_slot(plane: Plane) -> None:
    plane.insert()
    assert plane.turn("ready") == 1
    plane.insert()
    plane.rows("INSERT INTO awa_queue.ready VALUES (2, 2, 0, 0, 0, 100, 100, 0, now(), 'default')")
    assert plane.turn("ready") == 3


def test_a_ring_prefers_a_slot_that_was_truncated(plane: Plane) -> None:
    plane.rows(
        "INSERT INTO awa_queue.ready SELECT 1, 2, 0, 0, 0, n, n, 0, now(), 'default' FROM generate_series(1, 9) n"
    )
    plane.rows("DELETE FROM awa_queue.ready")
    assert plane.turn("ready") == 2


def test_a_ring_that_is_full_stays(plane: Plane) -> None:
    for slot in range(8):
        plane.rows("INSERT INTO awa_queue.ready VALUES (%s, 2, 0, 0, 0, 1, 1, 0, now(), 'default')", slot)
    assert plane.turn("ready") is None
    assert plane.current("ready") == 0


def test_of_two_that_turn_at_once_one_does(plane: Plane, other: Plane) -> None:
    turn = "SELECT awa_queue.turn('ready', 0)"
    assert [plane.value(turn), other.value(turn)] == [1, None]
    assert plane.value("SELECT count(*) FROM awa_queue.ring_turns WHERE ring = 'ready'") == 2


def test_the_ledger_of_turns_stays_short(plane: Plane) -> None:
    for _ in range(40):
        plane.turn("leases")
    assert plane.value("SELECT count(*) FROM awa_queue.ring_turns WHERE ring = 'leases'") <= 18


@pytest.mark.parametrize("ring", ["ready", "leases", "segments"])
def test_the_current_slot_is_never_truncated(plane: Plane, ring: str) -> None:
    plane.complete(plane.claim().attempts)
    assert truncate_now(plane, ring, plane.current(ring)) == "current"


def test_an_emptied_slot_gives_its_space_back(plane: Plane) -> None:
    plane.insert(100)
    plane.complete(plane.claim(100).attempts)
    ready, leases = sealed(plane, "ready"), sealed(plane, "leases")
    assert size(plane, f"ready_{ready}") > 0
    assert [truncate_now(plane, "ready", ready), truncate_now(plane, "leases", leases)] == ["truncated"] * 2
    assert [size(plane, f"ready_{ready}"), size(plane, f"leases_{leases}")] == [0, 0]
    assert truncate_now(plane, "ready", ready) == "empty"


def test_space_comes_back_while_another_session_pins_the_horizon(plane: Plane, other: Plane) -> None:
    """P6."""
    plane.insert(100)
    other.rows("BEGIN ISOLATION LEVEL REPEATABLE READ")
    assert other.value("SELECT txid_current() > 0") is True
    plane.complete(plane.claim(100).attempts)
    ready = sealed(plane, "ready")
    assert truncate_now(plane, "ready", ready) == "truncated"
    other.rows("ROLLBACK")


def test_what_is_live_stays(plane: Plane) -> None:
    (waiting,) = plane.insert(queue="waiting")
    (running,) = plane.insert(queue="running")
    plane.take(running, "running")
    ready, leases, segment = (sealed(plane, ring) for ring in ("ready", "leases", "segments"))
    assert truncate_now(plane, "ready", ready) == "live"
    assert truncate_now(plane, "leases", leases) == "live"
    assert truncate_now(plane, "segments", segment) == "live"
    assert [plane.state(waiting), plane.state(running)] == ["available", "running"]


@pytest.mark.parametrize("state", ["ready", "leased", "parked"])
def test_one_live_job_keeps_its_segment(plane: Plane, state: str) -> None:
    (done,) = plane.insert()
    plane.complete([plane.take(done)])
    (kept,) = plane.insert()
    if state == "leased":
        plane.take(kept)
    elif state == "parked":
        plane.rows("INSERT INTO awa.queues (queue, paused) VALUES ('default', true)")
        assert plane.value("SELECT awa_queue.park_ready(%s, 10)", sealed(plane, "ready")) == 1
    assert truncate_now(plane, "segments", sealed(plane, "segments")) == "live"


def test_history_inside_its_retention_stays(plane: Plane) -> None:
    (job_id,) = plane.insert()
    plane.complete([plane.take(job_id)])
    segment = sealed(plane, "segments")
    assert truncate_now(plane, "segments", segment, retention=3600.0) == "history"
    assert plane.state(job_id) == "completed"
    assert truncate_now(plane, "segments", segment) == "truncated"
    assert plane.rows("SELECT FROM awa.jobs") == []


def test_an_old_job_that_ended_late_is_history_of_its_own_time(plane: Plane) -> None:
    """The youngest job is looked at first, but it is not always the one that ended last."""
    ids = plane.insert(2)
    older, newer = plane.claim().attempts
    plane.complete([newer])
    plane.rows("UPDATE awa_queue.done SET finalized_at = now() - interval '1 hour'")
    plane.complete([older])
    segment = sealed(plane, "segments")
    assert truncate_now(plane, "segments", segment, retention=60.0) == "history"
    assert plane.state(ids[0]) == "completed"


def test_a_locked_slot_is_left_for_the_next_pass_and_its_blocker_named(plane: Plane, other: Plane) -> None:
    plane.insert()
    plane.complete(plane.claim().attempts)
    slot = sealed(plane, "ready")
    with other.transaction():
        other.rows("SELECT FROM awa_queue.ready")
        row = plane.row("SELECT * FROM awa_queue.truncate_slot('ready', %s, '0', '0')", slot)
        assert row == {"outcome": "busy", "blocker": other.pid}
    assert truncate_now(plane, "ready", slot) == "truncated"


def test_a_look_that_finds_something_live_takes_no_lock(plane: Plane, other: Plane) -> None:
    plane.insert()
    slot = sealed(plane, "ready")
    with other.transaction():
        other.rows("SELECT FROM awa_queue.ready")
        assert truncate_now(plane, "ready", slot) == "live"


@pytest.mark.parametrize("ring", ["ready", "leases", "segments"])
def test_a_refused_truncation_holds_no_lock(plane: Plane, ring: str) -> None:
    ids = plane.insert(2)
    plane.take(ids[0])
    slot = sealed(plane, ring)
    held = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock'"
    with plane.transaction():
        assert plane.truncate(ring, slot) == "live"
        assert plane.value(held) == 0


def test_a_slot_is_truncated_some_time_after_it_was_found_empty(plane: Plane) -> None:
    plane.insert()
    plane.complete(plane.claim().attempts)
    slot = sealed(plane, "ready")
    held = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock'"
    with plane.transaction():
        assert plane.truncate("ready", slot) == "settling"
        assert plane.value(held) == 0
    assert plane.truncate("ready", slot) == "settling"
    plane.rows("UPDATE awa_queue.emptied_slots SET found_at = found_at - interval '6 seconds'")
    assert plane.truncate("ready", slot) == "truncated"
    assert plane.rows("SELECT FROM awa_queue.emptied_slots") == []


def test_a_slot_that_becomes_current_again_starts_anew(plane: Plane) -> None:
    plane.insert()
    plane.complete(plane.claim().attempts)
    slot = sealed(plane, "ready")
    assert plane.truncate("ready", slot) == "settling"
    plane.rows("UPDATE awa_queue.emptied_slots SET found_at = '-infinity'")
    for number in set(range(8)) - {slot, plane.current("ready")}:
        plane.rows("INSERT INTO awa_queue.ready VALUES (%s, 2, 0, 0, 0, 1, 1, 0, now(), 'x')", number)
    assert plane.turn("ready") == slot
    plane.rows("DELETE FROM awa_queue.ready")
    plane.turn("ready")
    assert plane.truncate("ready", slot) == "settling"


def test_a_dump_that_took_its_snapshot_before_the_jobs_were_done_finds_them(plane: Plane, other: Plane) -> None:
    """P8: pg_dump takes its snapshot first and its locks after that; truncation is not seen through a snapshot."""
    ids = plane.insert(5)
    slot = sealed(plane, "ready")
    other.rows("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other.rows("SELECT 1 FROM pg_class LIMIT 1")
    plane.complete(plane.claim().attempts)
    plane.truncate("ready", slot)
    plane.truncate("ready", slot)
    assert [row["job_id"] for row in other.rows("SELECT job_id FROM awa_queue.ready ORDER BY pos")] == ids
    other.rows("ROLLBACK")


def test_without_that_wait_a_dump_would_miss_them(plane: Plane, other: Plane) -> None:
    """The broken twin of the guard above."""
    plane.insert(5)
    slot = sealed(plane, "ready")
    other.rows("BEGIN ISOLATION LEVEL REPEATABLE READ")
    other.rows("SELECT 1 FROM pg_class LIMIT 1")
    plane.complete(plane.claim().attempts)
    assert truncate_now(plane, "ready", slot) == "truncated"
    assert other.rows("SELECT job_id FROM awa_queue.ready") == []
    assert other.rows("SELECT job_id FROM awa_queue.done") == []
    other.rows("ROLLBACK")


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_truncation_refuses_any_other_isolation(plane: Plane, isolation: str) -> None:
    plane.insert()
    slot = sealed(plane, "ready")
    plane.rows("SELECT set_config('default_transaction_isolation', %s, false)", isolation)
    with pytest.raises(psycopg.errors.InvalidTransactionState, match="read committed"):
        plane.truncate("ready", slot)


VERIFY_WHILE_LOCKING = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM awa_queue.ready_0) THEN
        LOCK TABLE awa_queue.ready_0 IN ACCESS EXCLUSIVE MODE;
        TRUNCATE awa_queue.ready_0;
    END IF;
END $$
"""


def test_verifying_before_the_lock_is_held_would_lose_a_job(plane: Plane, other: Plane, watcher: Plane) -> None:
    """T3's broken twin: what was checked is older than the lock."""
    with other.transaction():
        (job_id,) = other.insert()
        truncating = blocked(plane, watcher, lambda: plane.rows(VERIFY_WHILE_LOCKING))
    truncating.join()
    assert watcher.rows("SELECT FROM awa.jobs WHERE id = %s", job_id) == []


def test_verifying_after_the_lock_keeps_it(plane: Plane, other: Plane) -> None:
    other.rows("BEGIN")
    (job_id,) = other.insert()
    slot = sealed(plane, "ready")
    plane.rows("INSERT INTO awa_queue.ready VALUES (%s, 2, 0, 0, 0, 1, 1, 0, now(), 'x')", slot)
    plane.rows("DELETE FROM awa_queue.ready WHERE queue = 'x'")
    assert truncate_now(plane, "ready", slot) == "busy"
    other.rows("COMMIT")
    assert truncate_now(plane, "ready", slot) == "live"
    assert plane.state(job_id) == "available"


def test_pruning_gives_back_the_keys_that_only_history_held(plane: Plane) -> None:
    completed = plane.keyed(b"completed", {"available", "running", "completed"})
    plane.complete([plane.take(completed)])
    waiting = plane.keyed(b"deferred", {"available", "running", "retryable"})
    plane.retry(plane.take(waiting), delay=60.0)
    segment = sealed(plane, "segments")
    assert truncate_now(plane, "segments", segment, retention=60.0) == "history"
    assert plane.holder(b"completed") == completed
    assert truncate_now(plane, "segments", segment) == "truncated"
    assert plane.holder(b"completed") is None
    assert plane.holder(b"deferred") == waiting


def test_a_key_is_not_given_back_by_a_truncation_that_was_refused(plane: Plane, other: Plane) -> None:
    completed = plane.keyed(b"completed", {"available", "running", "completed"})
    plane.complete([plane.take(completed)])
    segment = sealed(plane, "segments")
    with other.transaction():
        other.rows("SELECT FROM awa_queue.bodies")
        assert truncate_now(plane, "segments", segment) == "busy"
    assert plane.holder(b"completed") == completed


@pytest.fixture
def attempts(plane: Plane) -> list[Attempt]:
    plane.insert(5)
    return plane.claim().attempts


def test_carried_leases_are_what_they_were(plane: Plane, attempts: list[Attempt]) -> None:
    plane.rows("SELECT awa_queue.note(%s, 1, %s, '{\"percent\": 1}', NULL)", attempts[0].job_id, plane.instance)
    columns = (
        "slot, attempt, frees_claim, job_id, run_lease, instance, claimed_at, state, deadline_at, progress, metadata"
    )
    look = psycopg.sql.SQL("SELECT {} FROM awa_queue.leases ORDER BY job_id").format(psycopg.sql.SQL(columns))
    before = plane.rows(look)
    slot = sealed(plane, "leases")
    assert [plane.value("SELECT awa_queue.carry_leases(%s, 2)", slot) for _ in range(4)] == [2, 2, 1, 0]
    assert plane.rows(look) == before
    assert truncate_now(plane, "leases", slot) == "truncated"
    assert len(plane.complete(attempts)) == 5


def test_a_lease_in_somebodys_hands_is_carried_later(plane: Plane, other: Plane, attempts: list[Attempt]) -> None:
    slot = sealed(plane, "leases")
    with other.transaction():
        other.rows("SELECT FROM awa_queue.leases WHERE job_id = %s FOR UPDATE", attempts[0].job_id)
        assert plane.value("SELECT awa_queue.carry_leases(%s, 100)", slot) == 4
    assert plane.value("SELECT awa_queue.carry_leases(%s, 100)", slot) == 1


def test_nothing_is_carried_out_of_the_current_slot(plane: Plane, attempts: list[Attempt]) -> None:
    assert plane.value("SELECT awa_queue.carry_leases(%s, 100)", plane.current("leases")) == 0
    assert plane.value("SELECT awa_queue.carry_bodies(%s, 100)", plane.current("segments")) == 0


def test_carried_bodies_are_found_by_whoever_needs_them(plane: Plane, attempts: list[Attempt]) -> None:
    (waiting,) = plane.insert(queue="waiting")
    (parked,) = plane.insert(queue="parked")
    plane.rows("INSERT INTO awa.queues (queue, paused) VALUES ('parked', true)")
    plane.rows("SELECT awa_queue.park_ready(%s, 100)", sealed(plane, "ready"))
    jobs = "SELECT * FROM awa.jobs ORDER BY id"
    before = plane.rows(jobs)
    segment = sealed(plane, "segments")
    assert [plane.value("SELECT awa_queue.carry_bodies(%s, 3)", segment) for _ in range(4)] == [3, 3, 1, 0]
    assert plane.rows(jobs) == before
    assert truncate_now(plane, "segments", segment) == "truncated"
    assert plane.rows(jobs) == before
    assert plane.complete(attempts) == {attempt.job_id for attempt in attempts}
    assert plane.claim(queue="waiting").ids == [waiting]
    assert plane.state(parked) == "available"


def test_a_claim_while_bodies_are_carried_loses_nobody(plane: Plane, other: Plane) -> None:
    ids = plane.insert(10)
    segment = sealed(plane, "segments")
    with other.transaction():
        assert other.value("SELECT awa_queue.carry_bodies(%s, 4)", segment) == 4
        assert plane.claim().ids == ids[4:]
    assert plane.claim().ids == ids[:4]


def test_jobs_of_a_paused_queue_are_parked_once_and_come_back_in_their_places(
    plane: Plane, sessions: Callable[[], Plane]
) -> None:
    ids = plane.insert(5)
    (bystander,) = plane.insert(queue="other")
    plane.rows("INSERT INTO awa.queues (queue, paused) VALUES ('default', true)")
    slot = sealed(plane, "ready")
    assert [plane.value("SELECT awa_queue.park_ready(%s, 3)", slot) for _ in range(3)] == [3, 2, 0]
    assert plane.claim(queue="other").ids == [bystander]
    assert truncate_now(plane, "ready", slot) == "truncated"
    assert [plane.state(job_id) for job_id in ids] == ["available"] * 5
    assert plane.claim().ids == []
    plane.rows("UPDATE awa.queues SET paused = false")
    newer = plane.insert(2)
    assert [plane.claim(3).ids for _ in range(3)] == [ids[:3], [*ids[3:], newer[0]], newer[1:]]
    assert plane.value("SELECT count(*) FROM awa_queue.parked_ready") == 0


def test_what_two_claimers_take_at_once_of_a_resumed_queue_stays_in_order(plane: Plane, other: Plane) -> None:
    ids = plane.insert(6)
    plane.rows("INSERT INTO awa.queues (queue, paused) VALUES ('default', true)")
    plane.value("SELECT awa_queue.park_ready(%s, 10)", sealed(plane, "ready"))
    plane.rows("UPDATE awa.queues SET paused = false")
    newer = plane.insert(1)
    with other.transaction():
        other.value("SELECT awa_queue.unpark('default', 1::smallint, 2)")
        assert plane.claim(2).ids == ids[2:4]
    assert plane.claim(10).ids == [*ids[:2], *ids[4:], *newer]


def test_failed_and_dead_jobs_are_forgotten_with_their_keys(plane: Plane) -> None:
    plane.rows("INSERT INTO awa.queues (queue, failed_retention) VALUES ('kept', '1 hour')")
    plane.rows("INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('dead', true)")
    jobs = {}
    for queue in ("default", "kept", "dead"):
        jobs[queue] = plane.keyed(queue.encode(), {"available", "running", "failed"}, queue=queue)
        plane.fail(plane.take(jobs[queue], queue))
    plane.rows("UPDATE awa_queue.terminal SET finalized_at = finalized_at - interval '10 minutes'")
    plane.rows("UPDATE awa_queue.dlq_entries SET dlq_at = dlq_at - interval '10 minutes'")
    forget = "SELECT terminal, dead FROM awa_queue.forget(100, '1 minute', %s::interval)"
    assert plane.row(forget, "1 hour") == {"terminal": 1, "dead": 0}
    assert plane.row(forget, "1 minute") == {"terminal": 0, "dead": 1}
    assert [plane.holder(queue.encode()) for queue in jobs] == [None, jobs["kept"], None]
