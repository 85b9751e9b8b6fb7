"""A payment provider that keeps the references it is given, and a charge that waits for it."""

from typing import Any

import attrs
import trio

import awa_actors as awa
from awa_actors.testing import work_all


@attrs.frozen
class Charge:
    amount: int


@attrs.frozen
class Refund:
    amount: int


@attrs.frozen
class Order:
    amount: int


@attrs.frozen
class Hold:
    """A job that waits for the callback of which the page speaks."""


class Provider:
    def __init__(self) -> None:
        self.references: list[str] = []

    async def ask(self, amount: int, reference: str) -> None:
        self.references.append(reference)


provider = Provider()
secret = "07" * 32
registry = awa.Registry()


@registry.worker(Hold)
async def hold(job: awa.Job[Hold]) -> awa.Verdict:
    token = await job.register_callback()
    await provider.ask(0, reference=token.callback_id)
    return awa.WaitForCallback(token)


async def begin(client: Any) -> None:
    async with client.transaction() as tx:
        await tx.execute("CREATE TABLE payments (callback uuid)")
    await client.insert(Hold())
    await work_all(client)
    globals()["callback_id"] = provider.references.pop()


async def end(client: Any) -> None:
    async with client.transaction() as tx:
        assert await tx.fetchval("SELECT count(*) FROM payments") == 1
    (held,) = await client.admin.jobs(kind="hold")
    assert (held.state, held.result) == (awa.JobState.COMPLETED, {"status": "paid"})
    await client.insert_many([Charge(12), Order(13)])
    await work_all(client)
    charge, order = provider.references
    await client.complete_external(charge)
    ignored = await client.resolve_external(order, {"kind": "draft"})
    paid = await client.resolve_external(order, {"kind": "final", "status": "paid", "amount": 13})
    assert (ignored.outcome, paid.outcome, paid.payload) == ("ignored", "completed", {"amount": 13})
    await client.insert(Refund(12))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work_all, client)
        while len(provider.references) < 3:
            await trio.lowlevel.checkpoint()
        await client.resume_external(provider.references[2], {"amount": 12})
    (refunded,) = await client.admin.jobs(kind="refund")
    assert refunded.state is awa.JobState.COMPLETED
