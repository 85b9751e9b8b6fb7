"""Many resolve one callback at once, over and over: one transition, and one set of follow-ups."""

from __future__ import annotations

import functools
import random
from collections.abc import Awaitable, Callable

import attrs
import psycopg
import pytest
import trio
from callback_jobs import registered

import awa_actors as awa
from awa_actors.errors import CallbackNotFound, TransientStoreError
from awa_actors.store.rescue import sweep

ROUNDS, AT_ONCE = 60, 20


@attrs.frozen
class Errand:
    n: int = 0


@attrs.frozen
class Next:
    what: str


def following() -> awa.Registry:
    registry = awa.Registry()

    @registry.on_completed_enqueue(Errand)
    def completed(event: awa.events.Completed[Errand]) -> Next:
        return Next("complete")

    @registry.on_exhausted_enqueue(Errand)
    def exhausted(event: awa.events.Exhausted[Errand]) -> Next:
        return Next("fail")

    @registry.on_retried_enqueue(Errand)
    def retried(event: awa.events.Retried[Errand]) -> Next:
        return Next("retry")

    return registry


@pytest.mark.stress
@pytest.mark.parametrize("state", ["parked", "inside"])
async def test_twenty_at_once_make_one_transition_and_one_set_of_follow_ups(database: str, state: str) -> None:
    dice = random.Random(7)
    with psycopg.connect(database, autocommit=True) as connection:
        async with awa.open_client(database, registry=following()) as client:
            for _ in range(ROUNDS):
                job = registered(connection, state)
                connection.execute("UPDATE awa_queue.callbacks SET timeout_at = now() - interval '1 s'")
                before = connection.execute("SELECT count(*) FROM awa.jobs WHERE kind = 'next'").fetchone()
                won: list[str] = []

                async def expire() -> None:
                    async with client.pool.acquire() as session:
                        if not await sweep(session, 10, 5, 5.0):
                            raise CallbackNotFound

                async def cancel(job_id: int = job.job_id) -> None:
                    async with client.transaction() as tx:
                        # Only while it waits: the job that a retry made available is fair game for a later cancel.
                        if not await tx.fetchval(
                            "SELECT awa.cancel_job($1) FROM awa_queue.leases WHERE job_id = $1 FOR UPDATE", job_id
                        ):
                            raise CallbackNotFound

                verbs: dict[str, Callable[[], Awaitable[object]]] = {
                    "complete": functools.partial(client.complete_external, job.callback_id, 1),
                    "fail": functools.partial(client.fail_external, job.callback_id, "no"),
                    "retry": functools.partial(client.retry_external, job.callback_id),
                    "expire": expire,
                    "cancel": cancel,
                }

                async def attempt(name: str, run: Callable[[], Awaitable[object]], won: list[str] = won) -> None:
                    try:
                        await run()
                        won.append(name)
                    except (CallbackNotFound, TransientStoreError):
                        return

                async with trio.open_nursery() as nursery:
                    for name in dice.choices(list(verbs), k=AT_ONCE):
                        nursery.start_soon(attempt, name, verbs[name])
                assert len(won) == 1, won
                after = connection.execute("SELECT count(*) FROM awa.jobs WHERE kind = 'next'").fetchone()
                assert before is not None
                assert after is not None
                assert after[0] - before[0] == (won[0] in ("complete", "fail", "retry"))
