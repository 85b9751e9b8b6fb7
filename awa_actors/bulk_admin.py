"""What operators do to jobs they name by key, kind or queue, and what they ask about one: a part of `Admin`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from awa_actors.actors.meters import Meters
from awa_actors.core.history import AttemptRecord, history, summary, timeline
from awa_actors.core.text import storable
from awa_actors.core.unique import unique_key
from awa_actors.core.validation import check_kind, check_queue, check_unique_key
from awa_actors.errors import FollowUpError, JobNotFound, NotFound, UsageError
from awa_actors.follow_up_admin import FollowUpAdmin, follow_cancel
from awa_actors.jobs import JobRow, JobState
from awa_actors.registry import Registry

if TYPE_CHECKING:
    from awa_actors.store.dead_letters import Retried
    from awa_actors.store.pool import Session

PAGE = 500
"""Jobs of one transaction of a drain."""


@attrs.frozen
class Drained:
    """What a drain did: how many jobs were cancelled, and why others were not, by id."""

    cancelled: int
    refused: dict[int, str]


@attrs.frozen(eq=False)
class BulkAdmin(FollowUpAdmin):
    """Bulk forms commit in pages and may be repeated; one job that cannot be changed keeps no other from it."""

    async def cancel_by_key(
        self,
        kind: str | None = None,
        *,
        queue: str | None = None,
        args: Any = None,
        period: int | None = None,
        key: bytes | str | None = None,
        reason: str = "cancelled by an operator",
    ) -> JobRow | None:
        """Cancel the one job that has a unique key and has not ended, with its follow-ups; None when there is none.

        Args:
            kind: of the job; with it the key is derived again, as the insert derived it.
            queue: when the queue was part of the key.
            args: when the args were: an instance of the args class, or their JSON values.
            period: when a time bucket was.
            key: the explicit key instead of all of these.
            reason: kept in the job's errors.

        Raises:
            UsageError: neither a kind nor a key, or both.
            FollowUpError: a follow-up failed; the job is as it was.
        """
        wanted, text = derived_key(kind, queue, args, period, key), storable(reason)
        async with self._pool.acquire() as session, session.transaction():
            row = await cancel_key_within(session, self._registry, wanted, text)
        if row is not None:
            self._show_cancel(row, text)
        return row

    async def retry_failed(self, *, kind: str | None = None, queue: str | None = None) -> Retried:
        """Run failed jobs of a kind or a queue again, attempts from 0; dead letters have a `retry_bulk` of their own.

        Raises:
            UsageError: neither kind nor queue.
        """
        from awa_actors.store import dead_letters

        if kind is None and queue is None:
            raise UsageError("name a kind or a queue whose failed jobs are to run again")
        async with self._pool.acquire() as session:
            return await dead_letters.retry_many(
                session, dead_letters.Filter(kind, queue), dead_letters.Redrive(), dead=False
            )

    async def discard(self, kind: str) -> int:
        """Delete the failed jobs of a kind for good, dead letters included; returns how many."""
        from awa_actors.store import dead_letters

        wanted = dead_letters.Filter(check_kind(kind))
        async with self._pool.acquire() as session:
            failed = await dead_letters.discard(session, wanted, dead=False)
            dead = await dead_letters.discard(session, wanted, dead=True)
        self._meters.left_dlq("purged", dead)
        return failed.total() + dead.total()

    async def drain_queue(self, queue: str, reason: str = "the queue was drained") -> Drained:
        """Cancel everything that waits in a queue now, with its follow-ups; what runs goes on, what comes later stays.

        A job whose follow-up is broken is left and named.
        """
        from awa_actors.store import waiting_jobs

        name, text = check_queue(queue), storable(reason)
        cancelled, refused = 0, dict[int, str]()
        async with self._pool.acquire() as session:
            newest, seen = await waiting_jobs.newest_id(session), list[int]()
            while ids := await waiting_jobs.waiting_ids(session, name, newest, seen, PAGE):
                done, failed = await self._drain_page(session, ids, text)
                cancelled += done
                refused |= failed
                seen = list(refused)
        return Drained(cancelled, refused)

    async def _drain_page(self, session: Session, ids: list[int], reason: str) -> tuple[int, dict[int, str]]:
        """One page in one transaction; where a follow-up fails, job by job."""
        from awa_actors.store import waiting_jobs

        try:
            async with session.transaction():
                rows = await waiting_jobs.cancel_waiting(session, ids, reason)
                for row in rows:
                    await follow_cancel(session, self._registry, row, reason)
        except FollowUpError as error:
            if len(ids) == 1:
                return 0, {ids[0]: str(error)}
            pages = [await self._drain_page(session, [job_id], reason) for job_id in ids]
            return sum(done for done, _ in pages), {key: why for _, failed in pages for key, why in failed.items()}
        for row in rows:
            self._show_cancel(row, reason)
        return len(rows), {}

    async def history(self, job_id: int) -> tuple[AttemptRecord, ...]:
        """What happened to a job: its attempts, oldest first, with outcome, error, instance and rescue.

        Raises:
            JobNotFound: unknown, or gone with its retention.
        """
        return history(await self._found(job_id))

    async def dump(self, job_id: int) -> dict[str, Any]:
        """Everything known about a job: its row, a summary, its timeline and, for a dead letter, why and since when.

        Raises:
            JobNotFound: unknown, or gone with its retention.
        """
        from awa_actors.store import dead_letters

        async with self._pool.acquire() as session:
            letter = await dead_letters.letter(session, job_id)
        job = letter.job if letter is not None else await self._found(job_id)
        since = None if letter is None else letter.at
        return {
            "job": {field.name: getattr(job, field.name) for field in attrs.fields(JobRow)},
            "summary": summary(job),
            "timeline": timeline(job, since),
            "attempts": [attrs.asdict(one) for one in history(job)],
            "dead_letter": None if letter is None else {"reason": letter.reason, "at": letter.at},
        }

    async def dump_run(self, job_id: int, attempt: int | None = None) -> dict[str, Any]:
        """One attempt of a job, the last one unless its number is given; of several with one number the latest.

        Raises:
            JobNotFound: unknown, or gone with its retention.
            NotFound: nothing is known of such an attempt.
        """
        job = await self._found(job_id)
        known = [one for one in history(job) if attempt is None or one.attempt == attempt]
        if not known:
            which = "any attempt" if attempt is None else f"attempt {attempt}"
            raise NotFound(f"nothing is known of {which} of job {job_id}")
        return {"job_id": job.id, "kind": job.kind, "queue": job.queue, "args": job.args, **attrs.asdict(known[-1])}

    async def _found(self, job_id: int) -> JobRow:
        from awa_actors.store import jobs

        async with self._pool.acquire() as session:
            found = await jobs.find(session, job_id)
        if found is None:
            raise JobNotFound(f"there is no job {job_id} (any more)")
        return found


def retried(meters: Meters, found: tuple[JobRow, JobState, bool] | None) -> JobRow | None:
    """Give the row of a retry, and count it if it was a dead letter."""
    if found is None:
        return None
    row, _, was_dead_letter = found
    if was_dead_letter:
        meters.left_dlq("retried", {row.queue: 1})
    return row


async def cancel_within(session: Session, registry: Registry, job_id: int, reason: str) -> JobRow | None:
    """Cancel a job and enqueue what follows from it, in the transaction that is open on the session."""
    from awa_actors.store import jobs

    text = storable(reason)
    found = await jobs.cancel(session, job_id, text)
    if found is None:
        return None
    await follow_cancel(session, registry, found[0], text)
    return found[0]


async def cancel_key_within(session: Session, registry: Registry, key: bytes, reason: str) -> JobRow | None:
    """Cancel the job that has a unique key and has not ended, in the transaction that is open on the session."""
    from awa_actors.store import waiting_jobs

    holder = await waiting_jobs.key_holder(session, key)
    if holder is not None and (row := await cancel_within(session, registry, holder, reason)) is not None:
        return row
    other = await waiting_jobs.oldest_with_key(session, key)
    return None if other is None else await cancel_within(session, registry, other, reason)


def derived_key(kind: str | None, queue: str | None, args: Any, period: int | None, key: bytes | str | None) -> bytes:
    """Give the explicit key, or derive it again as the insert derived it.

    Raises:
        UsageError: neither a kind nor a key, or both.
    """
    if (kind is None) == (key is None):
        raise UsageError("name either the kind whose key is to be derived, or the explicit key")
    if key is not None:
        return check_unique_key(key)
    from awa_actors.codec import to_json_value

    values = to_json_value(args) if attrs.has(type(args)) or hasattr(args, "__dataclass_fields__") else args
    return unique_key(check_kind(kind), queue=queue, args=values, period=period)
