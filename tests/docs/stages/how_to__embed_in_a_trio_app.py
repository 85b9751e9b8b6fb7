"""A look at what the embedded worker did."""

from typing import Any


async def end(client: Any) -> None:
    (job,) = await client.admin.jobs(kind="resize")
    assert job.state.value == "completed"
