"""awa.insert_job, the function that producers in other languages call."""

import datetime as dt
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import errors

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with closing(psycopg.connect(database, autocommit=True)) as opened:
        yield opened


def insert_job(connection: Connection, kind: str | None = "signup", args: Any = None, **opts: Any) -> tuple[int, bool]:
    row = connection.execute(
        "SELECT id, inserted FROM awa.insert_job(%s, %s::jsonb, %s::jsonb)",
        [kind, None if args is None else json.dumps(args), json.dumps(opts)],
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def stored(connection: Connection, job_id: int, column: str) -> Any:
    row = connection.execute(f"SELECT {column} FROM awa.jobs WHERE id = %s".encode(), [job_id]).fetchone()
    assert row is not None
    return row[0]


def jobs(connection: Connection) -> int:
    row = connection.execute("SELECT count(*) FROM awa.jobs").fetchone()
    return int(row[0]) if row else -1


def test_a_kind_is_all_that_is_needed(connection: Connection) -> None:
    (first, inserted), (second, _) = insert_job(connection), insert_job(connection)
    assert inserted
    assert second > first
    row = connection.execute(
        "SELECT kind, queue, args, state::text, priority, max_attempts, metadata, tags FROM awa.jobs WHERE id = %s",
        [first],
    ).fetchone()
    assert row == ("signup", "default", {}, "available", 2, 25, {}, [])
    (third,) = connection.execute("SELECT id FROM awa.insert_job('signup')").fetchone() or (0,)
    assert stored(connection, third, "queue") == "default"


def test_every_option_is_stored(connection: Connection) -> None:
    connection.execute("INSERT INTO awa.queues (queue, shards) VALUES ('mail', 8)")
    opts: dict[str, Any] = {
        "queue": "mail",
        "priority": 1,
        "max_attempts": 3,
        "run_at": "2031-05-17T15:15:00.123456+05:45",
        "deadline": 1.5,
        "metadata": {"tenant": None, "awa:traceparent": "00-0-0-00"},
        "tags": ["a", "b"],
        "unique_key": "00FF",
        "unique_states": ["available", "scheduled", "waiting_external"],
        "on_conflict": "skip",
        "ordering_key": "customer-1",
    }
    job_id, _ = insert_job(connection, args={"user_id": 1}, **opts)
    row = connection.execute(
        """
        SELECT queue, args, state::text, priority, max_attempts, run_at, deadline_ms, metadata, tags, unique_key,
               unique_states::text, shard
        FROM awa.jobs WHERE id = %s
        """,
        [job_id],
    ).fetchone()
    run_at = dt.datetime(2031, 5, 17, 9, 30, 0, 123456, tzinfo=dt.UTC)
    assert row == (
        *("mail", {"user_id": 1}, "scheduled", 1, 3, run_at, 1500, opts["metadata"], ["a", "b"]),
        *(b"\x00\xff", "11000001", 3),
    )
    assert insert_job(connection, **opts) == (job_id, False)


def test_a_null_option_counts_as_absent(connection: Connection) -> None:
    names = (
        *("queue", "priority", "max_attempts", "run_at", "delay", "deadline", "metadata", "tags"),
        *("unique_key", "unique_states", "on_conflict", "ordering_key"),
    )
    job_id, _ = insert_job(connection, **dict.fromkeys(names))
    assert stored(connection, job_id, "state::text") == "available"
    assert stored(connection, job_id, "queue") == "default"


def test_a_delay_is_seconds_from_now_and_ends_at_ten_years(connection: Connection) -> None:
    soon, _ = insert_job(connection, delay=90.5)
    late, _ = insert_job(connection, delay=1e300, deadline=1e300)
    assert stored(connection, soon, "run_at - created_at") == dt.timedelta(seconds=90.5)
    assert stored(connection, late, "run_at - created_at") == dt.timedelta(days=3660)
    assert stored(connection, late, "deadline_ms") == 316_224_000_000


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        ({"que": "x", "zzz": 1}, "unknown option: que; unknown option: zzz"),
        ({"priority": "1"}, "priority must be of type number, not string"),
        ({"run_at": 1e9}, "run_at must be of type string, not number"),
        ({"metadata": [1]}, "metadata must be of type object, not array"),
        ({"tags": "a"}, "tags must be of type array, not string"),
        ({"run_at": "2031-05-17T09:30:00Z", "delay": 1}, "run_at or delay, not both"),
        ({"delay": -1}, "delay must not be negative"),
        ({"deadline": 0.0009}, "deadline must be at least a millisecond"),
        ({"deadline": -1}, "deadline must be at least a millisecond"),
        ({"on_conflict": "ignore", "unique_key": "aa"}, "on_conflict is raise, return_existing or skip"),
        ({"on_conflict": "skip"}, "mean nothing without a unique_key"),
        ({"unique_states": ["available"]}, "mean nothing without a unique_key"),
        ({"unique_key": ""}, "unique_key must be 1 to 200 bytes in hex"),
        ({"unique_key": "abc"}, "unique_key must be 1 to 200 bytes in hex"),
        ({"unique_key": "zz"}, "unique_key must be 1 to 200 bytes in hex"),
        ({"unique_key": "aa" * 201}, "unique_key must be 1 to 200 bytes in hex"),
        ({"unique_key": "aa", "unique_states": ["avialable"]}, "must be names of states"),
        ({"unique_key": "aa", "unique_states": [1]}, "must be names of states"),
        ({"unique_key": "aa", "unique_states": []}, "must include the state this job is inserted in"),
        ({"unique_key": "aa", "unique_states": ["scheduled"]}, "must include the state this job is inserted in"),
        ({"unique_key": "aa", "unique_states": ["available"], "delay": 1}, "must include the state"),
        ({"ordering_key": ""}, "ordering_key must have 1 to 1024 bytes"),
        ({"ordering_key": "ü" * 513}, "ordering_key must have 1 to 1024 bytes"),
        ({"tags": ["a", None]}, "tags must be strings of 1 to 200 characters"),
        ({"tags": [""]}, "tags must be strings of 1 to 200 characters"),
        ({"metadata": {"awa:x": 1}}, "are reserved"),
        ({"metadata": {"_awa_x": 1}}, "are reserved"),
        ({"metadata": {"cron_name": 1}}, "are reserved"),
    ],
    ids=repr,
)
def test_options_that_cannot_be_meant_are_refused(connection: Connection, opts: Any, message: str) -> None:
    with pytest.raises(errors.InvalidParameterValue) as raised:
        insert_job(connection, **opts)
    assert message in str(raised.value)
    assert jobs(connection) == 0


@pytest.mark.parametrize(
    "instant",
    ["2031-05-17T09:30:00", "2031-05-17", "tomorrow", "now", "infinity", "-infinity", "", "17/05/2031 09:30Z", "epoch"],
)
def test_a_due_time_must_be_iso_text_that_names_its_offset(connection: Connection, instant: str) -> None:
    with pytest.raises(errors.InvalidDatetimeFormat, match="ISO 8601 text with an offset"):
        insert_job(connection, run_at=instant)


@pytest.mark.parametrize("instant", ["0001-01-01T12:00:00Z", "9999-12-31T12:00:00Z", "2031-02-30T00:00:00Z"])
def test_a_due_time_must_be_one_that_every_driver_can_read(connection: Connection, instant: str) -> None:
    with pytest.raises(errors.DatetimeFieldOverflow):
        insert_job(connection, run_at=instant)


@pytest.mark.parametrize(
    "instant", ["2031-05-17 09:30Z", "2031-05-17T09:30:00.123456789+00", "2031-05-17T15:15:00+0545"]
)
def test_the_usual_ways_to_write_an_instant_are_understood(connection: Connection, instant: str) -> None:
    connection.execute("SET TimeZone = 'Asia/Kathmandu'")
    connection.execute("SET DateStyle = 'SQL, DMY'")
    connection.execute("SET standard_conforming_strings = on")
    job_id, _ = insert_job(connection, run_at=instant)
    assert stored(connection, job_id, "date_trunc('minute', run_at) = '2031-05-17 09:30:00+00'")


@pytest.mark.parametrize(
    ("kind", "opts", "error"),
    [
        (None, {}, errors.NotNullViolation),
        ("", {}, errors.CheckViolation),
        ("k" * 201, {}, errors.CheckViolation),
        ("k", {"queue": ""}, errors.CheckViolation),
        ("k", {"queue": "ü" * 101}, errors.CheckViolation),
        ("k", {"queue": "ü" * 101, "delay": 1}, errors.CheckViolation),
        ("k", {"priority": 0}, errors.CheckViolation),
        ("k", {"priority": 5}, errors.CheckViolation),
        ("k", {"priority": 99_999}, errors.NumericValueOutOfRange),
        ("k", {"priority": 1.5}, errors.InvalidTextRepresentation),
        ("k", {"max_attempts": 1001, "delay": 1}, errors.CheckViolation),
        ("k", {"tags": [str(n) for n in range(21)]}, errors.CheckViolation),
    ],
    ids=repr,
)
def test_the_tables_refuse_what_is_out_of_range(
    connection: Connection, kind: str | None, opts: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        insert_job(connection, kind, **opts)
    assert jobs(connection) == 0


@pytest.mark.parametrize("args", [[1], "text", 7, True])
def test_args_are_an_object(connection: Connection, args: Any) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="must be JSON objects"):
        insert_job(connection, args=args)


@pytest.mark.parametrize("opts", ["[]", '"x"', "7"])
def test_options_are_an_object(connection: Connection, opts: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="must be JSON objects"):
        connection.execute("SELECT awa.insert_job('k', '{}', %s::jsonb)", [opts])


def test_a_taken_key_is_an_error_that_names_the_holder(connection: Connection) -> None:
    holder, _ = insert_job(connection, unique_key="aa")
    with pytest.raises(errors.UniqueViolation, match=f"job {holder}") as raised:
        insert_job(connection, unique_key="aa")
    assert raised.value.diag.constraint_name == "idx_awa_jobs_unique"
    assert raised.value.diag.message_detail == str(holder)
    assert insert_job(connection, unique_key="AA", on_conflict="return_existing") == (holder, False)
    assert insert_job(connection, unique_key="aa", on_conflict="skip") == (holder, False)


@pytest.mark.parametrize(
    ("state", "held"), [("failed", False), ("cancelled", False), ("waiting_external", True), ("retryable", True)]
)
def test_a_key_is_held_in_every_state_but_failed_and_cancelled(connection: Connection, state: str, held: bool) -> None:
    job_id, _ = insert_job(connection, unique_key="aa")
    mask = stored(connection, job_id, "unique_states")
    found = connection.execute("SELECT get_bit(%s::bit(8), awa.state_bit(%s))", [mask, state]).fetchone()
    assert found == (int(held),)


def test_a_job_of_the_longest_queue_name_wakes_its_sleepers(connection: Connection) -> None:
    queue = "ü" * 100
    connection.execute("INSERT INTO awa.sleepers VALUES (%s, 'infinity')", [queue])
    channel = connection.execute("SELECT awa.queue_channel(%s)", [queue]).fetchone()
    assert channel is not None
    connection.execute(f'LISTEN "{channel[0]}"'.encode())
    insert_job(connection, queue=queue)
    assert [notification.channel for notification in connection.notifies(timeout=10, stop_after=1)] == [channel[0]]
