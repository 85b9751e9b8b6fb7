"""Newsletters that wait."""

from typing import Any

import attrs


@attrs.frozen
class Newsletter:
    queue = "email"
    number: int


async def begin(client: Any) -> None:
    await client.insert_many([Newsletter(1), Newsletter(2)])
