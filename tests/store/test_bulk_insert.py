"""Many jobs at once: in their order, all or none, and beside others who do the same."""

import datetime as dt
from typing import Any, ClassVar

import attrs
import pytest
import trio
import trio.testing

import awa_actors as awa
from awa_actors.config import DatabaseSettings
from awa_actors.store import bulk, insert

LIMIT = 10.0


@attrs.frozen
class Signup:
    queue: ClassVar[str] = "signup"
    user_id: Any


@attrs.frozen
class SendWelcome:
    to: str


def large_jobs(count: int) -> list[Signup]:
    return [Signup(user_id=f"{n:02}" + "x" * 100_000) for n in range(count)]


UNIQUE = awa.InsertOpts(unique=awa.UniqueOpts())


async def ask(client: awa.Client, sql: str, *args: Any) -> Any:
    async with client.transaction() as tx:
        return await tx.fetchval(sql, *args)


async def nothing_is_stored(client: awa.Client) -> bool:
    tables = "(SELECT job_id FROM awa_queue.bodies) UNION ALL (SELECT job_id FROM awa_queue.ready)"
    more = "(SELECT job_id FROM awa_queue.deferred_jobs) UNION ALL (SELECT job_id FROM awa.job_unique_claims)"
    return bool(await ask(client, f"SELECT count(*) = 0 FROM ({tables} UNION ALL {more}) t"))


@pytest.mark.slow
async def test_ten_thousand_mixed_jobs_keep_their_order(database: str) -> None:
    jobs = [Signup(user_id=n) if n % 3 else SendWelcome(to=str(n)) for n in range(10_000)]
    async with awa.open_client(database) as client:
        done = await client.insert_many(jobs)
        assert [(job.kind, job.queue) for job in done] == [
            ("signup", "signup") if n % 3 else ("send_welcome", "default") for n in range(10_000)
        ]
        ids = [job.id for job in done]
        assert ids == sorted(set(ids))
        async with client.transaction() as tx:
            rows = await tx.fetch("SELECT id, args ->> 'user_id', args ->> 'to' FROM awa.jobs ORDER BY id")
        assert [tuple(row) for row in rows] == [
            (job_id, str(n), None) if n % 3 else (job_id, None, str(n)) for n, job_id in enumerate(ids)
        ]


@pytest.mark.slow
async def test_ten_thousand_unique_jobs_with_duplicates_are_each_stored_once(database: str) -> None:
    returning = awa.InsertOpts(unique=awa.UniqueOpts(on_conflict=awa.OnConflict.RETURN_EXISTING))
    async with awa.open_client(database) as client:
        done = await client.insert_many((Signup(user_id=n % 7_000) for n in range(10_000)), returning)
        assert [job.inserted for job in done] == [True] * 7_000 + [False] * 3_000
        assert [job.id for job in done[7_000:]] == [job.id for job in done[:3_000]]
        assert await ask(client, "SELECT count(*) FROM awa.jobs") == 7_000


@pytest.mark.parametrize("bad", [0, 6_000, 9_999])
async def test_one_bad_job_among_ten_thousand_is_named_and_nothing_is_written(database: str, bad: int) -> None:
    jobs = [Signup(user_id="a\x00b" if n == bad else n) for n in range(10_000)]
    async with awa.open_client(database) as client:
        with pytest.raises(awa.ValidationError) as raised:
            await client.insert_many(jobs)
        assert raised.value.path == f"$[{bad}].user_id"
        assert await nothing_is_stored(client)


async def test_a_refusal_in_a_late_statement_takes_the_earlier_ones_with_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PIECE", 10)
    async with awa.open_client(database) as client:
        async with client.transaction() as tx:
            await tx.execute("""ALTER TABLE awa_queue.bodies ADD CONSTRAINT no_95 CHECK (args <> '{"user_id": 95}')""")
        with pytest.raises(awa.ValidationError, match="no_95"):
            await client.insert_many([Signup(user_id=n) for n in range(100)])
        assert await nothing_is_stored(client)
        assert len(await client.insert_many([Signup(user_id=n) for n in range(95)])) == 95


async def test_one_bad_job_after_many_large_ones_leaves_nothing(database: str) -> None:
    jobs = [*large_jobs(40), Signup(user_id="a\x00b")]
    async with awa.open_client(database) as client:
        with pytest.raises(awa.ValidationError) as raised:
            await client.insert_many(jobs)
        assert raised.value.path == "$[40].user_id"
        assert await nothing_is_stored(client)
        done = await client.insert_many(jobs[:40])
        assert [(await client.admin.job(job.id)).args["user_id"][:2] for job in done] == [f"{n:02}" for n in range(40)]


async def test_no_more_than_three_statements_of_large_args_are_held_at_a_time() -> None:
    class Stuck:
        sent: ClassVar[list[list[str]]] = []

        async def fetchrow(self, sql: str, *values: Any) -> Any:
            self.sent.append(values[0])
            await trio.sleep_forever()

    stuck: Any = Stuck()
    pieces = bulk.Pieces(large_jobs(100), None, 1_000_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bulk.insert_many, stuck, await pieces.encode(), pieces)
        await trio.testing.wait_all_tasks_blocked()
        # One is being stored, one waits for its turn, one waits for the room to wait in.
        assert [sum(map(len, args)) <= insert.CHUNK_CHARACTERS for args in Stuck.sent] == [True]
        assert 100 - pieces.left == 3 * len(Stuck.sent[0]) == 30
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("opts", [None, awa.InsertOpts(tags=["a"]), awa.InsertOpts(run_at=dt.timedelta(1)), UNIQUE])
async def test_the_server_writes_no_file_for_large_args(database: str, opts: awa.InsertOpts | None) -> None:
    jobs = insert.admit_many(large_jobs(40), opts)
    async with awa.open_client(database) as client, client.pool.acquire() as session, session.transaction():
        await session.execute("SET LOCAL work_mem = '1MB'")
        await session.execute("SET LOCAL temp_file_limit = 0")
        assert len(await bulk.insert_jobs(session, jobs)) == 40


async def test_a_conflict_in_a_batch_leaves_nothing_of_it(database: str) -> None:
    async with awa.open_client(database) as client:
        holder = await client.insert(Signup(user_id=70), UNIQUE)
        with pytest.raises(awa.UniqueConflict) as raised:
            await client.insert_many([Signup(user_id=n) for n in range(100)], UNIQUE)
        assert raised.value.existing_job_id == holder.id
        assert await ask(client, "SELECT count(*) FROM awa.job_unique_claims") == 1


async def test_a_conflict_leaves_the_clients_transaction_usable(database: str) -> None:
    async with awa.open_client(database) as client:
        async with client.transaction() as tx:
            first = await tx.insert(Signup(user_id=1), UNIQUE)
            with pytest.raises(awa.UniqueConflict) as raised:
                await tx.insert(Signup(user_id=1), UNIQUE)
            with pytest.raises(awa.UniqueConflict):
                await tx.insert_many([Signup(user_id=2), Signup(user_id=1)], UNIQUE)
            second = await tx.insert(Signup(user_id=2), UNIQUE)
        assert raised.value.existing_job_id == first.id
        assert [(await client.admin.job(job.id)).state for job in (first, second)] == [awa.JobState.AVAILABLE] * 2


async def test_an_insert_of_one_names_no_index(database: str) -> None:
    async with awa.open_client(database) as client:
        with pytest.raises(awa.ValidationError) as raised:
            await client.insert(Signup(user_id="\ud800"))
        assert raised.value.path == "$.user_id"


@pytest.mark.slow
async def test_the_same_keys_in_opposite_order_do_not_deadlock(database: str) -> None:
    # More than go into one statement otherwise.
    size = insert.CHUNK_JOBS + 1_000
    returning = awa.InsertOpts(unique=awa.UniqueOpts(on_conflict=awa.OnConflict.RETURN_EXISTING))
    done: list[list[awa.InsertedJob]] = []

    async def produce(client: awa.Client, order: range) -> None:
        done.append(await client.insert_many([Signup(user_id=n) for n in order], returning))

    async with awa.open_client(database) as client:
        with trio.fail_after(4 * LIMIT):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce, client, range(size))
                nursery.start_soon(produce, client, range(size - 1, -1, -1))
        assert sum(job.inserted for jobs in done for job in jobs) == size
        assert [job.id for job in done[0]] == [job.id for job in reversed(done[1])]


async def test_producers_with_open_transactions_do_not_wait_for_one_another(database: str) -> None:
    async with (
        awa.open_client(database, settings=DatabaseSettings(lock_timeout=0.2)) as client,
        client.transaction() as first,
        client.transaction() as second,
    ):
        with trio.fail_after(LIMIT):
            await first.insert_many([Signup(user_id=n) for n in range(100)], UNIQUE)
            await second.insert_many([Signup(user_id=n) for n in range(100, 200)], UNIQUE)
            await first.insert(Signup(user_id=1), awa.InsertOpts(queue="never seen before"))
            await second.insert(Signup(user_id=1), awa.InsertOpts(queue="never seen before"))
        with pytest.raises(awa.TransientStoreError, match="55P03"):
            await second.insert(Signup(user_id=1), UNIQUE)


async def test_a_value_the_driver_refuses_costs_neither_the_connection_nor_the_transaction(database: str) -> None:
    async with awa.open_client(database, settings=DatabaseSettings(pool_size=1)) as client:
        async with client.transaction() as tx:
            before = await tx.fetchval("SELECT pg_backend_pid()")
            with pytest.raises(awa.ValidationError, match="invalid input for query argument"):
                await tx.fetchval("SELECT $1::int", "seven")
            await tx.insert(Signup(user_id=1))
        assert await ask(client, "SELECT pg_backend_pid()") == before


async def test_a_bulk_insert_that_is_cancelled_leaves_nothing(database: str) -> None:
    async with awa.open_client(database) as client:
        for steps in (1, 5, 25, 60):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(client.insert_many, [Signup(user_id=n) for n in range(6_000)])
                    await trio.testing.wait_all_tasks_blocked()
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            assert await nothing_is_stored(client)


async def test_what_args_raise_while_they_are_encoded_comes_out_bare(database: str) -> None:
    async with awa.open_client(database) as client:
        with pytest.raises(awa.UsageError, match="job 5100"):
            await client.insert_many([Signup(user_id=n) if n != 5_100 else object() for n in range(6_000)])
        assert await nothing_is_stored(client)


@pytest.mark.parametrize("longest", [0, 5_000])
async def test_awkward_args_come_back_as_they_were(database: str, longest: int) -> None:
    # Short args are sent in another form than long ones.
    texts = [
        "",
        "\\",
        '"',
        "\\N",
        "{}",
        "{a,b}",
        "NULL",
        "a\tb\nc\rd",
        "ü€𝄞",
        "\x7f\x01",
        "x" * longest,
        "\\\\t",
        '\\"',
    ]
    async with awa.open_client(database) as client:
        done = await client.insert_many([Signup(user_id=text) for text in texts])
        found = [(await client.admin.job(job.id)).args["user_id"] for job in done]
    assert found == texts
