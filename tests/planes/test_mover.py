"""The mover: what waits leaves the canonical plane without being run, beside workers, producers and callbacks."""

import psycopg
import pytest
from canonical_plane import CanonicalPlane, flip
from psycopg.types.json import Jsonb
from queue_plane import Attempt, blocked

KEY = b"the key"
MASKS = {"scheduled", "available", "running", "completed", "retryable"}


def move(plane: CanonicalPlane, rows: int = 1000) -> tuple[int, int, bool]:
    return tuple(plane.row("SELECT moved, failed, more FROM awa.move_canonical(%s)", rows).values())


def parked(plane: CanonicalPlane, *, inside: bool = False) -> tuple[Attempt, str]:
    """An attempt that waits for a callback."""
    job_id = plane.job(queue="calls", metadata={"m": 1})
    attempt = plane.take(job_id, "calls")
    callback = str(
        plane.value(
            "SELECT awa_queue.register_callback(%s, %s, %s, 600, NULL)", job_id, attempt.run_lease, plane.instance
        )
    )
    if inside:
        assert look(plane, attempt, callback) == "waiting"
    else:
        entry = Jsonb([{"job_id": job_id, "run_lease": attempt.run_lease, "callback_id": callback}])
        assert plane.row("SELECT outcome FROM awa_queue.park(%s, %s)", plane.instance, entry)["outcome"] == "parked"
    return attempt, callback


def look(plane: CanonicalPlane, attempt: Attempt, callback: str) -> str:
    status: str = plane.row(
        "SELECT status FROM awa_queue.await_callback(%s, %s, %s, %s, NULL)",
        callback, attempt.job_id, attempt.run_lease, plane.instance,
    )["status"]  # fmt: skip
    return status


def left(plane: CanonicalPlane) -> list[tuple[str, int]]:
    """What the canonical plane still holds, by state."""
    rows = plane.rows("SELECT state, jobs FROM awa.canonical_backlog_by_state()")
    return [(row["state"], row["jobs"]) for row in rows]


@pytest.mark.parametrize("state", ["canonical", "prepared", "active"])
def test_it_moves_nothing_unless_the_transition_is_mixed(plane: CanonicalPlane, state: str) -> None:
    plane.insert(2)
    plane.job(delay=60)
    plane.rows("UPDATE awa.storage_transition_state SET state = %s, prepared_engine = 'queue_storage'", state)
    assert move(plane) == (0, 0, False)
    assert plane.value("SELECT awa.canonical_live_backlog()") == 3


def test_everything_that_waits_moves_whole_and_what_runs_stays(plane: CanonicalPlane) -> None:
    running = plane.take(plane.job(queue="runs"), "runs")
    inside, _ = parked(plane, inside=True)
    waiting, callback = parked(plane)
    ids = [*plane.insert(3), plane.job(delay=86_400 * 365, tags=["far"]), plane.keyed(KEY, MASKS, queue="unique")]
    retried = plane.job(queue="again")
    plane.retry(plane.take(retried, "again"), 3600)
    before = {row["id"]: row for row in plane.rows("SELECT * FROM awa.jobs")}
    flip(plane)
    assert move(plane) == (7, 0, False)
    assert left(plane) == [("running", 1), ("waiting_external", 1)]
    assert {row["id"]: row for row in plane.rows("SELECT * FROM awa.jobs")} == before
    assert plane.holder(KEY) == ids[-1]
    assert plane.claim().ids == ids[:3]
    assert plane.complete([running, inside]) == {running.job_id, inside.job_id}
    assert plane.value("SELECT awa.complete_external(%s, '{\"n\": 1}')", callback)["state"] == "completed"
    assert plane.stored(waiting.job_id)["result"] == {"n": 1}
    assert left(plane) == []


def test_workers_claim_in_order_while_it_moves(plane: CanonicalPlane) -> None:
    ids = plane.insert(10)
    flip(plane)
    ids += plane.insert(5)
    order = []
    while claimed := plane.claim(2).ids:
        order += claimed
        move(plane, 3)
    assert order == ids


def test_a_pass_is_bounded_and_says_that_there_is_more(plane: CanonicalPlane) -> None:
    plane.insert(2)
    plane.job(delay=60)
    flip(plane)
    assert [move(plane, 2) for _ in range(3)] == [(2, 0, True), (1, 0, False), (0, 0, False)]


def test_one_that_cannot_move_fails_alone(plane: CanonicalPlane) -> None:
    ids = [plane.job(delay=60), plane.job(delay=60, metadata={"refused": 1}), plane.job(delay=60)]
    flip(plane)
    plane.rows(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.metadata ? 'refused' THEN RAISE check_violation; END IF; RETURN NEW; END $$"
    )
    plane.rows(
        "CREATE TRIGGER refuse BEFORE INSERT ON awa_queue.deferred_jobs FOR EACH ROW EXECUTE FUNCTION public.refuse()"
    )
    assert move(plane) == (2, 1, False)
    assert [plane.state(job_id) for job_id in ids] == ["scheduled", "failed", "scheduled"]
    assert plane.stored(ids[1])["errors"][-1]["error"].startswith("could not be moved to the queue plane")
    assert left(plane) == []


def test_what_somebody_has_in_hand_is_passed_over(plane: CanonicalPlane, other: CanonicalPlane) -> None:
    ids = plane.insert(4)
    flip(plane)
    with other.transaction():
        other.rows("SELECT awa.take_canonical('default', 2, 1000, %s, 0, NULL)", other.instance)
        assert move(plane) == (2, 0, False)
    assert [plane.state(job_id) for job_id in ids] == ["running", "running", "available", "available"]


def test_a_claim_that_waits_for_nobody_takes_what_is_being_moved_later(
    plane: CanonicalPlane, other: CanonicalPlane
) -> None:
    ids = plane.insert(4)
    flip(plane)
    with other.transaction():
        assert move(other, 2) == (2, 0, True)
        assert plane.claim().ids == ids[:2]
    assert plane.claim().ids == ids[2:]


RESOLUTIONS = ["complete_external", "fail_external", "retry_external", "resume_external", "heartbeat_callback"]
LANDED = {
    "complete_external": "completed",
    "fail_external": "failed",
    "retry_external": "available",
    "resume_external": "available",
    "heartbeat_callback": "waiting_external",
}


@pytest.mark.parametrize("verb", RESOLUTIONS)
def test_a_resolution_that_comes_while_its_job_moves_finds_it(
    plane: CanonicalPlane, other: CanonicalPlane, watcher: CanonicalPlane, verb: str
) -> None:
    attempt, callback = parked(plane)
    flip(plane)
    with other.transaction():
        assert move(other) == (1, 0, False)
        statement = psycopg.sql.SQL("SELECT awa.{}(%s)").format(psycopg.sql.Identifier(verb))
        waiting = blocked(plane, watcher, lambda: plane.value(statement, callback))
    answer = waiting.join()
    assert answer is not None
    assert (answer["job_id"], answer["state"]) == (attempt.job_id, LANDED[verb])
    assert watcher.state(attempt.job_id) == LANDED[verb]
    assert left(watcher) == []


@pytest.mark.parametrize("verb", RESOLUTIONS)
def test_a_move_passes_over_a_job_whose_callback_is_being_resolved(
    plane: CanonicalPlane, other: CanonicalPlane, verb: str
) -> None:
    attempt, callback = parked(plane)
    flip(plane)
    statement = psycopg.sql.SQL("SELECT awa.{}(%s)").format(psycopg.sql.Identifier(verb))
    with other.transaction():
        assert other.value(statement, callback)["state"] == LANDED[verb]
        assert move(plane) == (0, 0, False)
    move(plane)
    assert plane.state(attempt.job_id) == LANDED[verb]
    assert left(plane) == []


def test_a_handler_that_begins_to_wait_while_its_job_is_looked_at_keeps_it(
    plane: CanonicalPlane, other: CanonicalPlane
) -> None:
    attempt, callback = parked(plane, inside=True)
    flip(plane)
    assert move(other) == (0, 0, False)
    assert plane.value("SELECT awa.resume_external(%s, '7')", callback)["state"] == "running"
    assert look(plane, attempt, callback) == "resumed"
    assert plane.complete([attempt]) == {attempt.job_id}


def test_a_mover_that_is_killed_has_moved_nothing(plane: CanonicalPlane, other: CanonicalPlane) -> None:
    plane.insert(2)
    parked(plane)
    plane.job(delay=60)
    flip(plane)
    plane.rows("BEGIN")
    assert move(plane) == (4, 0, False)
    other.value("SELECT pg_terminate_backend(%s)", plane.pid)
    with pytest.raises(psycopg.OperationalError):
        plane.rows("COMMIT")
    assert left(other) == [("available", 2), ("scheduled", 1), ("waiting_external", 1)]
    assert move(other) == (4, 0, False)
