"""What a job keeps of attempts that ended without an error: bounded, and apart from what retries and handlers go by."""

from typing import Any

import pytest
from psycopg.types.json import Jsonb
from queue_plane import Attempt, Plane


def past(plane: Plane, job_id: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] | None = plane.stored(job_id)["past"]
    return found or []


def told(plane: Plane, job_id: int) -> list[tuple[str, int, int]]:
    return [(one["outcome"], one["attempt"], one.get("count", 1)) for one in past(plane, job_id)]


def snooze(plane: Plane, job_id: int) -> Attempt:
    attempt = plane.take(job_id)
    plane.end(attempt, state="scheduled", delay=0, uncount=True, snooze=True)
    plane.promote()
    return attempt


def interrupt(plane: Plane, job_id: int) -> Attempt:
    attempt = plane.take(job_id)
    plane.end(attempt, state="available", uncount=True, interrupted=True)
    return attempt


def parked(plane: Plane, job_id: int) -> str:
    attempt = plane.take(job_id)
    me = plane.instance
    callback = str(
        plane.value("SELECT awa_queue.register_callback(%s, %s, %s, 60, NULL)", job_id, attempt.run_lease, me)
    )
    entry = {"job_id": job_id, "run_lease": attempt.run_lease, "callback_id": callback}
    assert plane.value("SELECT outcome FROM awa_queue.park(%s, %s)", me, Jsonb([entry])) == "parked"
    return callback


def test_snoozes_one_after_the_other_are_one_entry(plane: Plane) -> None:
    me, job_id = plane.register(), plane.job()
    snooze(plane, job_id)
    (first,) = past(plane, job_id)
    assert (first["outcome"], first["attempt"], first["instance"]) == ("snoozed", 1, str(me))
    assert first["started_at"] < first["at"]
    snooze(plane, job_id)
    snooze(plane, job_id)
    (all_three,) = past(plane, job_id)
    assert (all_three["count"], all_three["started_at"]) == (3, first["started_at"])
    assert all_three["first_at"] == first["at"] < all_three["at"]
    plane.complete([plane.take(job_id)])
    assert past(plane, job_id) == [all_three]


def test_what_comes_between_begins_another_entry(plane: Plane) -> None:
    plane.register()
    job_id = plane.job()
    snooze(plane, job_id)
    interrupt(plane, job_id)
    snooze(plane, job_id)
    plane.retry(plane.take(job_id))
    plane.promote()
    snooze(plane, job_id)
    assert told(plane, job_id) == [("snoozed", 1, 1), ("interrupted", 1, 1), ("snoozed", 1, 1), ("snoozed", 2, 1)]
    assert [error["error"] for error in plane.stored(job_id)["errors"]] == ["it broke"]


def test_an_attempt_that_was_taken_away_ends_an_entry_too(plane: Plane) -> None:
    plane.register()
    job_id = plane.job()
    snooze(plane, job_id)
    plane.take(job_id)
    plane.die()
    plane.rescue_stale()
    plane.promote()
    plane.rows("UPDATE awa.instances SET dead_at = NULL")
    snooze(plane, job_id)
    assert told(plane, job_id) == [("snoozed", 1, 1), ("snoozed", 1, 1)]


def test_an_interruption_that_left_an_error_is_told_once(plane: Plane) -> None:
    job_id = plane.job()
    plane.end(plane.take(job_id), state="available", uncount=True, interrupted=True, error="stopped")
    stored = plane.stored(job_id)
    assert [error["outcome"] for error in stored["errors"]] == ["interrupted"]
    assert stored["past"] is None


@pytest.mark.slow
def test_the_past_is_bounded_and_its_beginning_stays(plane: Plane) -> None:
    job_id = plane.job()
    for _ in range(52):
        snooze(plane, job_id)
        interrupt(plane, job_id)
    leases = [one["run_lease"] for one in past(plane, job_id)]
    assert leases == [*range(1, 11), *range(15, 105)]


def test_what_never_began_leaves_no_entry(plane: Plane) -> None:
    job_id = plane.job()
    plane.end(plane.take(job_id), give_back=True)
    assert past(plane, job_id) == []


def test_a_parked_attempt_that_goes_on_is_told_with_its_end(plane: Plane) -> None:
    me, job_id = plane.register(), plane.job()
    callback = parked(plane, job_id)
    plane.rows("SELECT awa.resume_external(%s, '1')", callback)
    (entry,) = past(plane, job_id)
    assert (entry["outcome"], entry["attempt"], entry["instance"]) == ("resumed", 1, str(me))
    assert entry["started_at"] < entry["at"]


@pytest.mark.parametrize("by", ["its callback", "an operator"])
def test_a_parked_attempt_that_begins_anew_is_told_with_who_wanted_it(plane: Plane, by: str) -> None:
    job_id = plane.job()
    callback = parked(plane, job_id)
    if by == "its callback":
        plane.rows("SELECT awa.retry_external(%s)", callback)
    else:
        plane.rows("SELECT awa.retry_job(%s)", job_id)
    assert [(one["outcome"], one["reason"]) for one in past(plane, job_id)] == [("retried", f"by {by}")]


@pytest.mark.parametrize("state", ["running", "parked", "available", "scheduled"])
def test_a_cancellation_names_the_attempt_that_it_ended(plane: Plane, state: str) -> None:
    me, job_id = plane.register(), plane.job()
    snooze(plane, job_id)
    if state == "running":
        plane.take(job_id)
    elif state == "parked":
        parked(plane, job_id)
    elif state == "scheduled":
        plane.end(plane.take(job_id), state="scheduled", delay=60, uncount=True, snooze=True)
    plane.rows("SELECT awa.cancel_job(%s)", job_id)
    (end,) = plane.stored(job_id)["errors"]
    assert end.get("instance") == (str(me) if state in ("running", "parked") else None)
    assert ("started_at" in end) is (state in ("running", "parked"))
    assert told(plane, job_id) == [("snoozed", 1, 2 if state == "scheduled" else 1)]


def test_the_past_goes_wherever_its_job_goes(plane: Plane) -> None:
    plane.rows("INSERT INTO awa.queues (queue, dlq_enabled) VALUES ('default', true)")
    job_id = plane.job()
    interrupt(plane, job_id)
    before = past(plane, job_id)
    plane.retry(plane.take(job_id))
    plane.promote()
    plane.fail(plane.take(job_id))
    assert plane.value("SELECT past FROM awa_queue.dlq_entries") == before
    plane.rows("SELECT awa_queue.retry_ended(%s, true, 'other', NULL, NULL)", job_id)
    assert past(plane, job_id) == before
    plane.fail(plane.take(job_id, "other"))
    assert past(plane, job_id) == before
    plane.rows("SELECT awa.retry_job(%s)", job_id)
    assert past(plane, job_id) == before


def test_a_carried_body_keeps_its_past(plane: Plane) -> None:
    job_id = plane.job()
    interrupt(plane, job_id)
    before = past(plane, job_id)
    slot = plane.current("segments")
    plane.turn("segments")
    assert plane.value("SELECT awa_queue.carry_bodies(%s, 100)", slot) == 1
    assert past(plane, job_id) == before


def test_a_job_without_a_past_is_as_narrow_as_ever(plane: Plane) -> None:
    job_id = plane.job()
    plane.retry(plane.take(job_id))
    plane.promote()
    assert plane.value("SELECT past IS NULL FROM awa_queue.bodies") is True
