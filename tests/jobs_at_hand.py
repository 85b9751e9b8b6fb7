"""Jobs in a database, for tests that stand outside of any event loop."""

import datetime as dt
from typing import Any

import attrs
import trio

import awa_actors as awa

LIMIT = 20.0
"""Seconds that anything a test waits for may take on a busy machine."""


@attrs.frozen
class Errand:
    """Args of a job that means nothing."""

    n: int = 0


def inserted(url: str, count: int = 1, opts: awa.InsertOpts | None = None) -> list[int]:
    """Insert errands; returns their ids."""
    return _insert(url, [Errand(n) for n in range(count)], opts)


def inserted_args(url: str, *args: Any, seconds: float | None = None) -> list[int]:
    """Insert jobs of these args, due in so many seconds if that is said; returns their ids."""
    return _insert(url, args, None if seconds is None else awa.InsertOpts(run_at=dt.timedelta(seconds=seconds)))


def _insert(url: str, jobs: Any, opts: awa.InsertOpts | None) -> list[int]:
    async def insert() -> list[int]:
        async with awa.open_client(url) as client:
            return [job.id for job in await client.insert_many(jobs, opts)]

    return trio.run(insert)


def row(url: str, job_id: int) -> awa.JobRow:
    """One job as it is now."""

    return becomes(url, job_id, None)


def becomes(url: str, job_id: int, state: awa.JobState | None) -> awa.JobRow:
    """One job, as soon as it is in a state."""

    async def look() -> awa.JobRow:
        async with awa.open_client(url) as client:
            with trio.fail_after(LIMIT):
                while True:
                    found = await client.admin.job(job_id)
                    if state in (None, found.state):
                        return found
                    await trio.sleep(0.02)

    return trio.run(look)
