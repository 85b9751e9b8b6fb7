"""The move between storage planes, as operators make it."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest
from command_line import awa, clean_environment, one_line, running
from postgres_servers import Server
from queue_plane import Plane, open_plane
from storage_states import enter_mixed, gone, live, start_again, step

DEFERRED = (
    "INSERT INTO awa.scheduled_jobs (job_id, kind, queue, state, args, priority, max_attempts, run_at, created_at)"
    " SELECT nextval('awa.job_id_seq'), 'errand', 'default', 'scheduled', '{}', 2, 1, now() + interval '1 year', now()"
    " FROM generate_series(1, 3)"
)


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


def test_a_fresh_install_says_that_there_is_nothing_to_do(database: str) -> None:
    answer = awa("storage", "status", "--json", url=database)
    assert answer.status == 0
    assert (answer.json["state"], answer.json["canonical_live_backlog"], answer.json["schema"]) == (
        "active",
        0,
        "awa_queue",
    )
    assert set(answer.json) >= {
        *(
            "state",
            "current_engine",
            "active_engine",
            "prepared_engine",
            "epoch",
            "schema",
            "entered_at",
            "finalized_at",
        ),
        *("mover", "backlog", "queue_rows", "capabilities", "blockers", "canonical_live_backlog", "backlog_rate"),
        *("seconds_left", "can_enter_mixed_transition", "can_finalize", "can_abort"),
    }
    assert "awa_queue" in awa("storage", "status", url=database).out
    assert awa("storage", "finalize", "--wait", url=database).status == 0


def test_the_whole_way(installation: str, canonical: Plane) -> None:
    canonical.rows(DEFERRED)
    worker = live(canonical)
    answer = awa("storage", "enter-mixed-transition", url=installation)
    assert answer.status == 1
    one_line(answer.err, "the state is canonical: prepare an engine first")
    answer = awa("storage", "prepare", url=installation)
    assert (answer.status, answer.out) == (0, "queue_storage is prepared; next: storage enter-mixed-transition\n")
    answer = awa("storage", "enter-mixed-transition", url=installation)
    assert (answer.status, answer.out) == (
        0,
        "new jobs go to the queue plane; next: storage finalize --wait (3 jobs to follow)\n",
    )
    shown = awa("storage", "status", url=installation).out
    for part in ("mixed_transition", "3 live jobs", "canonical → queue_storage", "finalize waits", "abort waits"):
        assert part in shown
    for args in (["--check"], []):
        answer = awa("storage", "finalize", *args, url=installation)
        assert answer.status == 1
        one_line(answer.out + answer.err, "the canonical plane has 3 live jobs (3 scheduled)")
    gone(canonical, worker)
    canonical.rows("DELETE FROM awa.scheduled_jobs")
    assert awa("storage", "finalize", "--check", url=installation).out == "nothing is in the way\n"
    answer = awa("storage", "finalize", "--json", url=installation)
    assert (answer.status, answer.json["state"]) == (0, "active")
    answer = awa("storage", "abort", url=installation)
    assert answer.status == 1
    one_line(answer.err, "the queue plane is final")


def test_going_back(installation: str, canonical: Plane) -> None:
    enter_mixed(canonical)
    assert awa("storage", "abort", url=installation).out == "the state is canonical\n"
    assert awa("storage", "abort", "--json", url=installation).json["state"] == "canonical"


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["finalize", "--check", "--wait"], "--check changes nothing"),
        (["finalize", "--wait=soon"], "'soon' is no length of time such as 90s"),
        (["finalize", "--wait=0s"], "no length of time"),
        (["prepare", "--details", "{"], "no JSON"),
        (["prepare", "--details", "[]"], "a JSON object"),
        (["mover", "throttle", "fast"], "'fast' is no number"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(args: list[str], why: str) -> None:
    answer = awa("storage", *args, url="postgresql:///never-asked")
    assert answer.status == 2
    one_line(answer.err, why)


def test_an_engine_that_does_not_exist_is_a_usage_error(installation: str, canonical: Plane) -> None:
    answer = awa("storage", "prepare", "--engine", "queue_strorage", url=installation)
    assert answer.status == 2
    one_line(answer.err, "there is no storage engine queue_strorage: this release has queue_storage")


def test_waiting_ends_with_75_when_its_cap_is_reached(installation: str, canonical: Plane) -> None:
    canonical.rows(DEFERRED)
    enter_mixed(canonical)
    answer = awa("storage", "finalize", "--wait=100ms", url=installation)
    assert answer.status == 75
    one_line(answer.err, "not finalized within 100ms", "has 3 live jobs (3 scheduled)")
    assert "canonical plane: 3 live jobs" in answer.out


def test_waiting_is_refused_where_it_would_be_for_ever(installation: str, canonical: Plane) -> None:
    answer = awa("storage", "finalize", "--wait", url=installation)
    assert answer.status == 1
    one_line(answer.err, "the state is canonical: enter the mixed transition first")


@pytest.mark.slow
def test_waiting_finalizes_after_two_looks_that_find_nothing_in_the_way(installation: str, canonical: Plane) -> None:
    canonical.rows(DEFERRED)
    enter_mixed(canonical)
    old = live(canonical, "canonical")
    with running("storage", "finalize", "--wait=1m", url=installation) as process:
        process.says("canonical plane: 3 live jobs", "live processes know only the canonical plane")
        canonical.rows("DELETE FROM awa.scheduled_jobs")
        process.says("canonical plane: empty", "live processes know only the canonical plane")
        assert step_of(canonical) == "mixed_transition"
        gone(canonical, old)
        assert process.ends() == 0
    assert process.said("the queue plane is active, for good")
    assert step_of(canonical) == "active"


@pytest.mark.slow
def test_a_wait_is_over_when_somebody_else_finalizes(installation: str, canonical: Plane) -> None:
    canonical.rows(DEFERRED)
    enter_mixed(canonical)
    with running("storage", "finalize", "--wait", url=installation) as process:
        process.says("3 live jobs")
        with canonical.transaction():
            canonical.rows("DELETE FROM awa.scheduled_jobs")
            step(canonical, "finalize")
        assert process.ends() == 0


@pytest.mark.slow
def test_a_terminal_shows_a_bar_that_fills(installation: str, canonical: Plane) -> None:
    canonical.rows(DEFERRED)
    enter_mixed(canonical)
    control, terminal = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-m", "awa_actors", "storage", "finalize", "--wait=1m"],
        env=clean_environment(TERM="xterm", COLUMNS="140", DATABASE_URL=installation),
        stdin=subprocess.DEVNULL,
        stdout=terminal,
    )
    os.close(terminal)
    shown = b""
    with command, open(control, "rb", buffering=0) as screen:
        try:
            while part := screen.read(65_536):
                shown += part
                if b"3 live jobs" in shown:
                    canonical.rows("DELETE FROM awa.scheduled_jobs")
        except OSError:  # how a terminal says that nobody writes to it any more
            pass
    assert command.returncode == 0
    for part in ("canonical plane", "━", "empty", "the queue plane is active, for good"):
        assert part.encode() in shown


def step_of(session: Plane) -> object:
    return session.value("SELECT state FROM awa.storage_transition_state")


def test_the_mover_is_paused_throttled_and_let_go(installation: str, canonical: Plane) -> None:
    enter_mixed(canonical)
    assert awa("storage", "mover", "pause", url=installation).out == "the mover is paused\n"
    assert awa("storage", "mover", "throttle", "250", url=installation).out == "the mover takes at most 250 rows/s\n"
    assert "paused, at most 250 rows/s" in awa("storage", "status", url=installation).out
    assert awa("storage", "status", "--json", url=installation).json["mover"] == {
        "paused": True,
        "rows_per_second": 250,
    }
    awa("storage", "mover", "throttle", "off", url=installation)
    answer = awa("storage", "mover", "resume", "--json", url=installation)
    assert answer.json["mover"] == {"paused": False, "rows_per_second": None}
    answer = awa("storage", "mover", "throttle", "0", url=installation)
    assert answer.status == 2


def test_a_schema_is_given_once(installation: str, canonical: Plane) -> None:
    answer = awa("storage", "prepare-queue-storage-schema", url=installation)
    assert answer.out == "the queue plane was already in schema awa_queue\n"
    answer = awa("storage", "prepare-queue-storage-schema", "--schema", "moving", url=installation)
    assert answer.out == "the queue plane is now in schema moving\n"
    answer = awa("storage", "prepare-queue-storage-schema", "--schema", "elsewhere", url=installation)
    assert answer.status == 1
    one_line(answer.err, "has been given schema moving already")
    assert awa("storage", "status", "--json", url=installation).json["schema"] == "moving"
