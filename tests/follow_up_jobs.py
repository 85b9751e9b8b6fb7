"""Job args, and events made by hand: what the tests of follow-ups share."""

import datetime as dt
import uuid
from typing import Any, ClassVar

import attrs
from small_load import new_instance, take

import awa_actors as awa
from awa_actors.jobs import JobRow, JobState

NOW = dt.datetime(2031, 5, 17, 12, 0, tzinfo=dt.UTC)


@attrs.frozen
class Signup:
    """What triggers."""

    queue: ClassVar[str] = "signup"
    user_id: int


@attrs.frozen
class Welcome:
    """What follows."""

    kind: ClassVar[str] = "send_welcome"
    queue: ClassVar[str] = "email"
    user_id: int


@attrs.frozen
class Notice:
    """What else follows."""

    queue: ClassVar[str] = "ops"
    text: str


def row(**fields: Any) -> JobRow:
    """A job as stored; give what matters."""
    known: dict[str, Any] = {
        "id": 7, "kind": "signup", "queue": "signup", "args": {"user_id": 1}, "state": JobState.COMPLETED,
        "priority": 2, "attempt": 1, "run_lease": 1, "max_attempts": 25, "run_at": NOW, "created_at": NOW,
    }  # fmt: skip
    return JobRow(**(known | fields))


def completed(args: Any = None, **fields: Any) -> awa.events.Completed[Any]:
    """A completion of a signup."""
    return awa.events.Completed(job=row(**fields), args=Signup(1) if args is None else args, duration=0.5)


async def enqueued(client: awa.Client, kind: str = "send_welcome") -> list[JobRow]:
    """Follow-ups of a kind, oldest first."""
    return sorted(await client.admin.jobs(kind=kind), key=lambda job: job.id)


async def strand(client: awa.Client, *jobs: Any, is_late: bool = False) -> list[int]:
    """Insert jobs and let a process claim them that is dead by now, or alive and past their deadlines; returns ids."""
    queue = f"stranded {uuid.uuid4()}"
    deadline = 0.001 if is_late else None
    inserted = await client.insert_many(jobs, awa.InsertOpts(queue=queue, deadline=deadline))
    async with client.pool.acquire() as session:
        instance = await new_instance(session)
        assert len(await take(session, instance, queue, len(jobs))) == len(jobs)
        if not is_late:
            await session.execute("UPDATE awa.instances SET dead_at = clock_timestamp() WHERE id = $1", instance)
    return [job.id for job in inserted]
