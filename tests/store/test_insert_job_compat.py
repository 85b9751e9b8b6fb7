"""awa.insert_job_compat: the signature and the answers of the older contract."""

import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql
from psycopg.rows import dict_row

Connection = psycopg.Connection[dict[str, Any]]
FUTURE = dt.datetime(2031, 5, 17, 9, 30, 0, 123456, tzinfo=dt.UTC)
PAST = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with closing(psycopg.connect(database, autocommit=True, row_factory=dict_row)) as opened:
        yield opened


def insert(connection: Connection, kind: str = "signup", **named: Any) -> dict[str, Any]:
    """Call the function with named arguments; what is given as a string finds its type in Postgres."""
    arguments = sql.SQL(", ").join(
        sql.SQL("{} => {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in named.items()
    )
    call = sql.SQL("SELECT * FROM awa.insert_job_compat({}{}{})").format(
        sql.Literal(kind), sql.SQL(", " if named else ""), arguments
    )
    row = connection.execute(call).fetchone()
    assert row is not None
    return row


def test_only_a_kind_is_required_and_the_row_comes_back(connection: Connection) -> None:
    row = insert(connection)
    assert row | {"state": "available", "queue": "default", "args": {}, "priority": 2, "max_attempts": 25} == row
    assert (row["attempt"], row["run_lease"], row["metadata"], row["tags"]) == (0, 0, {}, [])
    assert row["run_at"] == row["created_at"]
    assert connection.execute("SELECT * FROM awa.jobs").fetchall() == [row]


def test_every_argument_by_position(connection: Connection) -> None:
    row = connection.execute(
        """
        SELECT * FROM awa.insert_job_compat('k', 'mail', '{"a": 1}', 'scheduled', 1::smallint, 3::smallint, %s,
            '{"m": null}', '{x,y}', '\\x00ff', B'11100000', '\\x61')
        """,
        [FUTURE],
    ).fetchone()
    assert row is not None
    assert (row["kind"], row["queue"], row["args"], row["state"]) == ("k", "mail", {"a": 1}, "scheduled")
    assert (row["priority"], row["max_attempts"], row["run_at"]) == (1, 3, FUTURE)
    assert (row["metadata"], row["tags"], row["unique_key"]) == ({"m": None}, ["x", "y"], b"\x00\xff")
    assert row["unique_states"] == "11100000"


@pytest.mark.parametrize(
    ("state", "run_at", "becomes"),
    [
        ("available", None, "available"),
        ("available", PAST, "available"),
        ("available", FUTURE, "scheduled"),
        ("scheduled", None, "scheduled"),
        ("scheduled", PAST, "scheduled"),
        ("retryable", FUTURE, "retryable"),
    ],
)
def test_a_job_waits_for_its_due_time_whatever_state_was_asked_for(
    connection: Connection, state: str, run_at: dt.datetime | None, becomes: str
) -> None:
    row = insert(connection, p_state=state, p_run_at=run_at)
    assert row["state"] == becomes
    claimable = connection.execute("SELECT count(*) AS n FROM awa_queue.ready").fetchone()
    assert claimable == {"n": 1 if becomes == "available" else 0}


@pytest.mark.parametrize("state", ["running", "completed", "failed", "cancelled", "waiting_external"])
def test_no_job_begins_in_the_middle(connection: Connection, state: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match=f"cannot be inserted as {state}"):
        insert(connection, p_state=state)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"p_run_at": "infinity"}, "run_at must lie between"),
        ({"p_run_at": "-infinity"}, "run_at must lie between"),
        ({"p_metadata": "[1]"}, "metadata must be a JSON object"),
        ({"p_tags": ["a", None]}, "tags must not be null"),
        ({"p_unique_key": b""}, "a unique key must have 1 to 200 bytes"),
        ({"p_unique_key": b"x" * 201}, "a unique key must have 1 to 200 bytes"),
    ],
    ids=repr,
)
def test_what_nobody_could_read_back_is_refused(connection: Connection, named: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match=message):
        insert(connection, **named)


@pytest.mark.parametrize(
    "named",
    [{"p_priority": "9"}, {"p_max_attempts": "0"}, {"p_queue": ""}, {"p_tags": [str(n) for n in range(21)]}],
    ids=repr,
)
def test_the_tables_refuse_what_is_out_of_range(connection: Connection, named: dict[str, Any]) -> None:
    with pytest.raises(errors.CheckViolation):
        insert(connection, **named)


def test_a_taken_key_is_a_unique_violation_of_the_known_constraint(connection: Connection) -> None:
    holder = insert(connection, p_unique_key=b"\xaa")
    assert holder["unique_states"] == "11111000"
    with pytest.raises(errors.UniqueViolation) as raised:
        insert(connection, p_unique_key=b"\xaa")
    assert raised.value.diag.constraint_name == "idx_awa_jobs_unique"
    assert raised.value.diag.message_detail == str(holder["id"])


def test_a_mask_without_the_first_state_takes_no_key_yet(connection: Connection) -> None:
    first = insert(connection, p_unique_key=b"\xaa", p_unique_states="00100000")
    second = insert(connection, p_unique_key=b"\xaa", p_unique_states="00100000")
    assert first["id"] != second["id"]


@pytest.mark.slow
def test_reading_the_row_back_stays_cheap_beside_many_jobs(connection: Connection) -> None:
    connection.execute(
        "SELECT FROM awa.insert_jobs(ARRAY(SELECT '{}' FROM generate_series(1, 20000)), '{k}', '{q}', '{2}', '{25}')"
    )
    connection.execute("SELECT pg_stat_force_next_flush()")
    connection.execute("SELECT pg_stat_reset()")
    insert(connection)
    connection.execute("SELECT pg_stat_force_next_flush()")
    read = connection.execute(
        """
        SELECT sum(seq_tup_read)::int AS n FROM pg_stat_user_tables
        WHERE schemaname = 'awa_queue' AND (relname LIKE 'bodies%' OR relname LIKE 'ready%' OR relname LIKE 'done%')
        """
    ).fetchone()
    assert read == {"n": 0}
