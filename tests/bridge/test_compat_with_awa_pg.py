"""Producers written for the bridge of awa-pg run unchanged on our database, and our workers run what they enqueue."""

import datetime as dt
import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
import trio
from at_work import becomes, working
from django.db import connections, transaction
from producers import django_database, django_settings, sqlalchemy_url, stock_loop
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import awa_actors as awa
from awa_actors.core.kinds import derive_kind

older = pytest.importorskip("awa.bridge", reason="awa-pg, of the group compat, is not installed")


@dataclass
class SendEmail:
    to: str
    subject: str = "hello"


JOB = SendEmail(to="a@example.org")
RUN_AT = dt.datetime(2031, 5, 17, 9, 30, tzinfo=dt.UTC)

Enqueue = Callable[..., dict[str, Any]]


@contextmanager
def by_asyncpg(url: str) -> Iterator[Enqueue]:
    async def in_transaction(connection: Any, args: Any, options: dict[str, Any]) -> Any:
        async with connection.transaction():
            return await older.insert_job(connection, args, **options)

    with stock_loop() as run:
        connection = run(asyncpg.connect(url))
        yield lambda args, **options: run(in_transaction(connection, args, options))
        run(connection.close())


@contextmanager
def by_psycopg(url: str) -> Iterator[Enqueue]:
    with closing(psycopg.connect(url)) as connection:

        def insert(args: Any, **options: Any) -> Any:
            with connection.transaction():
                return older.insert_job_sync(connection, args, **options)

        yield insert


@contextmanager
def by_psycopg_async(url: str) -> Iterator[Enqueue]:
    async def in_transaction(connection: Any, args: Any, options: dict[str, Any]) -> Any:
        async with connection.transaction():
            return await older.insert_job(connection, args, **options)

    with stock_loop() as run:
        connection = run(psycopg.AsyncConnection.connect(url))
        yield lambda args, **options: run(in_transaction(connection, args, options))
        run(connection.close())


@contextmanager
def by_sqlalchemy(url: str) -> Iterator[Enqueue]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, "psycopg"))

    def insert(args: Any, **options: Any) -> Any:
        with Session(engine) as session, session.begin():
            return older.insert_job_sync(session, args, **options)

    yield insert
    engine.dispose()


@contextmanager
def by_sqlalchemy_async(url: str) -> Iterator[Enqueue]:
    async def in_transaction(engine: Any, args: Any, options: dict[str, Any]) -> Any:
        async with AsyncSession(engine) as session, session.begin():
            return await older.insert_job(session, args, **options)

    with stock_loop() as run:
        engine = create_async_engine(sqlalchemy_url(url, "asyncpg"))
        yield lambda args, **options: run(in_transaction(engine, args, options))
        run(engine.dispose())


@contextmanager
def by_django(url: str) -> Iterator[Enqueue]:
    with django_database(django_settings(url)) as alias:

        def insert(args: Any, **options: Any) -> Any:
            with transaction.atomic(using=alias):
                return older.insert_job_sync(connections[alias], args, **options)

        yield insert


@pytest.fixture(
    params=[by_asyncpg, by_psycopg, by_psycopg_async, by_sqlalchemy, by_sqlalchemy_async, by_django],
    ids=lambda made: made.__name__,
)
def enqueue(request: pytest.FixtureRequest, database: str) -> Iterator[Enqueue]:
    """What a producer of that bridge calls, each time in a transaction of its own."""
    with request.param(database) as function:
        yield function


@pytest.fixture
def observer(database: str) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        yield connection


def value(found: Any) -> Any:
    """JSON as a value: some of its drivers return it as text."""
    return json.loads(found) if isinstance(found, str) else found


def test_a_job_comes_back_as_the_contract_says(enqueue: Enqueue, observer: psycopg.Connection[Any]) -> None:
    job = enqueue(JOB)
    assert set(job) == {
        *("id", "kind", "queue", "args", "state", "priority", "attempt", "max_attempts"),
        *("run_at", "created_at", "metadata", "tags"),
    }
    assert (job["kind"], job["queue"], job["state"]) == ("send_email", "default", "available")
    assert (job["priority"], job["attempt"], job["max_attempts"]) == (2, 0, 25)
    assert (value(job["args"]), value(job["metadata"]), job["tags"]) == (
        {"to": "a@example.org", "subject": "hello"},
        {},
        [],
    )
    assert abs(job["created_at"] - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)
    assert observer.execute("SELECT id, state::text FROM awa.jobs").fetchall() == [(job["id"], "available")]


def test_every_option_is_stored(enqueue: Enqueue, observer: psycopg.Connection[Any]) -> None:
    observer.execute("INSERT INTO awa.queues (queue, shards) VALUES ('mail', 8)")
    job = enqueue(
        {"to": "b"},
        kind="custom",
        queue="mail",
        priority=1,
        max_attempts=3,
        tags=["x", "y"],
        metadata={"tenant": "ü", "none": None},
        run_at=RUN_AT,
        ordering_key="customer-1",
    )
    assert (job["state"], job["run_at"], value(job["metadata"])) == (
        "scheduled",
        RUN_AT,
        {"tenant": "ü", "none": None},
    )
    stored = observer.execute(
        "SELECT kind, queue, args, priority, max_attempts, tags, metadata, run_at, shard FROM awa.jobs"
    ).fetchall()
    assert stored == [
        ("custom", "mail", {"to": "b"}, 1, 3, ["x", "y"], {"tenant": "ü", "none": None}, RUN_AT, 3),
    ]


def test_a_due_time_in_the_past_or_without_a_zone_means_what_it_meant(enqueue: Enqueue) -> None:
    assert enqueue(JOB, run_at=dt.datetime(2020, 1, 1, tzinfo=dt.UTC))["state"] == "scheduled"
    assert enqueue(JOB, run_at="2031-05-17T09:30:00")["run_at"] == RUN_AT


def test_what_the_database_refuses_is_an_error_of_the_producers_driver(enqueue: Enqueue) -> None:
    with pytest.raises(Exception, match="priority") as raised:
        enqueue(JOB, priority=9)
    assert not isinstance(raised.value, awa.AwaError)
    assert enqueue(JOB)["state"] == "available"


async def test_our_workers_run_what_such_a_producer_enqueues(database: str) -> None:
    registry, ran = awa.Registry(), []

    @registry.worker(SendEmail)
    async def send(job: awa.Job[SendEmail]) -> None:
        ran.append(job.args)

    def produce() -> int:
        with psycopg.connect(database) as connection:
            return int(older.insert_job_sync(connection, JOB)["id"])

    async with working(database, registry) as (client, _):
        await becomes(client, await trio.to_thread.run_sync(produce), awa.JobState.COMPLETED)
    assert ran == [JOB]


@pytest.mark.parametrize("name", ["SendEmail", "SMTPEmail", "OAuthRefresh", "ProcessV2Import", "HTMLToPDF", "IOError"])
def test_both_derive_the_same_kind(name: str) -> None:
    assert older.derive_kind(name) == derive_kind(name)
