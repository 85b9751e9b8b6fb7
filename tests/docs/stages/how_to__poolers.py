"""The greeting of the quickstart, and a shop whose worker runs."""

from typing import Any

import attrs


@attrs.frozen
class Greet:
    name: str


FILES = {
    "shop.py": """
import attrs
import awa_actors as awa


@attrs.frozen
class Greet:
    name: str


registry = awa.Registry()


@registry.worker(Greet)
async def greet(job: awa.Job[Greet]) -> None: ...
"""
}


async def end(client: Any) -> None:
    # Settings of a role outlive this page's database, and other tests share the server.
    async with client.transaction() as tx:
        await tx.execute("ALTER ROLE CURRENT_USER RESET ALL")
        assert await tx.fetchval("SELECT count(*) FROM awa.jobs WHERE kind = 'greet'") == 1
