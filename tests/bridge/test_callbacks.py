"""Callbacks resolved on the caller's connection: its transaction decides, follow-ups included."""

from typing import Any

import attrs
import psycopg
import pytest
from callback_jobs import CallbackJob, registered
from producers import Producer

import awa_actors as awa
from awa_actors.errors import CallbackNotFound, FollowUpError, TransientStoreError, ValidationError

Connection = psycopg.Connection[Any]
NOBODY = "00000000-0000-0000-0000-000000000000"


@attrs.frozen
class Errand:
    n: int = 0


@attrs.frozen
class Next:
    what: str


def following(*, broken: bool = False) -> awa.Registry:
    registry = awa.Registry()

    @registry.on_completed_enqueue(Errand)
    def tell(event: awa.events.Completed[Errand]) -> Next:
        if broken:
            raise RuntimeError("cannot tell")
        return Next(f"completed {event.job.result}")

    return registry


@pytest.fixture
def job(observer: Connection) -> CallbackJob:
    return registered(observer, "parked")


def state(observer: Connection, job: CallbackJob) -> str:
    row = observer.execute("SELECT state FROM awa.jobs WHERE id = %s", [job.job_id]).fetchone()
    assert row is not None
    return str(row[0])


def nexts(observer: Connection) -> list[str]:
    rows = observer.execute("SELECT args ->> 'what' FROM awa.jobs WHERE kind = 'next' ORDER BY id").fetchall()
    return [row[0] for row in rows]


def test_a_resolution_and_its_follow_ups_are_seen_when_the_caller_commits_and_not_before(
    producer: Producer, observer: Connection, job: CallbackJob
) -> None:
    done = producer.bridge("complete_external", job.callback_id, {"a": [1]}, registry=following())
    assert (done.state, done.result) == (awa.JobState.COMPLETED, {"a": [1]})
    assert (state(observer, job), nexts(observer)) == ("waiting_external", [])
    producer.commit()
    assert (state(observer, job), nexts(observer)) == ("completed", ["completed {'a': [1]}"])


def test_expressions_decide_in_the_callers_transaction(
    producer: Producer, observer: Connection, job: CallbackJob
) -> None:
    pytest.importorskip("cel")
    rules = '{"on_complete": "payload.ok", "transform": "payload.n + 1"}'
    observer.execute("UPDATE awa_queue.callbacks SET cel = %s WHERE callback_id = %s", [rules, job.callback_id])
    ignored = producer.bridge("resolve_external", job.callback_id, {"ok": False})
    assert (ignored.outcome, ignored.job.state) == ("ignored", awa.JobState.WAITING_EXTERNAL)
    done = producer.bridge("resolve_external", job.callback_id, {"ok": True, "n": 1}, registry=following())
    assert (done.outcome, done.payload) == ("completed", 2)
    assert (state(observer, job), nexts(observer)) == ("waiting_external", [])
    producer.commit()
    assert (state(observer, job), nexts(observer)) == ("completed", ["completed 2"])


def test_a_resolution_is_rolled_back_with_the_caller(
    producer: Producer, observer: Connection, job: CallbackJob
) -> None:
    producer.bridge("fail_external", job.callback_id, "no")
    producer.rollback()
    assert state(observer, job) == "waiting_external"
    producer.bridge("fail_external", job.callback_id, "no")
    producer.commit()
    assert state(observer, job) == "failed"


def test_a_follow_up_that_fails_leaves_the_callback_open_and_the_transaction_usable(
    producer: Producer, observer: Connection, job: CallbackJob
) -> None:
    observer.execute("CREATE TABLE orders (id int)")
    producer.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(FollowUpError, match="cannot tell"):
        producer.bridge("complete_external", job.callback_id, registry=following(broken=True))
    with pytest.raises(CallbackNotFound):
        producer.bridge("complete_external", NOBODY)
    producer.execute("INSERT INTO orders VALUES (2)")
    producer.commit()
    assert observer.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(1,), (2,)]
    assert state(observer, job) == "waiting_external"


def test_every_verb_has_its_effect(producer: Producer, observer: Connection) -> None:
    retried, resumed, extended = [registered(observer, "parked") for _ in range(3)]
    producer.bridge("retry_external", retried.callback_id)
    producer.bridge("resume_external", resumed.callback_id, {"n": 1})
    producer.bridge("heartbeat_callback", extended.callback_id, 60.0)
    producer.commit()
    assert [state(observer, job) for job in (retried, resumed, extended)] == [
        "available",
        "available",
        "waiting_external",
    ]
    left = observer.execute("SELECT timeout_at < now() + interval '61 s' FROM awa_queue.callbacks").fetchall()
    assert left == [(True,)]


def test_what_the_database_refuses_is_an_error_of_ours(producer: Producer, observer: Connection) -> None:
    running = registered(observer)
    with pytest.raises(ValidationError):
        producer.bridge("complete_external", "not an id")
    with pytest.raises(TransientStoreError, match="still runs"):
        producer.bridge("retry_external", running.callback_id)
    producer.rollback()


def test_what_the_database_declares_follows_without_a_registry(
    producer: Producer, observer: Connection, job: CallbackJob
) -> None:
    observer.execute(
        """INSERT INTO awa.follow_up_specs (application, name, version, kind, outcome, definition) VALUES ('a', 'b', 1,
        'errand', 'completed', '{"enqueue": "next", "queue": "default", "args": {"what": "${args}"}, "cel": false,
        "options": {}, "delivery": "best_effort"}')"""
    )
    producer.bridge("complete_external", job.callback_id)
    producer.commit()
    assert nexts(observer) == ["{}"]
