"""One job, enqueued by every path there is: every column is the same."""

import datetime as dt
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any, ClassVar

import attrs
import psycopg
import pytest
import trio
from producers import PRODUCERS, Producer

import awa_actors as awa
from awa_actors.store import cron

pytestmark = pytest.mark.slow

ROW = """
SELECT to_jsonb(j.*) - ARRAY['id', 'created_at'] - CASE WHEN j.state = 'available' THEN 'run_at' ELSE '' END
FROM awa.jobs j WHERE j.id = %s
"""


@attrs.frozen
class Signup:
    queue: ClassVar[str] = "signup"
    user_id: int
    name: str | None = None


JOB = Signup(user_id=2**53 + 1, name='Zoë 😀 \\ "quoted" {}')
RUN_AT = dt.datetime(2031, 5, 17, 9, 30, 0, 250_000, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45)))
STATES = frozenset({awa.JobState.SCHEDULED, awa.JobState.AVAILABLE, awa.JobState.RUNNING})

PLAIN = awa.InsertOpts()
IN_FULL = awa.InsertOpts(
    queue="mail's \\ queue",
    priority=1,
    max_attempts=7,
    run_at=RUN_AT,
    metadata={"tenant": "ü", "nothing": None, "deep": {"a": [1, 2.5, None]}},
    tags=("b", "a,c", 'quo"te', "{}"),
    unique=awa.UniqueOpts(key=b"\x00\xff", states=STATES),
    ordering_key="customer-1",
)
AT_ONCE = attrs.evolve(IN_FULL, run_at=None)
BY_SQL: dict[str, Any] = {
    "queue": "mail's \\ queue",
    "priority": 1,
    "max_attempts": 7,
    "run_at": RUN_AT.isoformat(),
    "metadata": {"tenant": "ü", "nothing": None, "deep": {"a": [1, 2.5, None]}},
    "tags": ["b", "a,c", 'quo"te', "{}"],
    "unique_key": "00ff",
    "unique_states": ["running", "available", "scheduled"],
    "ordering_key": "customer-1",
}


def row_of(connection: psycopg.Connection[Any], job_id: int) -> dict[str, Any]:
    row = connection.execute(ROW, [job_id]).fetchone()
    assert row is not None
    stored: dict[str, Any] = row[0]
    return stored


async def by_client(url: str, opts: awa.InsertOpts) -> list[dict[str, Any]]:
    """The rows of `insert`, `insert_many`, and of both in a transaction."""
    rows = []
    async with awa.open_client(url) as client:
        rows.append(_looked_up(url, await client.insert(JOB, opts)))
        rows.append(_looked_up(url, *await client.insert_many([JOB], opts)))
        async with client.transaction() as tx:
            one = await tx.insert(JOB, opts)
        rows.append(_looked_up(url, one))
        async with client.transaction() as tx:
            many = await tx.insert_many([JOB], opts)
        rows.append(_looked_up(url, *many))
    return rows


def _looked_up(url: str, job: awa.InsertedJob) -> dict[str, Any]:
    """The row of a job, which then makes room for the next one with the same key."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        row = row_of(connection, job.id)
        connection.execute("DELETE FROM awa.job_unique_claims")
    return row


def by_sql(url: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the two functions for other languages."""
    args = json.dumps(attrs.asdict(JOB))
    with closing(psycopg.connect(url)) as connection:
        done = connection.execute(
            "SELECT id FROM awa.insert_job('signup', %s::jsonb, %s::jsonb)", [args, json.dumps(options)]
        ).fetchone()
        assert done is not None
        first = row_of(connection, done[0])
        connection.rollback()
        old = connection.execute(
            """
            SELECT id FROM awa.insert_job_compat(
                'signup', %s, %s::jsonb, %s, %s::smallint, %s::smallint, %s, %s::jsonb, %s, %s, %s::bit(8), %s)
            """,
            [
                options["queue"],
                args,
                "scheduled" if "run_at" in options else "available",
                options.get("priority", 2),
                options.get("max_attempts", 25),
                options.get("run_at"),
                json.dumps(options.get("metadata", {})),
                options.get("tags", []),
                b"\x00\xff" if "unique_key" in options else None,
                "11100000" if "unique_key" in options else None,
                b"customer-1" if "ordering_key" in options else None,
            ],
        ).fetchone()
        assert old is not None
        return [first, row_of(connection, old[0])]


def by_bridges(url: str, opts: awa.InsertOpts) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for name, open_producer in PRODUCERS.items():
        try:
            rows |= by_bridge(url, opts, name, open_producer)
        except pytest.skip.Exception:  # a driver that is not installed here
            continue
    return rows


def by_bridge(
    url: str, opts: awa.InsertOpts, name: str, open_producer: Callable[[str], AbstractContextManager[Producer]]
) -> dict[str, dict[str, Any]]:
    with open_producer(url) as producer:
        rows = {}
        for call in ("insert", "insert_many"):
            done = producer.insert(JOB, opts) if call == "insert" else producer.insert_many([JOB], opts)[0]
            producer.commit()
            rows[f"{name} {call}"] = _looked_up(url, done)
        return rows


@pytest.mark.parametrize(
    ("opts", "options"),
    [
        (PLAIN, {"queue": "signup"}),
        (AT_ONCE, {name: value for name, value in BY_SQL.items() if name != "run_at"}),
        (IN_FULL, BY_SQL),
    ],
    ids=["plain", "at once", "in full"],
)
def test_every_path_stores_the_same_row(database: str, opts: awa.InsertOpts, options: dict[str, Any]) -> None:
    if "ordering_key" in options:
        with closing(psycopg.connect(database, autocommit=True)) as connection:
            connection.execute("INSERT INTO awa.queues (queue, shards) SELECT %s, 8", [options["queue"]])
    expected, *others = trio.run(by_client, database, opts)
    assert expected["args"] == attrs.asdict(JOB)
    assert expected["shard"] == (3 if "ordering_key" in options else 0)
    bridges = by_bridges(database, opts)
    assert len(bridges) >= 2 * (len(PRODUCERS) - 1)
    for row in [*others, *bridges.values(), *by_sql(database, options)]:
        assert row == expected


def test_a_deadline_is_the_same_by_every_path_that_has_one(database: str) -> None:
    opts = awa.InsertOpts(deadline=90.5)
    rows = by_bridges(database, opts)
    with closing(psycopg.connect(database)) as connection:
        done = connection.execute("""SELECT id FROM awa.insert_job('signup', '{}', '{"deadline": 90.5}')""").fetchone()
        assert done is not None
        rows["sql"] = row_of(connection, done[0])
    assert {row["deadline_ms"] for row in rows.values()} == {90_500}


@pytest.mark.parametrize("opts", [awa.InsertOpts(queue="signup"), AT_ONCE], ids=["plain", "at once"])
async def test_a_schedule_loses_none_of_the_options(database: str, opts: awa.InsertOpts) -> None:
    registry = awa.Registry()
    registry.cron("yearly", "0 3 1 1 *", JOB, opts)
    async with awa.open_client(database) as client:
        async with client.pool.acquire() as session:
            for spec in registry.schedules.values():
                await cron.declare(session, "application", spec, fresh=True)
        fired = _looked_up(database, await client.admin.cron_trigger("yearly"))
        expected = _looked_up(database, await client.insert(JOB, opts))
    for name in ("cron_name", "cron_fire_time", "triggered_manually"):
        del fired["metadata"][name]
    assert fired == expected
