"""Whatever the caller's session is set to, the same job is stored, and woken for as it should be."""

import datetime as dt
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any
from zoneinfo import ZoneInfo

import attrs
import psycopg
import pytest
from producers import PRODUCERS, Producer

import awa_actors as awa
from awa_actors.core.channels import queue_channel

Connection = psycopg.Connection[Any]
UNIQUE = awa.InsertOpts(unique=awa.UniqueOpts())


@attrs.frozen
class Signup:
    user_id: int


@pytest.fixture(params=["asyncpg", "psycopg", "sqlalchemy async session", "django"])
def open_producer(request: pytest.FixtureRequest) -> Callable[[str], AbstractContextManager[Producer]]:
    """One flavour of each bridge: what is tested here is the statement rather than the way to it."""
    return PRODUCERS[request.param]


def count(connection: Connection, table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
    return int(row[0]) if row else 0


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_job_is_inserted_at_any_isolation_level(producer: Producer, observer: Connection, level: str) -> None:
    producer.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    producer.insert_many([Signup(user_id=n) for n in range(3)], UNIQUE)
    producer.insert(Signup(user_id=3))
    with pytest.raises(awa.UniqueConflict):
        producer.insert(Signup(user_id=2), UNIQUE)
    producer.commit()
    assert count(observer, "awa.jobs") == 4


def test_a_key_that_was_taken_after_the_snapshot_may_be_tried_again(producer: Producer, observer: Connection) -> None:
    producer.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    producer.execute("SELECT count(*) FROM awa.jobs")
    observer.execute("""SELECT awa.insert_job('signup', '{}', '{"unique_key": "aa"}')""")
    key = awa.InsertOpts(unique=awa.UniqueOpts(key=b"\xaa"))
    with pytest.raises(awa.TransientStoreError, match="40001"):
        producer.insert(Signup(user_id=1), key)
    producer.rollback()
    with pytest.raises(awa.UniqueConflict):
        producer.insert(Signup(user_id=1), key)


def test_serializable_producers_do_not_fail_one_another(database: str, observer: Connection) -> None:
    with closing(psycopg.connect(database)) as first, closing(psycopg.connect(database)) as second:
        from awa_actors.bridge import psycopg as bridge

        for connection in (first, second):
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        for number in range(10):
            bridge.insert(first, Signup(user_id=number), UNIQUE)
            bridge.insert(second, Signup(user_id=100 + number), UNIQUE)
        first.commit()
        second.commit()
    assert count(observer, "awa.jobs") == 20


def test_a_snapshot_from_before_a_turn_of_the_rings_still_gets_its_job_through(
    producer: Producer, observer: Connection
) -> None:
    producer.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    producer.execute("SELECT count(*) FROM awa.jobs")
    for ring in ("segments", "ready"):
        for _ in range(2):
            observer.execute(
                "SELECT awa_queue.turn(%s, (SELECT max(generation) FROM awa_queue.ring_turns WHERE ring = %s))",
                [ring, ring],
            )
            observer.execute("SELECT awa_queue.truncate_slot(%s, 0, '0')", [ring])
    producer.insert_many([Signup(user_id=1), Signup(user_id=2)])
    producer.commit()
    for ring in ("segments", "ready"):
        outcome = observer.execute("SELECT outcome FROM awa_queue.truncate_slot(%s, 0, '0')", [ring]).fetchone()
        assert outcome == ("live",)
    assert count(observer, "awa.jobs") == 2


@pytest.mark.parametrize(
    "instant",
    [
        dt.datetime(2031, 3, 30, 1, 59, 59, 123456, tzinfo=dt.UTC),
        dt.datetime(2031, 10, 26, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        dt.datetime(1901, 1, 1, tzinfo=ZoneInfo("Asia/Kathmandu")),
    ],
)
def test_the_sessions_time_zone_and_date_style_do_not_matter(
    producer: Producer, observer: Connection, instant: dt.datetime
) -> None:
    producer.execute("SET TimeZone = 'Asia/Kathmandu'")
    producer.execute("SET DateStyle = 'SQL, DMY'")
    job = producer.insert(Signup(user_id=1), awa.InsertOpts(run_at=instant))
    producer.commit()
    stored = observer.execute("SELECT run_at FROM awa.jobs WHERE id = %s", [job.id]).fetchone()
    assert stored == (instant.astimezone(dt.UTC),)


def test_decoys_that_come_first_on_the_search_path_stay_empty(producer: Producer, observer: Connection) -> None:
    observer.execute("CREATE SCHEMA decoy")
    observer.execute("CREATE DOMAIN decoy.text AS pg_catalog.text CHECK (false)")
    observer.execute("CREATE DOMAIN decoy.jsonb AS pg_catalog.jsonb CHECK (false)")
    observer.execute("CREATE FUNCTION decoy.unnest(pg_catalog.text[]) RETURNS int RETURN 1")
    observer.execute("CREATE FUNCTION decoy.clock_timestamp() RETURNS timestamptz RETURN 'infinity'::timestamptz")
    for table in ("bodies", "ready", "deferred_jobs", "sleepers", "queues", "job_unique_claims", "ring_turns"):
        observer.execute(f"CREATE TABLE decoy.{table} (job_id bigint)".encode())
    # Twice before: asyncpg looks up types by a query of its own, which a decoy of `text` would break.
    producer.insert(Signup(user_id=1), UNIQUE)
    producer.insert(Signup(user_id=0))
    producer.execute("SET search_path = decoy, pg_catalog")
    producer.insert_many([Signup(user_id=2), Signup(user_id=3)], awa.InsertOpts(run_at=dt.timedelta(hours=1)))
    with pytest.raises(awa.UniqueConflict):
        producer.insert(Signup(user_id=1), UNIQUE)
    producer.commit()
    assert count(observer, "awa.jobs") == 4
    assert count(observer, "decoy.bodies") + count(observer, "decoy.job_unique_claims") == 0


def heard(listener: Connection, observer: Connection, channel: str) -> list[str]:
    """What came on a channel until now: a last message of our own says that nothing else will."""
    observer.execute("SELECT pg_notify(%s, 'end')", [channel])
    payloads: list[str] = []
    for notification in listener.notifies(timeout=10):
        if notification.payload == "end":
            return payloads
        payloads.append(notification.payload)
    raise AssertionError("the last message did not come")


@pytest.fixture
def listener(database: str) -> Any:
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        yield connection


@pytest.mark.parametrize("queue", ["default", "q" * 200, "due"])
def test_a_sleeping_queue_is_woken_by_the_commit_and_only_by_it(
    producer: Producer, observer: Connection, listener: Connection, queue: str
) -> None:
    channel = queue_channel(queue)
    opts = awa.InsertOpts(queue=queue)
    listener.execute(f'LISTEN "{channel}"'.encode())
    producer.insert(Signup(user_id=1), opts)
    producer.commit()
    assert heard(listener, observer, channel) == []
    observer.execute("INSERT INTO awa.sleepers VALUES (%s, clock_timestamp() + interval '1 hour')", [queue])
    producer.insert(Signup(user_id=2), opts)
    producer.rollback()
    assert heard(listener, observer, channel) == []
    producer.insert_many([Signup(user_id=3), Signup(user_id=4)], opts)
    producer.insert(Signup(user_id=5), opts)
    assert heard(listener, observer, channel) == []
    producer.commit()
    assert heard(listener, observer, channel) == [""]


def test_a_conflict_wakes_nobody(producer: Producer, observer: Connection, listener: Connection) -> None:
    observer.execute("INSERT INTO awa.sleepers VALUES ('default', clock_timestamp() + interval '1 hour')")
    producer.insert(Signup(user_id=1), UNIQUE)
    producer.commit()
    listener.execute('LISTEN "awa:default"')
    with pytest.raises(awa.UniqueConflict):
        producer.insert_many([Signup(user_id=2), Signup(user_id=1)], UNIQUE)
    producer.commit()
    assert heard(listener, observer, "awa:default") == []


def test_wake_ups_can_be_turned_off_per_session(producer: Producer, observer: Connection, listener: Connection) -> None:
    observer.execute("INSERT INTO awa.sleepers VALUES ('default', 'infinity'), ('awa:due', 'infinity')")
    for channel in ("awa:default", "awa:due"):
        listener.execute(f'LISTEN "{channel}"'.encode())
    producer.execute("SET awa.notify = off")
    producer.insert(Signup(user_id=1))
    producer.insert(Signup(user_id=1), UNIQUE)
    producer.insert(Signup(user_id=1), awa.InsertOpts(run_at=dt.timedelta(seconds=1)))
    producer.commit()
    assert heard(listener, observer, "awa:default") == []
    assert heard(listener, observer, "awa:due") == []


def test_a_promoter_that_sleeps_past_a_due_time_is_woken(
    producer: Producer, observer: Connection, listener: Connection
) -> None:
    observer.execute("INSERT INTO awa.sleepers VALUES ('awa:due', clock_timestamp() + interval '1 hour')")
    listener.execute('LISTEN "awa:due"')
    producer.insert(Signup(user_id=1), awa.InsertOpts(run_at=dt.timedelta(hours=2)))
    producer.commit()
    assert heard(listener, observer, "awa:due") == []
    producer.insert(Signup(user_id=1), awa.InsertOpts(run_at=dt.timedelta(minutes=2)))
    producer.commit()
    assert heard(listener, observer, "awa:due") == [""]
