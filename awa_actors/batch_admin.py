"""Batch operations, reached as ``client.admin.batches``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from awa_actors.core.text import storable
from awa_actors.core.validation import aware_datetime, check_kind, check_priority, check_queue
from awa_actors.errors import NotFound, UsageError
from awa_actors.jobs import JobState

if TYPE_CHECKING:
    from awa_actors.store.batches import BatchOperation, Change, JobFilter, Preview
    from awa_actors.store.pool import Pool

MOST_IDS = 10_000
"""Ids that one operation may name; more are several operations, or a filter."""
STATES = ("pending", "running", "completed", "cancelled", "failed")
WAITING = frozenset({JobState.AVAILABLE, JobState.SCHEDULED, JobState.RETRYABLE})


@attrs.frozen(kw_only=True)
class BatchRequest:
    """What is to become of which waiting jobs.

    Args:
        set_priority: 1 (most urgent) to 4, or None to leave it.
        move_to: another queue, or None to leave it. One of the two is needed; a move may set the priority too.
        kind, queue, tag: only jobs with it.
        state: only jobs that are `available`, `scheduled` or `retryable`; None for all that wait.
        since, until: inserted then or later; before then.
        ids: only these, at most 10,000.
        all: no filter: all that wait are meant.
    """

    set_priority: int | None = None
    move_to: str | None = None
    kind: str | None = None
    queue: str | None = None
    tag: str | None = None
    state: JobState | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    ids: Iterable[int] | None = None
    all: bool = False

    def change(self) -> Change:
        """Check what is to become of them.

        Raises:
            UsageError: nothing is to be changed.
            ValidationError: a value cannot be stored.
        """
        from awa_actors.store.batches import Change

        if self.set_priority is None and self.move_to is None:
            raise UsageError("nothing is changed: give a priority to set, or a queue to move to")
        return Change(
            None if self.move_to is None else check_queue(self.move_to, path="$.move_to"),
            None if self.set_priority is None else check_priority(self.set_priority, path="$.set_priority"),
        )

    def filter(self) -> JobFilter:
        """Check which jobs are meant.

        Raises:
            UsageError: it would take everything, and nobody said that this is meant; or a state that does not wait.
            ValidationError: a value cannot be stored.
        """
        from awa_actors.store.batches import JobFilter

        if self.state is not None and self.state not in WAITING:
            raise UsageError(
                f"jobs that are {self.state.value} do not wait: only available, scheduled and retryable ones change"
            )
        wanted = JobFilter(
            None if self.kind is None else check_kind(self.kind),
            None if self.queue is None else check_queue(self.queue),
            self.tag,
            self.state,
            None if self.since is None else aware_datetime(self.since, path="$.since"),
            None if self.until is None else aware_datetime(self.until, path="$.until"),
            None if self.ids is None else tuple(sorted(set(self.ids))),
        )
        if wanted.ids is not None and len(wanted.ids) > MOST_IDS:
            raise UsageError(f"{len(wanted.ids)} ids are too many for one operation, at most {MOST_IDS}")
        if wanted.is_empty and not self.all:
            raise UsageError(
                "no filter: name a kind, a queue, a tag, ids or a time, or confirm that all are meant (all=True, --all)"
            )
        return wanted


@attrs.frozen(eq=False)
class BatchAdmin:
    """Change queue or priority of many waiting jobs. What is submitted survives its submitter; maintenance does it."""

    _pool: Pool

    async def preview(self, request: BatchRequest) -> Preview:
        """What an operation would touch now; nothing is changed or kept.

        Raises:
            UsageError: nothing to change, or no filter and not `all`.
        """
        from awa_actors.store import batches

        wanted, change = request.filter(), request.change()
        async with self._pool.acquire() as session:
            return await batches.preview(session, wanted, change)

    async def submit(self, request: BatchRequest, *, by: str | None = None) -> BatchOperation:
        """Store an operation for the leader's batch lane, or for ticks; operations are done one after the other.

        Args:
            request: what is to become of which jobs. Jobs that run now, or are inserted from now on, are left.
            by: who asks, kept with it.

        Raises:
            UsageError: nothing to change, or no filter and not `all`.

        Cancellation: it is stored, or not; look with `list`.
        """
        from awa_actors.store import batches

        wanted, change = request.filter(), request.change()
        async with self._pool.acquire() as session:
            seen = await batches.preview(session, wanted, change)
            return await batches.submit(session, wanted, change, None if by is None else storable(by), seen)

    async def list(
        self, *, state: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[BatchOperation]:
        """Operations, newest first; pass the last id as `before` for the next page. Ended ones stay for 30 days."""
        from awa_actors.store import batches

        if not 1 <= limit <= 10_000:
            raise UsageError(f"limit must be from 1 to 10000, not {limit}")
        if state is not None and state not in STATES:
            raise UsageError(f"an operation is {', '.join(STATES[:-1])} or {STATES[-1]}, not {state!r}")
        async with self._pool.acquire() as session:
            return await batches.operations(session, state, before, limit)

    async def show(self, operation: int) -> BatchOperation:
        """One operation and how far it has come.

        Raises:
            NotFound: there is none (any more).
        """
        from awa_actors.store import batches

        async with self._pool.acquire() as session:
            found = await batches.operation(session, operation)
        if found is None:
            raise NotFound(f"there is no batch operation {operation} (any more)")
        return found

    async def cancel(self, operation: int) -> BatchOperation | None:
        """Stop an operation: when this returns, nothing more is changed. What was changed stays; None: it had ended.

        Raises:
            NotFound: there is none (any more).
        """
        from awa_actors.store import batches

        async with self._pool.acquire() as session:
            stopped = await batches.cancel(session, operation)
        if stopped is None:
            await self.show(operation)
        return stopped
