"""A job to be dumped, and the copy, which goes when it has been looked at."""

from typing import Any
from urllib.parse import urlsplit

import attrs
import psycopg

import awa_actors

ENVIRONMENT: dict[str, str] = {}


@attrs.frozen
class Greet:
    name: str


async def begin(client: Any) -> None:
    await client.insert(Greet("world"))
    url = client.pool.url
    ENVIRONMENT["COPY_URL"] = url.replace(urlsplit(url).path, "/awa_copy", 1)


async def end(client: Any) -> None:
    async with awa_actors.open_client(ENVIRONMENT["COPY_URL"]) as copy:
        (job,) = await copy.admin.jobs()
        assert job.state.value == "cancelled"
        assert [one.paused_by for one in await copy.admin.queue_settings()] == ["restore"]
    (job,) = await client.admin.jobs()
    assert job.state.value == "available"
    with psycopg.connect(client.pool.url, autocommit=True) as connection:
        connection.execute("DROP DATABASE awa_copy WITH (FORCE)")
