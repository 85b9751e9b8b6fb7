"""The pool: whatever is cancelled, killed or frozen, it hands out whole connections and can be closed."""

import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import attrs
import psycopg
import pytest
import trio
from at_work import LIMIT
from freezing_proxy import freezing_proxy

from awa_actors.config import DatabaseSettings
from awa_actors.errors import TransientStoreError, UsageError
from awa_actors.store.loop import open_driver_loop
from awa_actors.store.pool import Pool, Session


@asynccontextmanager
async def open_pool(url: str, size: int = 3, **settings: float) -> AsyncIterator[Pool]:
    """A pool, closed at the end in less than two seconds."""
    async with open_driver_loop() as loop:
        pool = Pool(url, DatabaseSettings(pool_size=size, **settings), loop)  # type: ignore[arg-type]  # floats all
        try:
            yield pool
        finally:
            began = time.monotonic()
            await pool.close()
            assert time.monotonic() - began < 2.0


async def all_whole(pool: Pool) -> None:
    """As many queries at once as the pool has connections, none of them in a transaction that somebody left."""
    held: list[Session] = []
    together = trio.Event()

    async def query() -> None:
        async with pool.acquire() as session:
            assert await session.fetchval("SELECT 1") == 1
            assert not session.raw.is_in_transaction()
            held.append(session)
            if len(held) == pool.settings.pool_size:
                together.set()
            await together.wait()

    with trio.fail_after(LIMIT):
        async with trio.open_nursery() as nursery:
            for _ in range(pool.settings.pool_size):
                nursery.start_soon(query)


def locks(url: str) -> list[tuple[object, ...]]:
    """What any session holds on the table of these tests."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(
            "SELECT l.pid, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation WHERE c.relname = 'things'"
        ).fetchall()


@attrs.define(eq=False)
class Mischief:
    """Uses of a connection that a cancellation may hit anywhere."""

    pool: Pool
    done: int = 0

    async def query(self) -> None:
        async with self.pool.acquire() as session:
            await session.fetch("SELECT pg_sleep(0.002)")

    async def write(self) -> None:
        async with self.pool.acquire() as session, session.transaction():
            await session.execute("UPDATE things SET n = n + 1")
            await session.fetch("SELECT pg_sleep(0.001)")

    async def fail(self) -> None:
        with contextlib.suppress(UsageError):
            async with self.pool.acquire() as session, session.transaction():
                await session.execute("UPDATE things SET n = n + 1")
                raise UsageError("the body breaks")

    async def open_and_close(self) -> None:
        session = await self.pool.connect("short-lived")
        try:
            await session.fetchval("SELECT 1")
        finally:
            await session.close()

    async def after(self, seconds: float, use: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(seconds):
            await use()
            self.done += 1


@pytest.mark.parametrize("instants", [60, pytest.param(300, marks=pytest.mark.slow)])
async def test_operations_cancelled_at_any_instant_leave_the_pool_whole(empty_database: str, instants: int) -> None:
    dice = random.Random(115)
    with psycopg.connect(empty_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE things AS SELECT 0 AS n")
    async with open_pool(empty_database) as pool:
        mischief = Mischief(pool)
        began = trio.current_time()
        await mischief.open_and_close()
        await mischief.write()
        usual = trio.current_time() - began
        uses = [mischief.query, mischief.write, mischief.fail, mischief.open_and_close]
        for _ in range(instants // 3):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(mischief.after, dice.uniform(0, 2 * usual), dice.choice(uses))
        assert 0 < mischief.done < instants, "some were cancelled and some were not"
        await all_whole(pool)
        assert locks(empty_database) == []


async def test_a_cancelled_statement_ends_on_the_server_and_its_connection_is_not_used_again(
    empty_database: str,
) -> None:
    async with open_pool(empty_database, size=1) as pool:
        async with pool.acquire() as session:
            first = session
            with trio.move_on_after(0.05) as scope:
                await session.fetchval("SELECT pg_sleep(60)")
            assert scope.cancelled_caught
            assert session.broken
        async with pool.acquire() as session:
            assert session is not first
            sleeping = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
            with trio.fail_after(3.0):
                while await session.fetchval(sleeping):
                    await trio.lowlevel.checkpoint()


async def test_a_transaction_whose_body_is_cancelled_is_rolled_back(empty_database: str) -> None:
    async with open_pool(empty_database, size=1) as pool:
        async with pool.acquire() as session:
            await session.execute("CREATE TABLE things (n int)")
        with trio.CancelScope() as scope:
            async with pool.acquire() as session, session.transaction():
                await session.execute("INSERT INTO things VALUES (1)")
                scope.cancel()
                await trio.lowlevel.checkpoint()
        async with pool.acquire() as again:
            assert again is session, "a rollback is enough: nothing was interrupted"
            assert await again.fetchval("SELECT count(*) FROM things") == 0


async def test_a_commit_that_has_begun_is_not_cancelled(empty_database: str) -> None:
    async with open_pool(empty_database, size=1) as pool:
        async with pool.acquire() as session:
            await session.execute("CREATE TABLE things (n int)")
        with trio.CancelScope() as scope:
            async with pool.acquire() as session, session.transaction():
                await session.execute("INSERT INTO things VALUES (1)")
                scope.cancel()  # nothing waits between here and the commit
        async with pool.acquire() as session:
            assert await session.fetchval("SELECT count(*) FROM things") == 1


async def test_a_body_that_left_a_transaction_open_by_hand_gives_back_a_clean_connection(empty_database: str) -> None:
    async with open_pool(empty_database, size=1) as pool:
        async with pool.acquire() as session:
            await session.execute("BEGIN")
        async with pool.acquire() as session:
            assert not session.raw.is_in_transaction()


async def test_two_tasks_on_one_connection_are_refused_and_the_first_goes_on(empty_database: str) -> None:
    async with open_pool(empty_database, size=1) as pool, pool.acquire() as session:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.fetch, "SELECT pg_sleep(0.1)")
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(UsageError, match="two tasks use one connection"):
                await session.fetchval("SELECT 1")
        assert await session.fetchval("SELECT 2") == 2


async def test_a_pool_never_opens_more_than_its_size_and_hands_out_in_turn(empty_database: str) -> None:
    sessions = set[int]()

    async def use(pool: Pool) -> None:
        async with pool.acquire() as session:
            sessions.add(await session.fetchval("SELECT pg_backend_pid()"))

    async with open_pool(empty_database, size=2) as pool, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(use, pool)
    assert 1 <= len(sessions) <= 2


async def test_a_connection_that_was_killed_is_replaced(empty_database: str) -> None:
    async with open_pool(empty_database, size=1) as pool:
        async with pool.acquire() as session:
            pid = await session.fetchval("SELECT pg_backend_pid()")
        with psycopg.connect(empty_database, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", [pid])
        for _ in range(2):  # the first use may be the one that finds out
            try:
                async with pool.acquire() as session:
                    assert await session.fetchval("SELECT pg_backend_pid()") != pid
            except TransientStoreError:
                continue
            break
        else:
            pytest.fail("the pool kept handing out a dead connection")


async def test_a_server_that_stops_answering_is_given_up_within_the_deadline(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("awa_actors.store.pool.ANSWER_MARGIN", 0.1)
    async with freezing_proxy(empty_database) as proxy, open_pool(proxy.url, size=1, statement_timeout=0.3) as pool:
        async with pool.acquire() as session:
            assert await session.fetchval("SELECT 1") == 1
            proxy.freeze_open("pool")
            began = trio.current_time()
            with pytest.raises(TransientStoreError, match="did not answer in time"):
                await session.fetchval("SELECT 1")
            assert trio.current_time() - began < 3.0
        await all_whole(pool)


@pytest.mark.slow
async def test_a_frozen_connection_does_not_hold_up_the_close(empty_database: str) -> None:
    async with freezing_proxy(empty_database) as proxy, open_driver_loop() as loop:
        pool = Pool(proxy.url, DatabaseSettings(pool_size=3), loop)
        await all_whole(pool)
        proxy.freeze("pool")
        with trio.fail_after(4.0):
            await pool.close()


async def test_a_connect_that_hangs_can_be_cancelled(empty_database: str) -> None:
    async with freezing_proxy(empty_database) as proxy, open_pool(proxy.url) as pool:
        proxy.freeze("pool")
        with trio.fail_after(2.0), trio.move_on_after(0.1) as scope:
            async with pool.acquire():
                raise AssertionError("there is nobody to connect to")
        assert scope.cancelled_caught
        proxy.thaw()
        await all_whole(pool)


async def test_a_closed_pool_says_so(empty_database: str) -> None:
    async with open_pool(empty_database) as pool:
        await pool.close()
        with pytest.raises(UsageError, match="the client is closed"):
            async with pool.acquire():
                raise AssertionError("must not be handed out")


@pytest.mark.slow
async def test_a_long_statement_can_be_cancelled_again_and_again(empty_database: str) -> None:
    async with open_pool(empty_database, size=2) as pool:
        for _ in range(50):
            began = trio.current_time()
            with trio.move_on_after(0.02):
                async with pool.acquire() as session:
                    await session.fetchval("SELECT pg_sleep(60)")
            assert trio.current_time() - began < 3.0
        await all_whole(pool)
