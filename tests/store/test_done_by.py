"""Who completed a job: its instance, however the completion came about, for four bytes in what was padding."""

import uuid

import pytest
from queue_plane import Attempt, Plane


def ran(plane: Plane) -> Attempt:
    return plane.take(plane.job())


def by(plane: Plane, attempt: Attempt) -> tuple[str, uuid.UUID | None]:
    stored = plane.stored(attempt.job_id)
    return stored["state"], stored["instance"]


def test_every_way_to_complete_a_job_keeps_its_instance(plane: Plane) -> None:
    me = plane.register()
    plain, own, answered = ran(plane), ran(plane), ran(plane)
    plane.complete([plain])
    plane.rows("SELECT awa.complete_attempt(%s, %s, %s, '{\"noted\": 1}')", own.job_id, own.run_lease, me)
    callback = plane.value("SELECT awa_queue.register_callback(%s, 1, %s, 60, NULL)", answered.job_id, me)
    plane.instance = uuid.uuid4()  # who answers is not who ran it
    plane.register()
    plane.rows("SELECT awa.complete_external(%s, '1')", callback)
    assert [by(plane, attempt) for attempt in (plain, own, answered)] == [("completed", me)] * 3


def test_a_completion_that_looks_again_keeps_the_instance_too(plane: Plane) -> None:
    me = plane.register()
    attempt = ran(plane)
    slot = plane.current("leases")
    plane.turn("leases")
    plane.rows("SELECT awa_queue.carry_leases(%s, 100)", slot)
    plane.complete([attempt])
    assert by(plane, attempt) == ("completed", me)


def test_when_the_row_of_the_instance_has_gone_its_number_is_left(plane: Plane) -> None:
    me = plane.register()
    number = plane.value("SELECT number FROM awa.instances")
    attempt = ran(plane)
    plane.complete([attempt])
    plane.rows("DELETE FROM awa.instances WHERE id = %s", me)
    assert by(plane, attempt) == ("completed", None)
    assert plane.stored(attempt.job_id)["instance_number"] == number


def test_of_two_instances_with_one_number_it_is_the_one_that_was_there(plane: Plane) -> None:
    """A logical copy begins its sequences anew."""
    me = plane.register()
    attempt = ran(plane)
    plane.complete([attempt])
    plane.instance = uuid.uuid4()
    plane.register()
    plane.rows("UPDATE awa.instances SET number = 1")
    assert by(plane, attempt) == ("completed", me)


@pytest.mark.parametrize("result", [None, '{"a": 1}'])
def test_the_number_lies_where_alignment_left_a_gap(plane: Plane, result: str | None) -> None:
    me = plane.register()
    attempt = ran(plane)
    plane.rows(
        "SELECT awa_queue.complete(ARRAY[%s::bigint], ARRAY[1]::bigint[], ARRAY[0]::smallint[], %s, ARRAY[%s]::text[])",
        attempt.job_id, me, result,
    )  # fmt: skip
    with_number = plane.value("SELECT pg_column_size(d.*) FROM awa_queue.done d")
    columns = "slot, attempt, job_id, run_lease, claimed_at, finalized_at, result"
    plane.rows(f"CREATE TEMP TABLE narrower AS SELECT {columns} FROM awa_queue.done")
    assert with_number == plane.value("SELECT pg_column_size(n.*) FROM narrower n")
