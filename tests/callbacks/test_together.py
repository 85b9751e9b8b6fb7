"""Many completions in one transaction: each ends as if it had come alone."""

import uuid

import attrs
import psycopg
import trio
from callback_jobs import found, registered

import awa_actors as awa
from awa_actors.errors import CallbackNotFound
from awa_actors.store.resolve import Resolved, complete
from awa_actors.store.resolve_together import Done, complete_together


@attrs.frozen
class Errand:
    n: int = 0


@attrs.frozen
class Next:
    of: int


async def test_each_of_many_completions_gets_its_own_answer(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        jobs = [registered(connection, state) for state in ("parked", "running", "inside")]
        resolutions = [complete(job.callback_id, {"n": n}) for n, job in enumerate(reversed(jobs))]
        resolutions.insert(1, complete(str(uuid.uuid4())))
        resolutions.append(resolutions[0])  # twice: the second one comes too late
        async with awa.open_client(database) as client, client.pool.acquire() as session:
            answers = await complete_together(session, awa.Registry(), resolutions)
        assert [type(one) for one in answers] == [Resolved, CallbackNotFound, Resolved, Done, CallbackNotFound]
        done = connection.execute(
            "SELECT id, result FROM awa.jobs WHERE state = 'completed' ORDER BY id DESC"
        ).fetchall()
        assert done == [(job.job_id, {"n": n}) for n, job in enumerate(reversed(jobs))]
        assert answers[3] == Done(jobs[0].job_id)


async def test_what_something_follows_from_is_left_untouched(database: str) -> None:
    registry = awa.Registry()
    registry.on_completed_enqueue(Errand)(lambda event: Next(event.args.n))
    with psycopg.connect(database, autocommit=True) as connection:
        jobs = [registered(connection, "parked") for _ in range(3)]
    async with awa.open_client(database, registry=registry) as client:
        async with client.pool.acquire() as session:
            resolutions = [complete(job.callback_id) for job in jobs]
            assert await complete_together(session, registry, resolutions) == [None] * 3
        for job in jobs:
            await client.complete_external(job.callback_id)
        async with client.transaction() as tx:
            assert await tx.fetchval("SELECT count(*) FROM awa.jobs WHERE kind = 'next'") == 3


async def test_a_callback_that_a_stranger_has_locked_holds_up_no_other(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection, psycopg.connect(database) as stranger:
        held, free = (registered(connection, "parked") for _ in range(2))
        stranger.execute("SELECT awa_queue.open_callback(%s)", [held.callback_id])
        async with awa.open_client(database) as client, client.pool.acquire() as session:
            with trio.fail_after(5.0):
                resolutions = [complete(held.callback_id), complete(free.callback_id)]
                answers = await complete_together(session, awa.Registry(), resolutions)
            assert answers[0] is None
            assert answers[1] == Done(free.job_id)
            stranger.rollback()
            assert await complete_together(session, awa.Registry(), resolutions[:1]) == [Done(held.job_id)]


async def test_what_is_unusual_among_them_ends_as_if_it_had_come_alone(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        keyed = registered(connection, "parked", unique_key="aa")
        noted, plain, followed = (registered(connection, "parked") for _ in range(3))
        connection.execute("UPDATE awa_queue.leases SET metadata = '{\"n\": 1}' WHERE job_id = %s", [noted.job_id])
        connection.execute("UPDATE awa_queue.bodies SET kind = 'told' WHERE job_id = %s", [followed.job_id])
        connection.execute(
            "INSERT INTO awa.follow_up_specs (application, name, version, kind, outcome, definition)"
            " VALUES ('shop', 'tell', 1, 'told', 'completed', '{}')"
        )
        async with awa.open_client(database) as client, client.pool.acquire() as session:
            resolutions = [complete(job.callback_id) for job in (keyed, noted, plain, followed)]
            answers = await complete_together(session, awa.Registry(), resolutions)
        assert [type(one) for one in answers] == [Resolved, Resolved, Done, type(None)]
        assert found(connection, noted.job_id)["metadata"] == {"n": 1}
        assert found(connection, followed.job_id)["state"] == "waiting_external"
        assert connection.execute("SELECT count(*) FROM awa_queue.callbacks").fetchone() == (1,)


async def test_one_that_cannot_be_written_takes_no_other_along(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        broken, good = (registered(connection, "parked") for _ in range(2))
        async with awa.open_client(database) as client, client.pool.acquire() as session:
            bad = attrs.evolve(complete(broken.callback_id), arguments=(broken.callback_id, "not JSON"))
            answers = await complete_together(session, awa.Registry(), [bad, complete(good.callback_id)])
        assert answers[0] is None
        assert isinstance(answers[1], Resolved)
        assert found(connection, broken.job_id)["state"] == "waiting_external"
