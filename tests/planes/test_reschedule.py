"""Reschedule: an attempt of the canonical plane that is to run again lands where new jobs go, whole."""

import datetime as dt
from typing import Any

import psycopg
import pytest
from canonical_plane import CanonicalPlane, flip
from queue_plane import Attempt, Plane, blocked

import awa_actors as awa
from awa_actors.core.reschedule import CancelledDuplicate, Migrated, Rescheduled, Stale
from awa_actors.store.reschedule import reschedule

SNOOZE = {"state": "scheduled", "delay": 3600.0, "uncount": True, "snooze": True}
RETRY = {"state": "retryable", "delay": 3600.0, "error": "it broke"}
KEPT = (
    "id", "kind", "queue", "args", "priority", "max_attempts", "created_at", "metadata", "tags", "errors", "progress",
    "unique_key", "unique_states", "run_lease", "attempted_at", "snoozes", "deadline_ms", "shard",
)  # fmt: skip
KEY = b"the key"


def rich(plane: Plane) -> Attempt:
    """An attempt that has everything a job can have."""
    job_id = plane.job(
        metadata={"a": 1}, tags=["x", "y"], unique_key=KEY.hex(), priority=3, max_attempts=7, deadline=60, queue="rich"
    )
    first = plane.take(job_id, "rich")
    plane.end(first, state="retryable", delay=0.0, error="first")
    plane.promote()
    attempt = plane.take(job_id, "rich")
    assert plane.value(
        "SELECT awa_queue.note(%s, %s, %s, '{\"percent\": 40}', NULL)", job_id, attempt.run_lease, plane.instance
    )
    return attempt


def backlog(plane: Plane) -> int:
    count: int = plane.value("SELECT awa.canonical_live_backlog()")
    return count


@pytest.mark.parametrize("outcome", [SNOOZE, RETRY], ids=["snooze", "retry"])
def test_before_the_flip_it_waits_in_the_canonical_plane(plane: CanonicalPlane, outcome: dict[str, Any]) -> None:
    attempt = rich(plane)
    before = plane.stored(attempt.job_id)
    landed = plane.end(attempt, lslot=attempt.lslot, **outcome)
    assert landed is not None
    assert landed["canonical"]
    after = plane.stored(attempt.job_id)
    errors = [] if outcome is SNOOZE else [plane.stored(attempt.job_id)["errors"][-1]]
    assert {**after, "snoozes": 0} == {
        **before, "state": outcome["state"], "attempt": 1 if outcome is SNOOZE else 2, "run_at": after["run_at"],
        "errors": before["errors"] + errors, "deadline_at": None, "snoozes": 0,
        "past": after["past"],
    }  # fmt: skip
    assert [one["outcome"] for one in after["past"] or ()] == ["snoozed"] * (outcome is SNOOZE)
    assert after["snoozes"] == (outcome is SNOOZE)
    assert plane.holder(KEY) == attempt.job_id
    assert backlog(plane) == 1


def test_the_focused_reschedule_check(plane: CanonicalPlane) -> None:
    attempt = rich(plane)
    before = plane.stored(attempt.job_id)
    flip(plane)
    assert plane.settle({"job_id": attempt.job_id, "run_lease": attempt.run_lease - 1, **SNOOZE}) == {}
    assert plane.settle({"job_id": attempt.job_id, "run_lease": attempt.run_lease + 1, **SNOOZE}) == {}
    assert plane.stored(attempt.job_id) == before
    landed = plane.end(attempt, lslot=attempt.lslot, **SNOOZE)
    assert landed is not None
    assert not landed["canonical"]
    after = plane.stored(attempt.job_id)
    assert {name: after[name] for name in KEPT} == {**{name: before[name] for name in KEPT}, "snoozes": 1}
    assert (after["state"], after["attempt"]) == ("scheduled", before["attempt"] - 1)
    due = plane.value("SELECT run_at - clock_timestamp() FROM awa_queue.deferred_jobs")
    assert dt.timedelta(minutes=59) < due <= dt.timedelta(hours=1)
    assert plane.holder(KEY) == attempt.job_id
    # Nothing has completed, and nothing is left; the same call again, and a late completion, are stale.
    assert backlog(plane) == 0
    assert plane.end(attempt, **SNOOZE) is None
    assert plane.complete([attempt]) == set()
    assert plane.stored(attempt.job_id) == after


def test_a_job_whose_key_went_to_a_newer_one_is_kept_as_evidence(plane: CanonicalPlane) -> None:
    older = plane.keyed(KEY, {"scheduled", "available", "retryable", "failed"})
    attempt = plane.take(older)
    flip(plane)
    newer = plane.keyed(KEY, {"scheduled", "available", "retryable", "failed"})
    landed = plane.end(attempt, **RETRY)
    assert landed is not None
    assert (landed["state"], landed["errors"][-1]["duplicate"]) == ("cancelled", True)
    assert plane.holder(KEY) == newer
    assert plane.state(newer) == "available"
    assert backlog(plane) == 0


def test_an_attempt_with_a_callback_moves_with_it(plane: CanonicalPlane) -> None:
    job_id = plane.job()
    attempt = plane.take(job_id)
    callback = plane.value(
        "SELECT awa_queue.register_callback(%s, %s, %s, 60, NULL)", job_id, attempt.run_lease, plane.instance
    )
    flip(plane)
    assert plane.end(attempt, **SNOOZE)
    assert backlog(plane) == 0
    assert plane.value("SELECT run_lease FROM awa_queue.callbacks WHERE callback_id = %s", callback) == 1
    # The attempt that registered it has ended: as in the queue plane, its callback resolves nothing any more.
    assert plane.value("SELECT awa.resume_external(%s)", callback) is None


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ({"give_back": True}, "available"),
        ({"state": "available", "uncount": True, "interrupted": True}, "available"),
        ({"state": "failed", "error": "no", "terminal": True, "reason": "terminal_error"}, "failed"),
        ({"state": "cancelled", "error": "no", "terminal": True}, "cancelled"),
    ],
)
def test_every_other_end_after_the_flip_leaves_the_plane(
    plane: CanonicalPlane, outcome: dict[str, Any], state: str
) -> None:
    attempt = rich(plane)
    flip(plane)
    assert plane.end(attempt, **outcome)
    assert plane.state(attempt.job_id) == state
    assert backlog(plane) == 0
    if state == "available":
        assert plane.take(attempt.job_id, "rich").run_lease == attempt.run_lease + 1


def test_what_is_given_back_keeps_its_place_in_either_plane(plane: CanonicalPlane) -> None:
    first, second, third = plane.insert(3)
    attempts = plane.claim(2).attempts
    plane.end(attempts[0], give_back=True)
    flip(plane)
    plane.end(attempts[1], give_back=True)
    assert plane.claim(3).ids == [first, third, second]  # the canonical plane first, then the other
    assert plane.value("SELECT pos FROM awa_queue.bodies") == second


def test_a_handler_completes_its_own_attempt_before_and_after_the_flip(plane: CanonicalPlane) -> None:
    for _ in range(2):
        attempt = plane.take(plane.job(metadata={"a": 1}))
        held = (attempt.job_id, attempt.run_lease, plane.instance)
        assert plane.row("SELECT state FROM awa.attempt_state(%s, %s, %s)", *held)["state"] == "live"
        plane.rows("SELECT awa.complete_attempt(%s, %s, %s, '{\"b\": 2}')", *held)
        assert plane.row("SELECT state FROM awa.attempt_state(%s, %s, %s)", *held)["state"] == "completed"
        assert plane.stored(attempt.job_id)["metadata"] == {"a": 1, "b": 2}
        with pytest.raises(psycopg.Error, match="no longer run by this attempt"):
            plane.rows("SELECT awa.complete_attempt(%s, %s, %s)", *held)
        stale = attempt.job_id, attempt.run_lease + 1, plane.instance
        assert plane.row("SELECT state FROM awa.attempt_state(%s, %s, %s)", *stale)["state"] == "stale"
        flip(plane)


def test_a_transaction_that_read_the_state_holds_up_the_flip(
    plane: CanonicalPlane, other: CanonicalPlane, watcher: CanonicalPlane
) -> None:
    attempt = plane.take(plane.job())
    with plane.transaction():
        assert plane.end(attempt, lslot=-1, **SNOOZE)
        waiting = blocked(other, watcher, lambda: flip(other))
    waiting.join()
    assert watcher.value("SELECT count(*) FROM awa.scheduled_jobs") == 1


def test_a_reschedule_beside_the_flip_waits_and_then_lands_in_the_new_plane(
    plane: CanonicalPlane, other: CanonicalPlane, watcher: CanonicalPlane
) -> None:
    attempt = plane.take(plane.job())
    with other.transaction():
        flip(other)
        waiting = blocked(plane, watcher, lambda: plane.end(attempt, **SNOOZE))
    assert waiting.join()
    assert backlog(watcher) == 0
    assert watcher.state(attempt.job_id) == "scheduled"


def test_a_session_that_is_killed_in_a_reschedule_changes_nothing(plane: CanonicalPlane, other: CanonicalPlane) -> None:
    attempt = plane.take(plane.job())
    flip(plane)
    plane.rows("BEGIN")
    assert plane.end(attempt, **SNOOZE)
    other.value("SELECT pg_terminate_backend(%s)", plane.pid)
    with pytest.raises(psycopg.OperationalError):
        plane.rows("COMMIT")
    assert other.state(attempt.job_id) == "running"
    assert backlog(other) == 1
    assert other.rows("SELECT FROM awa_queue.deferred_jobs") == []


async def test_results_are_values(database: str, plane: CanonicalPlane) -> None:
    def entry(attempt: Attempt) -> dict[str, Any]:
        return {"job_id": attempt.job_id, "run_lease": attempt.run_lease, "lslot": attempt.lslot, **RETRY}

    states = {"scheduled", "available", "retryable", "failed"}
    here, away = plane.take(plane.job()), plane.take(plane.job())
    older = plane.take(plane.keyed(KEY, states))
    async with awa.open_client(database) as client, client.pool.acquire() as session:
        results = await reschedule(session, plane.instance, [entry(here)])
        assert isinstance(results[here.job_id], Rescheduled)
        flip(plane)
        plane.keyed(KEY, states)
        results = await reschedule(session, plane.instance, [entry(here), entry(away), entry(older)])
    assert results[here.job_id] == Stale(here.job_id, here.run_lease)
    assert isinstance(results[away.job_id], Migrated)
    assert isinstance(results[older.job_id], CancelledDuplicate)
