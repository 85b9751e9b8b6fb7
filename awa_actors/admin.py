"""What operators do through a client: jobs, queues, processes, leadership."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import attrs

from awa_actors.batch_admin import BatchAdmin
from awa_actors.bulk_admin import retried
from awa_actors.core.text import storable
from awa_actors.core.validation import aware_datetime, check_queue
from awa_actors.dead_letter_admin import DeadLetterAdmin
from awa_actors.deployment_admin import DeploymentAdmin
from awa_actors.errors import UsageError
from awa_actors.jobs import InsertedJob, JobRow, JobState
from awa_actors.override_admin import OverrideAdmin
from awa_actors.storage_admin import StorageAdmin

if TYPE_CHECKING:
    from awa_actors.core.health import Health, Server
    from awa_actors.store.cron import CronSchedule
    from awa_actors.store.descriptors import Described
    from awa_actors.store.instances import Instance
    from awa_actors.store.leadership import Lease
    from awa_actors.store.queues import QueueSettings, QueueStats


@attrs.frozen(eq=False)
class Admin(DeploymentAdmin):
    """Operator actions; each is one transaction. Reached as ``client.admin``."""

    @property
    def dead_letters(self) -> DeadLetterAdmin:
        """What there is to do with jobs that failed for good and are kept apart."""
        return DeadLetterAdmin(self._pool, self._meters)

    @property
    def batches(self) -> BatchAdmin:
        """How queue or priority of many waiting jobs are changed."""
        return BatchAdmin(self._pool)

    @property
    def overrides(self) -> OverrideAdmin:
        """How running workers are tuned, queue by queue."""
        return OverrideAdmin(self._pool)

    @property
    def storage(self) -> StorageAdmin:
        """The move between storage planes."""
        return StorageAdmin(self._pool)

    async def job(self, job_id: int) -> JobRow:
        """One job, wherever it is.

        Raises:
            JobNotFound: unknown, or gone with its retention.
        """
        return await self._found(job_id)

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        kind: str | None = None,
        queue: str | None = None,
        tag: str | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[JobRow]:
        """Jobs, newest first; pass the last id as `before` for the next page. A page is short only at the end.

        Args:
            state: only jobs in it.
            kind: only jobs of it.
            queue: only jobs of it.
            tag: only jobs with it.
            since: inserted then or later.
            until: inserted before then.
            before: only ids below this one.
            limit: most jobs, 1 to 10000.
        """
        from awa_actors.store import jobs

        if not 1 <= limit <= 10_000:
            raise UsageError(f"limit must be from 1 to 10000, not {limit}")
        since = None if since is None else aware_datetime(since, path="$.since")
        until = None if until is None else aware_datetime(until, path="$.until")
        async with self._pool.acquire() as session:
            return await jobs.list_jobs(
                session,
                state=state,
                kind=kind,
                queue=queue,
                tag=tag,
                since=since,
                until=until,
                before=before,
                limit=limit,
            )

    async def retry(self, job_id: int) -> JobRow | None:
        """Run a failed, cancelled, dead or deferred job again now, attempts from 0. None: nothing to retry.

        Raises:
            UniqueConflict: a newer job holds its unique key; the job stays as it is.
        """
        from awa_actors.store import jobs

        async with self._pool.acquire() as session:
            found = await jobs.retry(session, job_id)
        return retried(self._meters, found)

    async def pause_queue(self, queue: str, *, by: str | None = None, until: dt.datetime | None = None) -> None:
        """Stop claims from a queue in every process, at the next claim; running jobs go on."""
        from awa_actors.store import queues

        instant = None if until is None else aware_datetime(until, path="$.until")
        async with self._pool.acquire() as session:
            await queues.pause(session, check_queue(queue), None if by is None else storable(by), instant)

    async def resume_queue(self, queue: str) -> bool:
        """Undo a pause; False when the queue was not paused."""
        from awa_actors.store import queues

        async with self._pool.acquire() as session:
            return await queues.resume(session, check_queue(queue))

    async def queue_stats(self) -> list[QueueStats]:
        """Jobs by state for every queue, counted in one snapshot."""
        from awa_actors.store import queues

        async with self._pool.acquire() as session:
            return await queues.stats(session)

    async def queue_settings(self) -> list[QueueSettings]:
        """Queues that have settings, paused ones among them."""
        from awa_actors.store import queues

        async with self._pool.acquire() as session:
            return await queues.settings(session)

    async def set_shards(self, queue: str, shards: int) -> None:
        """Spread a queue over 1 to 64 shards; order then holds within a shard."""
        from awa_actors.store import queues

        if not 1 <= shards <= 64:
            raise UsageError(f"shards must be from 1 to 64, not {shards}")
        async with self._pool.acquire() as session:
            await queues.set_shards(session, check_queue(queue), shards)

    async def instances(self) -> list[Instance]:
        """Processes that are registered and not known to be dead."""
        from awa_actors.store import instances

        async with self._pool.acquire() as session:
            return await instances.instances(session)

    async def leader(self) -> Lease | None:
        """Who leads; None when nobody ever did."""
        from awa_actors.store import leadership

        async with self._pool.acquire() as session:
            return await leadership.look(session)

    async def request_resign(self) -> int | None:
        """Ask the leader to give up its term; returns that term, or None when nobody leads."""
        from awa_actors.store import leadership

        async with self._pool.acquire() as session:
            return await leadership.request_resign(session)

    async def server(self) -> Server:
        """Facts of the database server; needs no schema of ours."""
        from awa_actors.store import health

        async with self._pool.acquire() as session:
            return await health.server(session)

    async def schema(self) -> tuple[int, int]:
        """The schema version of the database (0 without a schema), and the one that this release works with."""
        from awa_actors.store import migrate

        async with self._pool.acquire() as session:
            return await migrate.schema_version(session), migrate.expected_version()

    async def health(self) -> Health:
        """One look at the deployment: schema, leader and lanes, processes, queues, and what is wrong with them."""
        from awa_actors.store import health

        async with self._pool.acquire() as session:
            return await health.look(session)

    async def cron_list(self) -> list[CronSchedule]:
        """Every schedule that was declared and not removed, with its last and its next fire."""
        from awa_actors.store import cron

        async with self._pool.acquire() as session:
            return await cron.list_schedules(session)

    async def cron_pause(self, name: str, *, by: str | None = None) -> None:
        """Stop the fires of a schedule until it is resumed.

        Raises:
            NotFound: there is no such schedule.
        """
        from awa_actors.store import cron

        async with self._pool.acquire() as session:
            await cron.pause(session, name, None if by is None else storable(by))

    async def cron_resume(self, name: str) -> bool:
        """Undo a pause; the missed-fire policy decides about what came due meanwhile. False when it was not paused.

        Raises:
            NotFound: there is no such schedule.
        """
        from awa_actors.store import cron

        async with self._pool.acquire() as session:
            return await cron.resume(session, name)

    async def cron_trigger(self, name: str) -> InsertedJob:
        """Enqueue the job of a schedule now, paused or not, beside its fires.

        Raises:
            NotFound: there is no such schedule.
            UniqueConflict: another job holds its unique key.
        """
        from awa_actors.store import cron

        async with self._pool.acquire() as session:
            return await cron.trigger(session, name)

    async def cron_remove(self, name: str) -> None:
        """Forget a schedule that no code declares any more; one that is still declared comes back, so pause that.

        Raises:
            NotFound: there is no such schedule.
        """
        from awa_actors.store import cron

        async with self._pool.acquire() as session:
            await cron.remove(session, name)

    async def descriptors(self) -> list[Described]:
        """What applications say about their queues and kinds, with what is stale and what they disagree about."""
        from awa_actors.store import descriptors

        async with self._pool.acquire() as session:
            return await descriptors.described(session)
