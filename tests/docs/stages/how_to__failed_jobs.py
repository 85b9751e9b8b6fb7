"""Job 4711, which has failed for good, and a shop that knows its kind."""

from typing import Any

import attrs

import awa_actors as awa
from awa_actors.testing import work_all


@attrs.frozen
class Charge:
    invoice: int
    queue = "payments"


registry = awa.Registry()


@registry.worker(Charge)
async def charge(job: awa.Job[Charge]) -> None:
    raise awa.TerminalError("card declined")


async def begin(client: Any) -> None:
    await client.admin.dead_letters.set_policy("payments", enabled=True)
    async with client.transaction() as tx:
        await tx.execute("SELECT setval('awa.job_id_seq', 4711, false)")
    await client.insert(Charge(1))
    await work_all(client)
