"""Enqueue on the caller's connection: the caller's transaction decides, whatever driver it is on."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import attrs
import psycopg
import pytest
from producers import Producer
from sqlalchemy.exc import PendingRollbackError

import awa_actors as awa

Connection = psycopg.Connection[Any]


@attrs.frozen
class Signup:
    queue: ClassVar[str] = "signup"
    user_id: int


@attrs.frozen
class SendWelcome:
    kind: ClassVar[str] = "send_welcome_email"
    to: str = ""


UNIQUE = awa.InsertOpts(unique=awa.UniqueOpts())
RETURN_EXISTING = awa.InsertOpts(unique=awa.UniqueOpts(on_conflict=awa.OnConflict.RETURN_EXISTING))


def ids(connection: Connection) -> list[int]:
    return [row[0] for row in connection.execute("SELECT id FROM awa.jobs ORDER BY id").fetchall()]


def keys_held(connection: Connection) -> int:
    row = connection.execute("SELECT count(*) FROM awa.job_unique_claims").fetchone()
    return int(row[0]) if row else 0


def test_a_job_is_seen_when_its_producer_commits_and_not_before(producer: Producer, observer: Connection) -> None:
    job = producer.insert(Signup(user_id=1))
    assert ids(observer) == []
    producer.commit()
    assert ids(observer) == [job.id]


def test_a_job_is_committed_together_with_the_producers_own_rows(producer: Producer, observer: Connection) -> None:
    observer.execute("CREATE TABLE orders (id int)")
    producer.execute("INSERT INTO orders VALUES (1)")
    producer.insert(Signup(user_id=1))
    producer.rollback()
    producer.execute("INSERT INTO orders VALUES (2)")
    kept = producer.insert(Signup(user_id=2))
    producer.commit()
    assert observer.execute("SELECT id FROM orders").fetchall() == [(2,)]
    assert ids(observer) == [kept.id]


def test_a_rollback_leaves_neither_the_job_nor_its_unique_key(producer: Producer, observer: Connection) -> None:
    producer.insert(Signup(user_id=1), UNIQUE)
    producer.rollback()
    assert (ids(observer), keys_held(observer)) == ([], 0)
    job = producer.insert(Signup(user_id=1), UNIQUE)
    producer.commit()
    assert ids(observer) == [job.id]


def test_the_class_says_where_a_job_goes_and_options_overrule_it(producer: Producer, observer: Connection) -> None:
    first = producer.insert(SendWelcome(to="a@example.org"))
    second = producer.insert(Signup(user_id=1), awa.InsertOpts(queue="vip", priority=1))
    producer.commit()
    assert (first.kind, first.queue, first.inserted) == ("send_welcome_email", "default", True)
    assert (second.kind, second.queue) == ("signup", "vip")
    stored = observer.execute("SELECT id, kind, queue, priority, args FROM awa.jobs ORDER BY id").fetchall()
    assert stored == [
        (first.id, "send_welcome_email", "default", 2, {"to": "a@example.org"}),
        (second.id, "signup", "vip", 1, {"user_id": 1}),
    ]


def test_a_batch_of_mixed_jobs_keeps_its_order(producer: Producer, observer: Connection) -> None:
    jobs = [Signup(user_id=n) if n % 3 else SendWelcome(to=str(n)) for n in range(20)]
    done = producer.insert_many(jobs)
    producer.commit()
    assert [job.kind for job in done] == ["signup" if n % 3 else "send_welcome_email" for n in range(20)]
    stored = observer.execute("SELECT id, args FROM awa.jobs ORDER BY id").fetchall()
    assert stored == [(job.id, attrs.asdict(args)) for job, args in zip(done, jobs, strict=True)]


def test_a_batch_of_nothing_is_nothing(producer: Producer, observer: Connection) -> None:
    assert producer.insert_many([]) == []
    producer.commit()
    assert ids(observer) == []


def test_a_conflict_names_the_holder_and_leaves_the_transaction_usable(
    producer: Producer, observer: Connection
) -> None:
    holder = producer.insert(Signup(user_id=1), UNIQUE)
    producer.commit()
    before = producer.insert(Signup(user_id=2))
    with pytest.raises(awa.UniqueConflict, match=f"job {holder.id}") as raised:
        producer.insert(Signup(user_id=1), UNIQUE)
    assert raised.value.existing_job_id == holder.id
    after = producer.insert(Signup(user_id=3))
    producer.commit()
    assert ids(observer) == [holder.id, before.id, after.id]


def test_a_conflict_anywhere_in_a_batch_inserts_none_of_it(producer: Producer, observer: Connection) -> None:
    holder = producer.insert(Signup(user_id=5), UNIQUE)
    with pytest.raises(awa.UniqueConflict) as raised:
        producer.insert_many([Signup(user_id=n) for n in range(10)], UNIQUE)
    assert raised.value.existing_job_id == holder.id
    producer.commit()
    assert ids(observer) == [holder.id]
    assert keys_held(observer) == 1


def test_duplicates_inside_a_batch_conflict_with_no_job_that_exists(producer: Producer, observer: Connection) -> None:
    with pytest.raises(awa.UniqueConflict, match="two jobs of this batch") as raised:
        producer.insert_many([Signup(user_id=1), Signup(user_id=2), Signup(user_id=1)], UNIQUE)
    assert raised.value.existing_job_id is None
    producer.commit()
    assert (ids(observer), keys_held(observer)) == ([], 0)


def test_a_taken_key_may_be_answered_with_the_job_that_holds_it(producer: Producer, observer: Connection) -> None:
    first, second, again = producer.insert_many(
        [Signup(user_id=1), Signup(user_id=2), Signup(user_id=1)], RETURN_EXISTING
    )
    assert (again.id, again.inserted, second.inserted) == (first.id, False, True)
    skipped = producer.insert(Signup(user_id=2), awa.InsertOpts(unique=awa.UniqueOpts(on_conflict=awa.OnConflict.SKIP)))
    assert (skipped.id, skipped.inserted) == (second.id, False)
    producer.commit()
    assert ids(observer) == [first.id, second.id]


def test_a_value_that_cannot_be_stored_is_refused_before_anything_is_sent(
    producer: Producer, observer: Connection
) -> None:
    kept = producer.insert(Signup(user_id=1))
    with pytest.raises(awa.ValidationError) as alone:
        producer.insert(SendWelcome(to="a\x00b"))
    with pytest.raises(awa.ValidationError) as among_others:
        producer.insert_many([SendWelcome(), SendWelcome(to="\ud800"), SendWelcome()])
    assert (alone.value.path, among_others.value.path) == ("$.to", "$[1].to")
    producer.commit()
    assert ids(observer) == [kept.id]


def test_a_database_without_our_schema_says_so(
    open_producer: Callable[[str], AbstractContextManager[Producer]], empty_database: str
) -> None:
    with open_producer(empty_database) as producer:
        with pytest.raises(awa.SchemaNotMigrated, match="run 'awa-actors migrate'"):
            producer.insert(Signup(user_id=1))
        producer.rollback()


def test_a_refusal_of_the_database_is_a_validation_error(producer: Producer, observer: Connection) -> None:
    observer.execute("ALTER TABLE awa_queue.bodies ADD CONSTRAINT no_signup CHECK (kind <> 'signup')")
    with pytest.raises(awa.ValidationError, match=r"no_signup.*23514"):
        producer.insert(Signup(user_id=1))
    producer.rollback()
    producer.insert(SendWelcome())
    producer.commit()
    assert len(ids(observer)) == 1


def test_another_unique_violation_is_no_conflict_of_jobs(producer: Producer, observer: Connection) -> None:
    observer.execute("CREATE UNIQUE INDEX one_of_a_kind ON awa_queue.bodies_0 (kind)")
    with pytest.raises(awa.StoreError, match="one_of_a_kind") as raised:
        producer.insert_many([Signup(user_id=1), Signup(user_id=2)], UNIQUE)
    assert type(raised.value) is awa.StoreError
    producer.rollback()


def test_a_wait_that_times_out_may_be_tried_again(producer: Producer, database: str) -> None:
    with psycopg.connect(database) as other:
        other.execute(
            """SELECT awa.insert_job('signup', '{"user_id": 1}', '{"unique_key": "aa"}')"""  # not committed
        )
        producer.execute("SET LOCAL lock_timeout = '20ms'")
        with pytest.raises(awa.TransientStoreError, match="55P03"):
            producer.insert(Signup(user_id=1), awa.InsertOpts(unique=awa.UniqueOpts(key=b"\xaa")))
        producer.rollback()
        other.rollback()


def test_a_role_without_grants_is_told_which(producer: Producer) -> None:
    producer.execute("SET LOCAL ROLE pg_monitor")
    with pytest.raises(awa.StoreError, match=r"permission denied for schema awa .*doctor"):
        producer.insert(Signup(user_id=1))
    producer.rollback()


def test_a_lost_connection_is_a_transient_error(producer: Producer, observer: Connection) -> None:
    ((pid,),) = producer.execute("SELECT pg_backend_pid()")
    observer.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    with pytest.raises(awa.TransientStoreError):
        producer.insert(Signup(user_id=1))
    # Once more, now that the driver has noticed; SQLAlchemy has a word of its own for that.
    with pytest.raises((awa.TransientStoreError, PendingRollbackError)):
        producer.insert(Signup(user_id=1))
