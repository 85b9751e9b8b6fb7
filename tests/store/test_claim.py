"""Claim: which rows, in which order, how many, and for whom."""

import json
from collections.abc import Callable

import psycopg
import pytest
from queue_plane import ROOM, Plane, blocked


def test_a_claim_takes_jobs_in_the_order_they_were_inserted(plane: Plane) -> None:
    ids = plane.insert(5)
    assert plane.claim(3).ids == ids[:3]
    assert plane.claim(3).ids == ids[3:]
    assert plane.claim(3).ids == []


def test_order_holds_across_turns_of_the_ring(plane: Plane) -> None:
    ids = []
    for _ in range(4):
        ids += plane.insert(3)
        plane.turn("ready")
        plane.turn("segments")
    assert plane.claim(100).ids == ids


def test_a_claim_makes_attempts(plane: Plane) -> None:
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    assert (attempt.attempt, attempt.run_lease) == (1, 1)
    stored = plane.stored(job_id)
    assert (stored["state"], stored["attempt"], stored["run_lease"]) == ("running", 1, 1)
    assert stored["instance"] == plane.instance


def test_the_more_urgent_priority_goes_first(plane: Plane) -> None:
    by_priority = {priority: plane.insert(2, priority=priority) for priority in (4, 2, 1, 3)}
    assert plane.claim(100).ids == [*by_priority[1], *by_priority[2], *by_priority[3], *by_priority[4]]


def test_a_batch_that_one_priority_cannot_fill_goes_on_with_the_next(plane: Plane) -> None:
    urgent, usual = plane.insert(2, priority=1), plane.insert(5, priority=2)
    assert plane.claim(4).ids == [*urgent, *usual[:2]]


def test_waiting_makes_a_job_more_urgent(plane: Plane) -> None:
    (old,) = plane.insert(priority=4)
    plane.rows("UPDATE awa_queue.ready SET ready_at = ready_at - interval '200 seconds'")
    (new,) = plane.insert(priority=2)
    assert plane.claim(1, aging=60.0).ids == [old]
    assert plane.claim(1, aging=60.0).ids == [new]


def test_without_ageing_waiting_does_not_matter(plane: Plane) -> None:
    plane.insert(priority=4)
    plane.rows("UPDATE awa_queue.ready SET ready_at = ready_at - interval '1 year'")
    (new,) = plane.insert(priority=2)
    assert plane.claim(1, aging=0.0).ids == [new]


def test_jobs_with_one_ordering_key_keep_their_order_in_a_sharded_queue(plane: Plane) -> None:
    plane.rows("INSERT INTO awa.queues (queue, shards) VALUES ('default', 8)")
    keyed = {key: [plane.job(ordering_key=key) for _ in range(3)] for key in ("a", "b", "c")}
    shards = plane.rows("SELECT job_id, shard FROM awa_queue.ready")
    by_job = {row["job_id"]: row["shard"] for row in shards}
    claimed = plane.claim(100).ids
    for ids in keyed.values():
        assert len({by_job[job_id] for job_id in ids}) == 1
        assert [job_id for job_id in claimed if job_id in ids] == ids
    assert len(claimed) == 9


def test_jobs_without_an_ordering_key_are_claimed_from_every_shard(plane: Plane, sessions: Callable[[], Plane]) -> None:
    plane.rows("INSERT INTO awa.queues (queue, shards) VALUES ('default', 3)")
    inserted = [job_id for _ in range(6) for job_id in sessions().insert(2)]
    assert plane.value("SELECT count(DISTINCT shard) FROM awa_queue.ready") > 1
    assert sorted(plane.claim(100).ids) == sorted(inserted)


def test_fewer_shards_strand_nobody(plane: Plane) -> None:
    plane.rows("INSERT INTO awa.queues (queue, shards) VALUES ('default', 8)")
    inserted = [plane.job(ordering_key=f"key {n}") for n in range(40)]
    plane.rows("UPDATE awa.queues SET shards = 1")
    claimed: list[int] = []
    while got := plane.claim(7).ids:
        claimed += got
    assert sorted(claimed) == sorted(inserted)


def test_a_claim_ends_where_its_bytes_are_reached(plane: Plane) -> None:
    args = json.dumps({"a": "x" * 990})
    ids = plane.insert(10, args=args)
    assert plane.claim(10, max_bytes=2500).ids == ids[:3]


def test_one_job_is_taken_however_large(plane: Plane) -> None:
    ids = plane.insert(3, args=json.dumps({"a": "x" * 5000}))
    assert plane.claim(10, max_bytes=10).ids == ids[:1]


def test_what_counts_is_what_is_sent_not_how_well_it_compresses(plane: Plane) -> None:
    args = json.dumps({"a": "x" * 100_000})
    ids = plane.insert(10, args=args)
    stored = "SELECT max(pg_column_size(args)) FROM awa_queue.bodies"
    assert plane.value(stored) < 10_000
    assert plane.claim(10, max_bytes=350_000).ids == ids[:4]


def test_metadata_and_errors_count_too(plane: Plane) -> None:
    ids = [plane.job(metadata={"note": "x" * 990}) for _ in range(10)]
    assert plane.claim(10, max_bytes=2500).ids == ids[:3]


def test_the_bytes_of_one_large_job_do_not_shorten_a_claim_of_small_ones(plane: Plane) -> None:
    ids = [*plane.insert(1, args=json.dumps({"a": "x" * 5000})), *plane.insert(200)]
    assert plane.claim(201, max_bytes=10_000).ids == ids


def test_bytes_are_one_bound_for_all_priorities(plane: Plane) -> None:
    args = json.dumps({"a": "x" * 990})
    urgent, usual = plane.insert(2, priority=1, args=args), plane.insert(5, priority=2, args=args)
    assert plane.claim(10, max_bytes=2500).ids == [*urgent, *usual[:1]]


def test_a_paused_queue_gives_nothing(plane: Plane) -> None:
    ids = plane.insert(2)
    plane.rows("INSERT INTO awa.queues (queue, paused) VALUES ('default', true)")
    assert plane.claim().ids == []
    plane.rows("UPDATE awa.queues SET paused_until = clock_timestamp() + interval '1 hour'")
    assert plane.claim().ids == []
    plane.rows("UPDATE awa.queues SET paused_until = clock_timestamp() - interval '1 second'")
    assert plane.claim().ids == ids


def test_queues_do_not_mix(plane: Plane) -> None:
    here, there = plane.insert(2, queue="here"), plane.insert(2, queue="there")
    assert plane.claim(queue="there").ids == there
    assert plane.claim(queue="here").ids == here


@pytest.mark.parametrize("priority", [1, 2, 3, 4])
def test_a_hint_is_for_the_lane_in_which_work_was_found(plane: Plane, priority: int) -> None:
    ids = plane.insert(4, priority=priority)
    hints = plane.claim(2).hints
    assert len(hints) == 4
    assert [place for place, position in enumerate(hints, 1) if position] == [priority]
    assert plane.claim(2, hints=hints).ids == ids[2:]


def test_hints_of_a_sharded_queue_have_a_place_for_every_lane(plane: Plane) -> None:
    plane.rows("INSERT INTO awa.queues (queue, shards) VALUES ('default', 5)")
    ids = [plane.job(ordering_key=f"key {n}", priority=1 + n % 4) for n in range(40)]
    got = plane.claim(20)
    assert len(got.hints) == 20
    assert sorted([*got.ids, *plane.claim(20, hints=got.hints).ids]) == sorted(ids)


def test_a_wrong_hint_costs_time_and_never_jobs(plane: Plane) -> None:
    ids = plane.insert(3)
    beyond = [ids[-1] + 1000] * 4
    assert plane.claim(hints=beyond).ids == []
    assert plane.claim(hints=[0, ids[1]]).ids == ids[1:]
    assert plane.claim(hints=[5, 0, 5, 5, 5, 5, 5]).ids == ids[:1]


def test_the_deadline_of_a_claim_needs_no_settings_of_the_queue(plane: Plane) -> None:
    plane.insert()
    (attempt,) = plane.claim(deadline_ms=60_000).attempts
    left = "SELECT extract(epoch FROM deadline_at - clock_timestamp())::float8 FROM awa.jobs WHERE id = %s"
    assert 50 < plane.value(left, attempt.job_id) <= 60


def test_the_deadline_is_the_jobs_then_the_overrides_then_the_claims(plane: Plane) -> None:
    own = plane.job(deadline=5)
    (usual,) = plane.insert()
    plane.rows("INSERT INTO awa.queues (queue, override_deadline_ms) VALUES ('default', 30000)")
    plane.claim(deadline_ms=60_000)
    spans = {
        row["id"]: row["span"]
        for row in plane.rows("SELECT id, extract(epoch FROM deadline_at - attempted_at)::float8 AS span FROM awa.jobs")
    }
    assert spans == {own: 5.0, usual: 30.0}


def test_an_override_of_zero_takes_the_deadline_off(plane: Plane) -> None:
    plane.insert()
    plane.rows("INSERT INTO awa.queues (queue, override_deadline_ms) VALUES ('default', 0)")
    (attempt,) = plane.claim(deadline_ms=60_000).attempts
    assert attempt.deadline_at is None


def test_a_dead_instance_is_given_nothing(plane: Plane, other: Plane) -> None:
    (job_id,) = plane.insert()
    plane.register()
    plane.die()
    assert plane.claim().ids == []
    assert other.claim().ids == [job_id]


def test_a_job_is_there_when_its_producer_commits(plane: Plane, other: Plane) -> None:
    with other.transaction():
        (job_id,) = other.insert()
        assert plane.claim().ids == []
    assert plane.claim().ids == [job_id]


def test_a_job_of_a_rolled_back_producer_never_was(plane: Plane, other: Plane) -> None:
    other.rows("BEGIN")
    other.insert(5)
    other.rows("ROLLBACK")
    assert plane.claim().ids == []
    assert plane.value("SELECT count(*) FROM awa.jobs") == 0


def test_a_producer_that_stays_open_holds_up_neither_producers_nor_claimers(
    plane: Plane, other: Plane, watcher: Plane
) -> None:
    with other.transaction():
        early = other.insert(2)
        late = watcher.insert(2)
        assert plane.claim().ids == late
    assert plane.claim().ids == early


def test_a_row_that_another_claimer_has_in_hand_is_passed_over(plane: Plane, other: Plane) -> None:
    ids = plane.insert(4)
    with other.transaction():
        other.rows("SELECT FROM awa_queue.ready WHERE job_id = ANY (%s) FOR UPDATE", ids[:2])
        assert plane.claim().ids == ids[2:]
    assert plane.claim().ids == ids[:2]


def test_a_handler_sees_its_metadata_as_it_was_given(plane: Plane) -> None:
    metadata = {"a": None, "b": [None, {"c": None}], "d": 1}
    job_id = plane.job(metadata=metadata)
    assert json.loads(plane.take(job_id).extras or "")["metadata"] == metadata


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_claim_is_read_committed_whatever_the_session_says(plane: Plane, isolation: str) -> None:
    ids = plane.insert(3)
    plane.rows("SELECT set_config('default_transaction_isolation', %s, false)", isolation)
    assert plane.claim().ids == ids


def test_a_claim_inside_a_transaction_is_refused(plane: Plane) -> None:
    plane.insert()
    with pytest.raises(psycopg.errors.InvalidTransactionTermination), plane.transaction():
        plane.claim()
    assert plane.value("SELECT count(*) FROM awa_queue.ready") == 1


def test_a_moment_of_the_server_is_not_the_fault_of_a_job(plane: Plane, other: Plane, watcher: Plane) -> None:
    (job_id,) = plane.insert()
    plane.rows("SET lock_timeout = '200ms'")
    with other.transaction():
        forge_lease(other, job_id)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            blocked(plane, watcher, plane.claim).join()
        other.rows("DELETE FROM awa_queue.leases")
    assert plane.state(job_id) == "available"
    assert plane.claim().ids == [job_id]


def test_an_attempt_number_stops_at_its_maximum(plane: Plane) -> None:
    (job_id,) = plane.insert()
    plane.rows("UPDATE awa_queue.ready SET attempt = 32767")
    assert plane.take(job_id).attempt == 32767


def test_a_job_whose_lease_number_is_used_up_fails_alone(plane: Plane) -> None:
    ids = plane.insert(5)
    plane.rows("UPDATE awa_queue.ready SET run_lease = 9223372036854775807 WHERE job_id = %s", ids[2])
    assert plane.claim().ids == [*ids[:2], *ids[3:]]
    stored = plane.stored(ids[2])
    assert stored["state"] == "failed"
    assert stored["errors"][-1]["error"] == "could not be claimed: bigint out of range"
    assert stored["errors"][-1]["terminal"] is True


def test_a_ready_row_without_a_body_fails_alone(plane: Plane) -> None:
    ids = plane.insert(5)
    plane.rows("DELETE FROM awa_queue.bodies WHERE job_id = %s", ids[0])
    assert plane.claim().ids == ids[1:]
    stored = plane.stored(ids[0])
    assert (stored["state"], stored["kind"], stored["queue"]) == ("failed", "unknown", "default")


def test_a_ready_row_of_a_job_that_runs_is_dropped_and_its_attempt_says_so(plane: Plane) -> None:
    ids = plane.insert(3)
    forge_lease(plane, ids[1])
    assert plane.claim().ids == [ids[0], ids[2]]
    stored = plane.stored(ids[1])
    assert (stored["state"], stored["run_lease"]) == ("running", 7)
    assert "could not be claimed" in stored["errors"][0]["error"]
    assert plane.value("SELECT count(*) FROM awa_queue.ready") == 0


def test_poison_in_one_priority_does_not_stop_another(plane: Plane) -> None:
    urgent, usual = plane.insert(3, priority=1), plane.insert(3, priority=2)
    plane.rows("UPDATE awa_queue.ready SET run_lease = 9223372036854775807 WHERE job_id = %s", usual[0])
    assert [*plane.claim(5).ids, *plane.claim(5).ids] == [*urgent, *usual[1:]]


@pytest.mark.parametrize("count", [1, 2])
def test_one_that_cannot_be_claimed_fails_alone_however_few_are_asked_for(plane: Plane, count: int) -> None:
    ids = plane.insert(count)
    plane.rows("DELETE FROM awa_queue.bodies WHERE job_id = %s", ids[0])
    assert [*plane.claim(1).ids, *plane.claim(1).ids] == ids[1:]
    assert plane.state(ids[0]) == "failed"


def test_a_claim_of_one_passes_over_a_job_that_another_session_holds(plane: Plane, other: Plane) -> None:
    ids = plane.insert(3)
    plane.rows("SET lock_timeout = '5s'")
    with other.transaction():
        other.rows("SELECT FROM awa_queue.ready WHERE job_id = %s FOR UPDATE", ids[0])
        assert plane.claim(1).ids == [ids[1]]
        assert plane.claim().ids == [ids[2]]
        assert plane.claim().ids == []
    assert plane.claim().ids == [ids[0]]


def test_lone_jobs_of_all_lanes_come_with_one_claim_in_their_order(plane: Plane) -> None:
    ids = [plane.insert(priority=priority)[0] for priority in (3, 1, 4, 2)]
    claim = plane.claim()
    assert claim.ids == [ids[1], ids[3], ids[0], ids[2]]
    assert claim.hints == [ids[1], ids[3], ids[0], ids[2]]


@pytest.mark.parametrize("order", [(40_000, 5), (5, 40_000)])
def test_large_and_small_args_in_one_claim_stay_with_their_jobs(plane: Plane, order: tuple[int, int]) -> None:
    sizes = {
        job_id: size
        for priority, size in enumerate(order, 1)
        for n in range(3)
        for job_id in plane.insert(args=json.dumps({"n": "x" * (size + n)}), priority=priority)
    }
    attempts = plane.claim().attempts
    assert [attempt.job_id for attempt in attempts] == list(sizes)
    assert [len(json.loads(attempt.args)["n"]) for attempt in attempts] == [
        size + n for size in order for n in range(3)
    ]


def test_many_poison_rows_are_all_recorded(plane: Plane) -> None:
    ids = plane.insert(100)
    plane.rows("UPDATE awa_queue.ready SET run_lease = 9223372036854775807 WHERE job_id = ANY (%s)", ids[:90])
    claimed: list[int] = []
    while plane.value("SELECT count(*) FROM awa_queue.ready"):
        claimed += plane.claim().ids
    assert sorted(claimed) == ids[90:]
    assert plane.value("SELECT count(*) FROM awa_queue.terminal WHERE state = 'failed'") == 90


def test_a_claim_for_nobody_takes_nothing(plane: Plane) -> None:
    plane.insert()
    assert plane.claim(0, max_bytes=ROOM).ids == []


def forge_lease(plane: Plane, job_id: int) -> None:
    """Give a job a live attempt beside its ready row."""
    plane.rows(
        "INSERT INTO awa_queue.leases (lslot, slot, attempt, frees_claim, job_id, run_lease, instance, claimed_at)"
        " SELECT awa_queue.current_slot('leases'), slot, 3, false, job_id, 7, gen_random_uuid(), clock_timestamp()"
        " FROM awa_queue.bodies WHERE job_id = %s",
        job_id,
    )
