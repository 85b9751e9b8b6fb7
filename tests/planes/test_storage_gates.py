"""Every gate of the storage transition, and what it says when it is closed."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import psycopg.errors
import pytest
from postgres_servers import Server
from psycopg.types.json import Jsonb
from queue_plane import Plane, blocked, open_plane
from storage_states import enter_mixed, gone, live, start_again, step

import awa_actors as awa

CLOSED = psycopg.errors.ObjectNotInPrerequisiteState
WRONG = psycopg.errors.InvalidParameterValue


@pytest.fixture(scope="module")
def installation(session_server: Server, migrated_template: str) -> Iterator[str]:
    """One database for all of these tests: making one takes longer than most of them."""
    with session_server.fresh_database(migrated_template) as url:
        yield url


@pytest.fixture
def canonical(installation: str) -> Iterator[Plane]:
    """A session of an installation that has not moved yet."""
    with closing(open_plane(installation)) as session:
        start_again(session)
        yield session


@pytest.fixture
def other(canonical: Plane, installation: str) -> Iterator[Plane]:
    with closing(open_plane(installation)) as session:
        yield session


@pytest.fixture
def watcher(canonical: Plane, installation: str) -> Iterator[Plane]:
    with closing(open_plane(installation)) as session:
        yield session


@pytest.fixture
def late(canonical: Plane, installation: str) -> Iterator[Plane]:
    with closing(open_plane(installation)) as session:
        yield session


def status(session: Plane) -> dict[str, object]:
    return session.row("SELECT * FROM awa.storage_status()")


def blockers(session: Plane, name: str) -> list[str]:
    return [row["why"] for row in session.rows("SELECT awa.storage_blockers(%s) AS why", name)]


def test_a_fresh_install_is_active_and_stays_so(database: str) -> None:
    with closing(open_plane(database)) as session:
        assert status(session)["active_engine"] == "queue_storage"
        for name, why in [
            ("enter_mixed_transition", "entered already"),
            ("finalize", "finalized already"),
            ("abort", "final"),
        ]:
            with pytest.raises(CLOSED, match=why):
                step(session, name)
        with pytest.raises(WRONG, match="active already"):
            step(session, "prepare", "queue_storage")
        assert (status(session)["state"], status(session)["transition_epoch"]) == ("active", 0)


def test_the_whole_way(canonical: Plane) -> None:
    seen = [status(canonical)]
    worker = live(canonical)
    for name, values in [("prepare", ["queue_storage"]), ("enter_mixed_transition", []), ("finalize", [])]:
        step(canonical, name, *values)
        seen.append(status(canonical))
    assert [one["state"] for one in seen] == ["canonical", "prepared", "mixed_transition", "active"]
    assert [one["transition_epoch"] for one in seen] == [0, 1, 2, 3]
    assert [one["active_engine"] for one in seen] == ["canonical", "canonical", "queue_storage", "queue_storage"]
    assert [one["prepared_engine"] for one in seen] == [None, "queue_storage", "queue_storage", None]
    assert seen[-1]["current_engine"] == "queue_storage"
    assert seen[-1]["finalized_at"] is not None
    gone(canonical, worker)


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("", "name the engine"),
        (" ", "name the engine"),
        (None, "name the engine"),
        ("queue_strorage", "no storage engine"),
        ("canonical", "active already"),
    ],
)
def test_only_engines_that_exist_are_prepared(canonical: Plane, engine: str | None, why: str) -> None:
    with pytest.raises(WRONG, match=why):
        step(canonical, "prepare", engine)
    assert status(canonical)["state"] == "canonical"


def test_preparing_again_changes_nothing_unless_it_says_something_else(canonical: Plane) -> None:
    for details, epoch in [({}, 1), ({}, 1), ({"ticket": 7}, 2), ({"ticket": 7}, 2)]:
        step(canonical, "prepare", "queue_storage", Jsonb(details))
        assert status(canonical)["transition_epoch"] == epoch
    assert status(canonical)["details"] == {"schema": "awa_queue", "ticket": 7}


def test_details_are_an_object_and_name_the_schema_that_is_there(canonical: Plane) -> None:
    with pytest.raises(WRONG, match="object"):
        step(canonical, "prepare", "queue_storage", Jsonb([1]))
    with pytest.raises(CLOSED, match="in schema awa_queue, not in elsewhere"):
        step(canonical, "prepare", "queue_storage", Jsonb({"schema": "elsewhere"}))


def test_entering_needs_a_prepared_engine(canonical: Plane) -> None:
    live(canonical)
    with pytest.raises(CLOSED, match="the state is canonical: prepare an engine first"):
        step(canonical, "enter_mixed_transition")


def test_entering_needs_a_worker_that_runs_the_queue_plane(canonical: Plane) -> None:
    step(canonical, "prepare", "queue_storage")
    live(canonical, role="maintenance")
    live(canonical, "canonical_drain_only")
    with pytest.raises(CLOSED, match="no live worker runs the queue plane"):
        step(canonical, "enter_mixed_transition")
    live(canonical)
    assert step(canonical, "enter_mixed_transition") == "mixed_transition"


def test_a_worker_that_has_stopped_beating_opens_no_gate(canonical: Plane) -> None:
    step(canonical, "prepare", "queue_storage")
    worker = live(canonical)
    canonical.rows("UPDATE awa.instances SET last_beat_at = last_beat_at - interval '2 hours' WHERE id = %s", worker)
    with pytest.raises(CLOSED, match="no live worker"):
        step(canonical, "enter_mixed_transition")


@pytest.mark.parametrize("capability", ["canonical", None])
def test_a_process_that_knows_only_the_canonical_plane_closes_both_gates(
    canonical: Plane, capability: str | None
) -> None:
    step(canonical, "prepare", "queue_storage")
    live(canonical)
    old = live(canonical, capability)
    with pytest.raises(CLOSED, match=r"know only the canonical plane \(worker .* on here\)"):
        step(canonical, "enter_mixed_transition")
    gone(canonical, old)
    step(canonical, "enter_mixed_transition")
    old = live(canonical, capability)
    with pytest.raises(CLOSED, match="know only the canonical plane"):
        step(canonical, "finalize")
    gone(canonical, old)
    assert step(canonical, "finalize") == "active"


def test_the_queue_plane_must_be_there(canonical: Plane) -> None:
    step(canonical, "prepare", "queue_storage")
    live(canonical)
    with canonical.transaction():
        canonical.rows("ALTER SCHEMA awa_queue RENAME TO hidden")
        with pytest.raises(CLOSED, match="schema awa_queue has no queue plane"), canonical.transaction():
            step(canonical, "enter_mixed_transition")
        canonical.rows("ALTER SCHEMA hidden RENAME TO awa_queue")


def test_all_reasons_are_told_at_once(canonical: Plane) -> None:
    step(canonical, "prepare", "queue_storage")
    live(canonical, "canonical")
    with pytest.raises(CLOSED, match=r"know only the canonical plane.*; no live worker"):
        step(canonical, "enter_mixed_transition")
    assert len(blockers(canonical, "enter_mixed_transition")) == 2


def test_finalizing_needs_the_transition_to_be_entered(canonical: Plane) -> None:
    for state in ("canonical", "prepared"):
        with pytest.raises(CLOSED, match=f"the state is {state}: enter the mixed transition first"):
            step(canonical, "finalize")
        step(canonical, "prepare", "queue_storage")


def test_finalizing_needs_an_empty_canonical_plane_of_which_history_is_no_part(canonical: Plane) -> None:
    ended = canonical.insert(3)
    waiting = canonical.insert(1)
    canonical.job(delay=3600)
    canonical.rows("UPDATE awa.jobs_hot SET state = 'completed', finalized_at = now() WHERE job_id = ANY (%s)", ended)
    enter_mixed(canonical)
    with pytest.raises(CLOSED, match=r"has 2 live jobs \(1 available, 1 scheduled\): wait"):
        step(canonical, "finalize")
    assert canonical.value("SELECT awa.canonical_live_backlog()") == 2
    canonical.rows("DELETE FROM awa.scheduled_jobs")
    canonical.rows("DELETE FROM awa.jobs_hot WHERE job_id = ANY (%s)", waiting)
    assert step(canonical, "finalize") == "active"


def test_aborting_before_jobs_move_costs_nothing(canonical: Plane) -> None:
    assert step(canonical, "abort") == "canonical"
    assert status(canonical)["transition_epoch"] == 0
    step(canonical, "prepare", "queue_storage")
    assert step(canonical, "abort") == "canonical"
    enter_mixed(canonical)
    assert step(canonical, "abort") == "canonical"
    assert (status(canonical)["prepared_engine"], status(canonical)["details"]) == (None, {"schema": "awa_queue"})


def test_aborting_is_refused_when_it_would_strand_jobs(canonical: Plane) -> None:
    enter_mixed(canonical)
    canonical.insert(2)
    canonical.job(delay=3600)
    with pytest.raises(
        CLOSED, match=r"the queue plane holds 3 rows \(2 ready, 1 deferred_jobs\): going back would strand"
    ):
        step(canonical, "abort")
    assert status(canonical)["state"] == "mixed_transition"


def test_aborting_is_refused_while_workers_run_the_queue_plane(canonical: Plane) -> None:
    enter_mixed(canonical)
    worker = live(canonical)
    with pytest.raises(CLOSED, match=r"live workers run the queue plane \(worker .* on here\): stop them"):
        step(canonical, "abort")
    gone(canonical, worker)
    assert step(canonical, "abort") == "canonical"


def test_a_transition_prepared_with_empty_details_checks_the_same_schema_at_every_gate(canonical: Plane) -> None:
    canonical.rows("UPDATE awa.storage_transition_state SET details = '{}'")
    enter_mixed(canonical)
    canonical.rows("UPDATE awa.storage_transition_state SET details = '{}'")
    canonical.insert(2)
    with pytest.raises(CLOSED, match="the queue plane holds 2 rows"):
        step(canonical, "abort")


def test_an_insert_that_is_not_committed_yet_holds_the_flip_up(canonical: Plane, other: Plane) -> None:
    step(canonical, "prepare", "queue_storage")
    live(canonical)
    with other.transaction():
        (job,) = other.insert()
        with pytest.raises(psycopg.errors.LockNotAvailable, match=f"server pid {other.pid}"):
            step(canonical, "enter_mixed_transition")
    assert step(canonical, "enter_mixed_transition") == "mixed_transition"
    assert canonical.row("SELECT job_id FROM awa.jobs_hot")["job_id"] == job


def test_finalizing_waits_for_what_may_still_write_canonical_jobs(
    canonical: Plane, other: Plane, watcher: Plane
) -> None:
    enter_mixed(canonical)
    with other.transaction():
        other.rows("SELECT FROM awa.storage_transition_state FOR SHARE")
        waiting = blocked(canonical, watcher, lambda: step(canonical, "finalize"))
        other.rows(
            "INSERT INTO awa.scheduled_jobs"
            " (job_id, kind, queue, state, args, priority, max_attempts, run_at, created_at)"
            " VALUES (1, 'late', 'default', 'scheduled', '{}', 2, 1, now(), now())"
        )
    with pytest.raises(CLOSED, match="has 1 live jobs"):
        waiting.join()


def test_a_producer_that_comes_while_a_step_waits_stands_behind_it(
    canonical: Plane, other: Plane, watcher: Plane, late: Plane
) -> None:
    step(canonical, "prepare", "queue_storage")
    live(canonical)
    with other.transaction():
        other.insert()
        waiting = blocked(canonical, watcher, lambda: step(canonical, "enter_mixed_transition"))
        behind = blocked(late, watcher, late.insert)
    assert waiting.join() == "mixed_transition"
    (job,) = behind.join()
    assert watcher.rows("SELECT job_id FROM awa_queue.ready WHERE job_id = %s", job)


def test_of_an_abort_and_an_entry_the_second_sees_what_the_first_did(
    canonical: Plane, other: Plane, watcher: Plane
) -> None:
    step(canonical, "prepare", "queue_storage")
    live(canonical)
    with canonical.transaction():
        step(canonical, "abort")
        waiting = blocked(other, watcher, lambda: step(other, "enter_mixed_transition"))
    with pytest.raises(CLOSED, match="the state is canonical"):
        waiting.join()
    step(canonical, "prepare", "queue_storage")
    with canonical.transaction():
        step(canonical, "enter_mixed_transition")
        waiting = blocked(other, watcher, lambda: step(other, "abort"))
    with pytest.raises(CLOSED, match="live workers run the queue plane"):
        waiting.join()
    assert status(canonical)["state"] == "mixed_transition"


def test_of_two_finalizers_one_is_told_that_it_is_done(canonical: Plane, other: Plane, watcher: Plane) -> None:
    enter_mixed(canonical)
    with canonical.transaction():
        step(canonical, "finalize")
        waiting = blocked(other, watcher, lambda: step(other, "finalize"))
    with pytest.raises(CLOSED, match="finalized already"):
        waiting.join()
    assert status(canonical)["transition_epoch"] == 3


def test_an_older_snapshot_is_refused_since_it_would_not_see_what_the_lock_waited_for(canonical: Plane) -> None:
    canonical.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(psycopg.errors.ActiveSqlTransaction, match="read committed"), canonical.transaction():
        step(canonical, "prepare", "queue_storage")


def test_every_change_is_announced(canonical: Plane, other: Plane) -> None:
    other.rows('LISTEN "awa:storage"')
    enter_mixed(canonical)
    canonical.rows("SELECT awa.storage_pause_mover(true)")
    step(canonical, "finalize")
    told = [(one.channel, one.payload) for one in other.connection.notifies(timeout=5, stop_after=4)]
    assert told == [("awa:storage", state) for state in ("prepared", "mixed_transition", "mixed_transition", "active")]


def test_the_row_that_says_where_jobs_are_cannot_get_lost(canonical: Plane) -> None:
    for statement in ("DELETE FROM awa.storage_transition_state", "TRUNCATE awa.storage_transition_state"):
        with pytest.raises(CLOSED, match="never deleted"):
            canonical.rows(statement)


def test_what_the_mover_is_told_survives_preparing_and_ends_with_an_abort(canonical: Plane) -> None:
    canonical.rows("SELECT awa.storage_pause_mover(true), awa.storage_throttle_mover(12.5)")
    step(canonical, "prepare", "queue_storage", Jsonb({"ticket": 7}))
    settings = {"mover_paused": True, "mover_rows_per_second": 12.5}
    assert status(canonical)["details"] == {"schema": "awa_queue", "ticket": 7, **settings}
    canonical.rows("SELECT awa.storage_throttle_mover(NULL)")
    assert "mover_rows_per_second" not in status(canonical)["details"]  # type: ignore[operator]  # a dict
    with pytest.raises(WRONG, match="rows per second"):
        canonical.rows("SELECT awa.storage_throttle_mover(0)")
    step(canonical, "abort")
    assert status(canonical)["details"] == {"schema": "awa_queue"}


async def test_the_library_raises_the_same_refusals(installation: str, canonical: Plane) -> None:
    async with awa.open_client(installation) as client:
        storage = client.admin.storage
        with pytest.raises(awa.StorageGateClosed, match="prepare an engine first"):
            await storage.enter_mixed_transition()
        with pytest.raises(awa.ValidationError, match="no storage engine"):
            await storage.prepare("paper")
        with pytest.raises(awa.ValidationError):
            await storage.throttle_mover(0)
        now = await storage.prepare()
        assert (now.state, now.blockers["abort"]) == ("prepared", ())
        assert now.blockers["enter_mixed_transition"] == (
            "no live worker runs the queue plane: start one of this release",
        )
