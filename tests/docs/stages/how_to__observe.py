"""The names that the page takes for granted."""

from typing import Any

import awa_actors as awa

registry = awa.Registry()


async def begin(client: Any) -> None:
    globals()["DSN"] = client.pool.url
