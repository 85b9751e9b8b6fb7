"""What two do to one callback at once is what they would do in turn, and at most one of them resolves it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from callback_jobs import CallbackJob, found, registered, value
from postgres_servers import Server

Connection = psycopg.Connection[Any]

RESOLVING: dict[str, LiteralString] = {
    "complete": """SELECT awa.complete_external(%(callback)s, '{"n": 1}') ->> 'state'""",
    "fail": "SELECT awa.fail_external(%(callback)s, 'no') ->> 'state'",
    "resume": """SELECT awa.resume_external(%(callback)s, '{"n": 2}') ->> 'state'""",
    "retry": "SELECT awa.retry_external(%(callback)s) ->> 'state'",
}
ACTIONS: dict[str, LiteralString] = {
    **RESOLVING,
    "heartbeat": "SELECT awa.heartbeat_callback(%(callback)s, 7200) ->> 'state'",
    "timeout rescue": """
        SELECT r ->> 'state' FROM awa_queue.rescue_callbacks(100, 5) r WHERE r ->> 'job_id' = %(job)s::text""",
    "stale rescue": """
        SELECT r ->> 'state' FROM (
            SELECT awa_queue.rescue_stale(100, 5) AS r UNION ALL SELECT awa_queue.rescue_callbacks(100, 5)) x
        WHERE r ->> 'job_id' = %(job)s::text""",
    "cancel": "SELECT awa.cancel_job(%(job)s) ->> 'state'",
}
SWEEPS = {"timeout rescue", "stale rescue"}
"""These skip what somebody else has locked; their next pass sees what became of it."""

READY: dict[str, LiteralString] = {
    "timeout rescue": """
        UPDATE awa_queue.callbacks SET timeout_at = now() - interval '1 s' WHERE callback_id = %(callback)s""",
    "stale rescue": "UPDATE awa.instances SET dead_at = now() WHERE id = %(instance)s",
}
"""What must have happened before a sweep has anything to do."""

HANDLER: dict[str, LiteralString] = {
    "park": """
        SELECT outcome FROM awa_queue.park(%(instance)s, jsonb_build_array(jsonb_build_object(
            'job_id', %(job)s::bigint, 'run_lease', %(lease)s::bigint, 'callback_id', %(callback)s::text)))""",
    "look": "SELECT status FROM awa_queue.await_callback(%(callback)s, %(job)s, %(lease)s, %(instance)s, NULL)",
    "take back": "SELECT awa_queue.cancel_callback(%(callback)s, %(job)s, %(lease)s, %(instance)s)::text",
    "register anew": "SELECT (awa_queue.register_callback(%(job)s, %(lease)s, %(instance)s, 60, NULL) IS NULL)::text",
}
"""What the handler of a running attempt may do meanwhile."""

PAIRS = list(itertools.product(ACTIONS, ACTIONS))
HANDLED = [pair for one, other in itertools.product(HANDLER, ACTIONS) for pair in ((one, other), (other, one))]


@pytest.fixture(scope="module")
def shared(session_server: Server, migrated_template: str) -> Iterator[str]:
    with session_server.fresh_database(migrated_template) as url:
        yield url


@pytest.fixture(scope="module")
def first(shared: str) -> Iterator[Connection]:
    with psycopg.connect(shared, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def second(shared: str) -> Iterator[Connection]:
    with psycopg.connect(shared, autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="module")
def watcher(shared: str) -> Iterator[Connection]:
    with psycopg.connect(shared, autocommit=True) as connection:
        yield connection


def named(job: CallbackJob) -> dict[str, object]:
    return {"callback": job.callback_id, "job": job.job_id, "lease": job.run_lease, "instance": job.instance}


def prepared(connection: Connection, state: str, *actions: str) -> CallbackJob:
    job = registered(connection, state)
    for action in actions:
        if action in READY:
            connection.execute(READY[action], named(job))
    return job


def act(connection: Connection, action: str, job: CallbackJob) -> str | None:
    try:
        row = connection.execute({**ACTIONS, **HANDLER}[action], named(job)).fetchone()
    except psycopg.errors.ObjectInUse:
        return "not yet"
    return None if row is None else row[0]


def summary(connection: Connection, job: CallbackJob) -> dict[str, Any]:
    row = found(connection, job.job_id)
    open_callbacks = value(
        connection, "SELECT count(*) FROM awa_queue.callbacks WHERE callback_id = %s AND NOT resumed", job.callback_id
    )
    kept = {key: row[key] for key in ("state", "attempt", "rescues", "result", "metadata", "run_lease")}
    return {**kept, "errors": len(row["errors"] or ()), "open": open_callbacks}


def start_blocked(connection: Connection, watcher: Connection, action: str, job: CallbackJob) -> Any:
    """Run an action in a thread, up to its end or to a lock that it waits for; gives what fetches its answer."""
    answers: list[str | None] = []
    thread = threading.Thread(target=lambda: answers.append(act(connection, action, job)))
    thread.start()
    while thread.is_alive() and not value(
        watcher, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", connection.info.backend_pid
    ):
        thread.join(0.001)

    def answer() -> str | None:
        thread.join()
        return answers[0]

    return answer


def assert_the_same_as_in_turn(
    first: Connection, second: Connection, watcher: Connection, state: str, one: str, other: str
) -> None:
    in_turn = prepared(first, state, one, other)
    expected = act(first, one, in_turn), act(first, other, in_turn)
    after = summary(first, in_turn)

    job = prepared(first, state, one, other)
    first.execute("BEGIN")
    answer = act(first, one, job)
    if answer == "not yet":
        first.execute("ROLLBACK; BEGIN")
    later = start_blocked(second, watcher, other, job)
    first.execute("COMMIT")
    answers = answer, later()
    if other in SWEEPS and answers[1] is None:
        answers = answer, act(second, other, job)
    assert answers == expected
    assert summary(first, job) == after
    if one in RESOLVING and answer not in (None, "not yet"):
        assert other not in RESOLVING or answers[1] is None, "both resolved it"


@pytest.mark.slow
@pytest.mark.parametrize("state", ["parked", "inside", "running"])
@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[" x ".join(pair) for pair in PAIRS])
def test_two_at_once_do_what_they_would_do_in_turn(
    first: Connection, second: Connection, watcher: Connection, state: str, one: str, other: str
) -> None:
    assert_the_same_as_in_turn(first, second, watcher, state, one, other)


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), HANDLED, ids=[" x ".join(pair) for pair in HANDLED])
def test_the_handler_and_the_outside_at_once_do_what_they_would_do_in_turn(
    first: Connection, second: Connection, watcher: Connection, one: str, other: str
) -> None:
    assert_the_same_as_in_turn(first, second, watcher, "running", one, other)


@pytest.mark.slow
@pytest.mark.parametrize("state", ["parked", "inside"])
@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[" x ".join(pair) for pair in PAIRS])
def test_who_rolls_back_was_never_there(
    first: Connection, second: Connection, watcher: Connection, state: str, one: str, other: str
) -> None:
    alone = prepared(first, state, one, other)
    expected = act(first, other, alone)
    after = summary(first, alone)

    job = prepared(first, state, one, other)
    first.execute("BEGIN")
    act(first, one, job)
    later = start_blocked(second, watcher, other, job)
    first.execute("ROLLBACK")
    answer = later()
    if other in SWEEPS and answer is None:
        answer = act(second, other, job)
    assert answer == expected
    assert summary(first, job) == after


@pytest.mark.parametrize(
    ("action", "state", "becomes", "answer"),
    [
        ("complete", "parked", "completed", "completed"),
        ("complete", "inside", "completed", "completed"),
        ("complete", "running", "completed", "completed"),
        ("fail", "parked", "failed", "failed"),
        ("fail", "inside", "failed", "failed"),
        ("fail", "running", "failed", "failed"),
        ("resume", "parked", "available", "available"),
        ("resume", "inside", "running", "running"),
        ("resume", "running", "running", "running"),
        ("retry", "parked", "available", "available"),
        ("retry", "inside", "available", "available"),
        ("retry", "running", "running", "not yet"),
        ("heartbeat", "parked", "waiting_external", "waiting_external"),
        ("heartbeat", "inside", "waiting_external", "waiting_external"),
        ("heartbeat", "running", "running", "running"),
        ("timeout rescue", "parked", "retryable", "retryable"),
        ("timeout rescue", "inside", "retryable", "retryable"),
        ("timeout rescue", "running", "running", None),
        ("stale rescue", "parked", "waiting_external", None),
        ("stale rescue", "inside", "retryable", "retryable"),
        ("stale rescue", "running", "retryable", "retryable"),
        ("cancel", "parked", "cancelled", "cancelled"),
        ("cancel", "inside", "cancelled", "cancelled"),
        ("cancel", "running", "cancelled", "cancelled"),
    ],
)
def test_each_alone(first: Connection, action: str, state: str, becomes: str, answer: str | None) -> None:
    job = prepared(first, state, action)
    assert act(first, action, job) == answer
    assert found(first, job.job_id)["state"] == becomes
    closed = becomes not in ("waiting_external", "running") or action == "resume"
    assert [act(first, again, job) for again in RESOLVING] == [None] * 4 or not closed
