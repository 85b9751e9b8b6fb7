"""The loop that Trio turns under the driver: timers, threads, cancellation, other loops in the process, its end."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import trio
from at_work import LIMIT

from awa_actors.config import DatabaseSettings
from awa_actors.store.loop import open_driver_loop, run_driver, run_statement
from awa_actors.store.pool import Pool

Await = Callable[[asyncio.AbstractEventLoop, Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


async def driven(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await run_statement(loop, coroutine, lambda: None, 30.0)


async def tasked(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await run_driver(loop, coroutine, None)


both_ways = pytest.mark.parametrize("wait_for", [driven, tasked])


@both_ways
async def test_timers_fire_in_their_order(wait_for: Await) -> None:
    async def sleep() -> str:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        fired: list[str] = []
        loop.call_later(0.02, lambda: ended.set_result(" and ".join([*fired, "second"])))
        loop.call_later(0.01, fired.append, "first")
        await asyncio.sleep(0)
        return await ended

    with trio.fail_after(LIMIT):
        async with open_driver_loop() as loop:
            assert await wait_for(loop, sleep()) == "first and second"


@both_ways
async def test_what_a_thread_answers_arrives(wait_for: Await) -> None:
    async def look_up() -> int:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: 42)

    with trio.fail_after(LIMIT):
        async with open_driver_loop() as loop:
            assert await wait_for(loop, look_up()) == 42


@both_ways
async def test_what_a_coroutine_raises_comes_out_and_no_loop_is_left_running(wait_for: Await) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("of the coroutine")

    async with open_driver_loop() as loop:
        with pytest.raises(LookupError, match="of the coroutine"):
            await wait_for(loop, fail())
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()


@both_ways
async def test_a_cancelled_coroutine_is_cancelled_once_and_waited_for(wait_for: Await) -> None:
    seen: list[str] = []
    scope = trio.CancelScope()

    async def reluctant() -> None:
        asyncio.get_running_loop().call_soon(scope.cancel)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            seen.append("cancelled")
            await asyncio.sleep(0)
            seen.append("cleaned up")
            raise

    with trio.fail_after(LIMIT):
        async with open_driver_loop() as loop:
            with scope:
                await wait_for(loop, reluctant())
    assert scope.cancelled_caught
    assert seen == ["cancelled", "cleaned up"]


async def test_the_loop_turns_for_shielded_statements_of_a_cancelled_body() -> None:
    async with open_driver_loop() as loop:
        with trio.CancelScope() as scope:
            scope.cancel()
            with trio.CancelScope(shield=True), trio.fail_after(LIMIT):
                assert await driven(loop, asyncio.sleep(0.01, "done")) == "done"


async def test_a_task_that_outlives_the_body_is_cancelled_and_its_cleanup_runs() -> None:
    seen: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")

    with trio.fail_after(LIMIT):
        async with open_driver_loop() as loop:
            left = loop.create_task(forever())
            await tasked(loop, asyncio.sleep(0))
    assert left.cancelled()
    assert seen == ["cleaned up"]


async def test_the_body_s_own_error_comes_out_bare() -> None:
    with pytest.raises(LookupError):
        async with open_driver_loop():
            raise LookupError


async def test_a_statement_in_a_cancelled_scope_is_not_sent_and_leaves_the_connection_whole(
    empty_database: str,
) -> None:
    async with open_driver_loop() as loop:
        pool = Pool(empty_database, DatabaseSettings(pool_size=1), loop)
        async with pool.acquire() as session:
            with trio.CancelScope() as scope:
                scope.cancel()
                await session.fetchval("SELECT 1")
            assert scope.cancelled_caught
            assert not session.broken
            assert await session.fetchval("SELECT 2") == 2
        await pool.close()


BESIDE_OTHERS = """
import asyncio, sys, trio
from awa_actors.config import DatabaseSettings
from awa_actors.store.loop import open_driver_loop
from awa_actors.store.pool import Pool

async def use():
    async with open_driver_loop({turned}) as loop:
        pool = Pool(sys.argv[1], DatabaseSettings(pool_size=1), loop)
        async with pool.acquire() as session, session.transaction():
            assert await session.fetchval("SELECT 1") == 1
        with trio.move_on_after(0.05) as scope:
            async with pool.acquire() as session:
                await session.fetchval("SELECT pg_sleep(60)")
        assert scope.cancelled_caught
        async with pool.acquire() as session:
            assert await session.fetchval("SELECT 2") == 2
        await pool.close()

{beside}
print("fine")
"""
PLAIN = """
trio.run(use)
assert "trio_asyncio" not in sys.modules
"""
INSIDE_TRIO_ASYNCIO = """
import trio_asyncio
async def main():
    async with trio_asyncio.open_loop() as other:
        await use()
        assert asyncio.get_running_loop() is other
        await trio_asyncio.aio_as_trio(asyncio.sleep)(0)
trio.run(main)
"""
AS_A_GUEST = """
async def host():
    ended = asyncio.get_running_loop().create_future()
    trio.lowlevel.start_guest_run(
        use, run_sync_soon_threadsafe=asyncio.get_running_loop().call_soon_threadsafe, done_callback=ended.set_result)
    (await ended).unwrap()
    assert asyncio.get_running_loop()
asyncio.run(host())
"""


@pytest.mark.parametrize(
    ("beside", "turned"),
    [(PLAIN, True), (INSIDE_TRIO_ASYNCIO, True), (INSIDE_TRIO_ASYNCIO, False), (AS_A_GUEST, True)],
    ids=["alone", "in a loop of trio_asyncio's", "on a loop of trio_asyncio's", "Trio as a guest of asyncio"],
)
def test_it_works_beside_what_else_runs_asyncio(empty_database: str, beside: str, turned: bool) -> None:
    script = BESIDE_OTHERS.format(beside=beside, turned=turned)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, empty_database], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")
