"""Jobs that are claimed and ended over and over by the store's own verbs, without a worker: load beside maintenance."""

import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import trio

import awa_actors as awa
from awa_actors.store.claim import Claimed, claim
from awa_actors.store.complete import complete
from awa_actors.store.instances import Identity, register
from awa_actors.store.pool import Session
from awa_actors.store.settle import settle

Ending = Callable[[random.Random], dict[str, Any] | None]
"""What becomes of an attempt: what `settle` is told, or None for a completion."""

RETRY: Ending = lambda dice: {"state": "retryable", "delay": dice.random() / 50, "error": "again"}  # noqa: E731 - a table
SNOOZE: Ending = lambda dice: {"state": "scheduled", "delay": dice.random() / 50, "uncount": True, "snooze": True}  # noqa: E731
GIVE_BACK: Ending = lambda dice: {"give_back": True}  # noqa: E731
FAIL: Ending = lambda dice: {"state": "failed", "error": "no", "terminal": True, "reason": "terminal_error"}  # noqa: E731
COMPLETE: Ending = lambda dice: None  # noqa: E731
NEVER_ENDING = (RETRY, SNOOZE, GIVE_BACK)


async def new_instance(session: Session, stale_after: float = 30.0) -> uuid.UUID:
    """Register a process that claims."""
    instance = uuid.uuid4()
    await register(session, Identity(instance, "worker", "test", 1, "0", stale_after, (), {}, {}))
    return instance


async def take(session: Session, instance: uuid.UUID, queue: str, limit: int = 20) -> list[Claimed]:
    """Claim without hints and limits."""
    claimed = await claim(session, queue, limit, instance, max_bytes=1_000_000, aging=0.0, deadline=None, hints=[])
    return claimed.attempts


async def end(
    session: Session, instance: uuid.UUID, attempts: Sequence[Claimed], endings: Sequence[Ending], dice: random.Random
) -> None:
    """End attempts, each in one of these ways."""
    completed, others = [], []
    for attempt in attempts:
        outcome = dice.choice(endings)(dice)
        if outcome is None:
            completed.append(attempt)
        else:
            others.append({"job_id": attempt.job_id, "run_lease": attempt.run_lease, **outcome})
    if completed:
        await complete(
            session, instance, [one.job_id for one in completed], [one.run_lease for one in completed],
            [one.lslot for one in completed],
        )  # fmt: skip
    if others:
        await settle(session, instance, others)


async def work(client: awa.Client, queues: Sequence[str], endings: Sequence[Ending], seed: int) -> None:
    """Claim and end until cancelled; every statement is whole or not at all."""
    dice = random.Random(seed)
    async with client.pool.acquire() as session:
        instance = await new_instance(session)
        while True:
            attempts = await take(session, instance, dice.choice(queues), dice.randint(1, 20))
            await trio.lowlevel.checkpoint()
            await end(session, instance, attempts, endings, dice)


async def again_and_again(step: Callable[[], Any]) -> None:
    """Do one thing until cancelled."""
    while True:
        await step()
        await trio.lowlevel.checkpoint()
