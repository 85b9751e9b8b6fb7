"""Complete: the guarded happy end, in batches, whatever maintenance moves meanwhile."""

import uuid

import attrs
from queue_plane import Plane, blocked


def test_completed_jobs_are_history(plane: Plane) -> None:
    ids = plane.insert(5)
    assert plane.complete(plane.claim().attempts) == set(ids)
    assert [plane.state(job_id) for job_id in ids] == ["completed"] * 5
    assert plane.value("SELECT count(*) FROM awa_queue.leases") == 0
    stored = plane.stored(ids[0])
    assert (stored["attempt"], stored["run_lease"], stored["kind"]) == (1, 1, "email")
    assert stored["finalized_at"] >= stored["attempted_at"] >= stored["created_at"]


def test_a_second_completion_of_an_attempt_is_stale(plane: Plane) -> None:
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    assert plane.complete([attempt]) == {job_id}
    assert plane.complete([attempt]) == set()
    assert plane.value("SELECT count(*) FROM awa_queue.done") == 1


def test_an_older_attempt_is_stale(plane: Plane) -> None:
    (job_id,) = plane.insert()
    older = plane.take(job_id)
    plane.retry(older)
    plane.promote()
    newer = plane.take(job_id)
    assert plane.complete([older]) == set()
    assert plane.state(job_id) == "running"
    assert plane.complete([newer]) == {job_id}


def test_the_same_numbers_from_another_instance_are_stale(plane: Plane) -> None:
    """After a failover to an asynchronous replica the same pair of numbers can have been issued twice."""
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    assert plane.complete([attempt], instance=uuid.uuid4()) == set()
    assert plane.complete([attempt]) == {job_id}


def test_stale_members_do_not_spoil_a_batch(plane: Plane) -> None:
    ids = plane.insert(4)
    attempts = plane.claim().attempts
    plane.rows("SELECT awa.cancel_job(%s)", ids[1])
    wrong = attrs.evolve(attempts[2], run_lease=9)
    assert plane.complete([attempts[0], attempts[1], wrong, attempts[3]]) == {ids[0], ids[3]}
    assert plane.state(ids[2]) == "running"


def test_a_lease_that_was_carried_is_found_where_it_is_now(plane: Plane) -> None:
    ids = plane.insert(3)
    attempts = plane.claim().attempts
    slot = plane.current("leases")
    plane.turn("leases")
    assert plane.value("SELECT awa_queue.carry_leases(%s, 100)", slot) == 3
    assert plane.complete(attempts) == set(ids)


def test_a_lease_that_is_being_carried_is_not_taken_for_stale(plane: Plane, other: Plane, watcher: Plane) -> None:
    ids = plane.insert(3)
    attempts = plane.claim().attempts
    slot = plane.current("leases")
    plane.turn("leases")
    with other.transaction():
        assert other.value("SELECT awa_queue.carry_leases(%s, 100)", slot) == 3
        completion = blocked(plane, watcher, lambda: plane.complete(attempts))
    assert completion.join() == set(ids)


def test_one_look_would_take_a_carried_lease_for_stale(plane: Plane, other: Plane, watcher: Plane) -> None:
    """The broken twin of the guard above: a completion that looks once."""
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    slot = plane.current("leases")
    plane.turn("leases")
    with other.transaction():
        other.rows("SELECT awa_queue.carry_leases(%s, 100)", slot)
        once = "DELETE FROM awa_queue.leases WHERE job_id = %s AND run_lease = 1 RETURNING job_id"
        completion = blocked(plane, watcher, lambda: plane.rows(once, job_id))
    assert completion.join() == []
    assert plane.complete([attempt]) == {job_id}


def test_a_completion_while_its_body_is_carried_lands_beside_the_body(
    plane: Plane, other: Plane, watcher: Plane
) -> None:
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    slot = plane.current("segments")
    plane.turn("segments")
    with other.transaction():
        assert other.value("SELECT awa_queue.carry_bodies(%s, 100)", slot) == 1
        completion = blocked(plane, watcher, lambda: plane.complete([attempt]))
    assert completion.join() == {job_id}
    assert plane.state(job_id) == "completed"
    assert plane.truncate("segments", slot) in ("settling", "truncated")


def test_results_go_with_their_jobs(plane: Plane) -> None:
    ids = plane.insert(3)
    attempts = plane.claim().attempts
    plane.rows(
        "SELECT awa_queue.complete(%s::bigint[], ARRAY[1, 1, 1]::bigint[], ARRAY[0, 0, 0]::smallint[], %s, %s::text[])",
        [attempt.job_id for attempt in attempts],
        plane.instance,
        ["1", None, '{"a": 3}'],
    )
    assert [plane.stored(job_id)["result"] for job_id in ids] == [1, None, {"a": 3}]


def test_completing_rewrites_no_body(plane: Plane) -> None:
    """P5: claim, run and completion leave the body where it was written."""
    plane.insert(20)
    before = plane.rows("SELECT ctid::text, xmin::text, tableoid FROM awa_queue.bodies ORDER BY job_id")
    plane.complete(plane.claim().attempts)
    assert plane.rows("SELECT ctid::text, xmin::text, tableoid FROM awa_queue.bodies ORDER BY job_id") == before


def test_metadata_of_a_completing_attempt_becomes_history(plane: Plane) -> None:
    job_id = plane.job(metadata={"a": 1})
    attempt = plane.take(job_id)
    note = "SELECT awa_queue.note_body(%s, %s, %s, '{\"b\": 2}')"
    plane.rows(note, job_id, attempt.run_lease + 1, plane.instance)
    assert plane.stored(job_id)["metadata"] == {"a": 1}
    plane.rows(note, job_id, attempt.run_lease, plane.instance)
    plane.complete([attempt])
    assert plane.stored(job_id)["metadata"] == {"a": 1, "b": 2}
