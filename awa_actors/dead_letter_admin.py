"""What operators do with dead letters, reached as ``client.admin.dead_letters``."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import attrs

from awa_actors.actors.meters import Meters
from awa_actors.core.validation import aware_datetime, check_priority, check_queue, positive_seconds
from awa_actors.errors import JobNotFound, UsageError
from awa_actors.jobs import JobRow

if TYPE_CHECKING:
    from awa_actors.store.dead_letters import DeadLetter, Depth, Filter, Policy, Redrive, Retried
    from awa_actors.store.pool import Pool

LONGEST_PAGE = 10_000


def narrowed(kind: str | None, queue: str | None, tag: str | None, everything: bool) -> Filter:
    """Give the filter of a mutation.

    Raises:
        UsageError: it would take everything, and nobody said that this is meant.
    """
    from awa_actors.store.dead_letters import Filter

    wanted = Filter(kind, queue, tag)
    if wanted.is_empty and not everything:
        raise UsageError("no filter: name a kind, a queue or a tag, or confirm that all are meant (all=True, --all)")
    return wanted


def redriven(queue: str | None, priority: int | None, run_at: dt.datetime | None) -> Redrive:
    """Check where retried jobs go.

    Raises:
        ValidationError: a value cannot be stored.
    """
    from awa_actors.store.dead_letters import Redrive

    return Redrive(
        None if queue is None else check_queue(queue),
        None if priority is None else check_priority(priority),
        None if run_at is None else aware_datetime(run_at),
    )


@attrs.frozen(eq=False)
class DeadLetterAdmin:
    """List, retry, move and purge. Bulk forms commit in pages, may be repeated, and need a filter or ``all=True``."""

    _pool: Pool
    _meters: Meters = attrs.field(factory=Meters)

    async def list(
        self,
        *,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        before: tuple[dt.datetime, int] | None = None,
        limit: int = 100,
    ) -> list[DeadLetter]:
        """Dead letters, newest first; pass ``(letter.at, letter.job.id)`` of the last one for the next page."""
        from awa_actors.store import dead_letters

        if not 1 <= limit <= LONGEST_PAGE:
            raise UsageError(f"limit must be from 1 to {LONGEST_PAGE}, not {limit}")
        cursor = None if before is None else (aware_datetime(before[0], path="$.before"), before[1])
        async with self._pool.acquire() as session:
            return await dead_letters.letters(session, dead_letters.Filter(kind, queue, tag), cursor, limit)

    async def show(self, job_id: int) -> DeadLetter:
        """One dead letter.

        Raises:
            JobNotFound: the job is none.
        """
        from awa_actors.store import dead_letters

        async with self._pool.acquire() as session:
            found = await dead_letters.letter(session, job_id)
        if found is None:
            raise JobNotFound(f"job {job_id} is no dead letter (any more)")
        return found

    async def depth(self, queue: str | None = None) -> tuple[Depth, ...]:
        """Dead letters by queue."""
        from awa_actors.store import dead_letters

        async with self._pool.acquire() as session:
            return tuple(await dead_letters.depth(session, queue))

    async def set_policy(self, queue: str, *, enabled: bool, retention: float | None = None) -> None:
        """Say whether jobs of a queue that fail from now on become dead letters.

        Args:
            queue: which.
            enabled: off leaves them among the failed jobs.
            retention: seconds they are kept; None for the deployment's `dlq_retention`.
        """
        from awa_actors.store import dead_letters

        seconds = None if retention is None else positive_seconds(retention, path="$.retention")
        async with self._pool.acquire() as session:
            await dead_letters.set_policy(session, check_queue(queue), enabled, seconds)

    async def policies(self) -> tuple[Policy, ...]:
        """What was said about queues; the others keep failed jobs where they are."""
        from awa_actors.store import dead_letters

        async with self._pool.acquire() as session:
            return tuple(await dead_letters.policies(session))

    async def retry(
        self,
        job_id: int,
        *,
        queue: str | None = None,
        priority: int | None = None,
        run_at: dt.datetime | None = None,
    ) -> JobRow:
        """Run a dead letter again under its id, attempts from 0, elsewhere or later if that is said.

        Raises:
            JobNotFound: the job is none.
            UniqueConflict: a newer job holds its unique key; the letter stays.
        """
        from awa_actors.store import dead_letters

        where = redriven(queue, priority, run_at)
        async with self._pool.acquire() as session:
            found = await dead_letters.retry(session, job_id, where)
        if found is None:
            raise JobNotFound(f"job {job_id} is no dead letter (any more)")
        row, dead_in = found
        self._meters.left_dlq("retried", {dead_in: 1})
        return row

    async def retry_bulk(
        self,
        *,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        all: bool = False,
        to_queue: str | None = None,
        priority: int | None = None,
        run_at: dt.datetime | None = None,
    ) -> Retried:
        """Run all that match again; those that cannot stay, are counted, and stop nobody.

        Raises:
            UsageError: no filter and not `all`.
        """
        from awa_actors.store import dead_letters

        wanted, where = narrowed(kind, queue, tag, all), redriven(to_queue, priority, run_at)
        async with self._pool.acquire() as session:
            done = await dead_letters.retry_many(session, wanted, where, dead=True)
        self._meters.left_dlq("retried", done.by_queue)
        return done

    async def move(
        self,
        job_id: int | None = None,
        *,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        all: bool = False,
    ) -> int:
        """Make dead letters (reason `manual`) of failed jobs that are none; returns how many.

        Raises:
            UsageError: neither a job, nor a filter, nor `all`.
        """
        from awa_actors.store import dead_letters

        wanted = narrowed(kind, queue, tag, all or job_id is not None)
        async with self._pool.acquire() as session:
            moved = await dead_letters.move(session, wanted, job_id)
        for (of_kind, of_queue), number in moved.items():
            self._meters.moved_to_dlq(of_kind, of_queue, "manual", number)
        return moved.total()

    async def purge(
        self, *, kind: str | None = None, queue: str | None = None, tag: str | None = None, all: bool = False
    ) -> int:
        """Delete all that match for good; returns how many.

        Raises:
            UsageError: no filter and not `all`.
        """
        from awa_actors.store import dead_letters

        wanted = narrowed(kind, queue, tag, all)
        async with self._pool.acquire() as session:
            gone = await dead_letters.discard(session, wanted, dead=True)
        self._meters.left_dlq("purged", gone)
        return gone.total()
