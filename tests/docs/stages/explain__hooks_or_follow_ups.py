"""The shop that the page speaks of, and a look at what its follow-ups did."""

from typing import Any

import attrs

import awa_actors as awa
from awa_actors.testing import assert_enqueued, work_all


@attrs.frozen
class Signup:
    user_id: int


@attrs.frozen
class SendWelcome:
    user_id: int


@attrs.frozen
class NotifyOps:
    error: str


@attrs.frozen
class Charge:
    invoice: int


@attrs.frozen
class SendReceipt:
    invoice: int


class Counter:
    counted = 0

    def add(self, number: int, attributes: dict[str, str]) -> None:
        self.counted += number


signups = Counter()
registry = awa.Registry()


@registry.worker(Signup)
async def sign_up(job: awa.Job[Signup]) -> None:
    if job.args.user_id < 0:
        raise awa.TerminalError("no such user")


async def begin(client: Any) -> None:
    async with client.transaction() as tx:
        await tx.execute("CREATE TABLE invoices (id int PRIMARY KEY, paid boolean)")
        await tx.execute("INSERT INTO invoices VALUES (1, false)")


async def end(client: Any) -> None:
    await client.insert_many([Signup(1), Signup(-1), Charge(1)])
    await work_all(client)
    await assert_enqueued(client, SendWelcome, user_id=1)
    await assert_enqueued(client, SendReceipt, invoice=1)
    (paged,) = await client.admin.jobs(kind="notify_ops")
    assert (paged.queue, paged.priority) == ("ops", 1)
