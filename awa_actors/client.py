"""What users hold: a client, its transactions, and the ways to run a worker or maintenance in a nursery."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import attrs
import trio

from awa_actors import codec
from awa_actors.actors.meters import Meters
from awa_actors.admin import Admin
from awa_actors.bulk_admin import cancel_key_within, cancel_within, derived_key, retried
from awa_actors.config import Budget, DatabaseSettings, MaintenanceSettings, QueueConfig, WorkerSettings
from awa_actors.errors import UsageError
from awa_actors.external import ResolvesCallbacks
from awa_actors.jobs import FinalizationReceipt, InsertedJob, InsertOpts, JobRow
from awa_actors.private_postgres import PrivatePostgres
from awa_actors.registry import Registry
from awa_actors.running_job import Job
from awa_actors.store import bulk
from awa_actors.store import resolve as resolutions
from awa_actors.store.completion import COMPLETE_ATTEMPT, completion, receipt
from awa_actors.store.decided import ExternalOutcome, outcome_of
from awa_actors.store.insert import NewJob, admit, admit_many, all_of, chunks

if TYPE_CHECKING:
    from awa_actors.actors.maintenance import Maintenance
    from awa_actors.actors.tick import TickReport
    from awa_actors.actors.worker import Worker
    from awa_actors.core.metrics import Telemetry
    from awa_actors.store.migrate import Migration
    from awa_actors.store.pool import Pool, Session

Row = Any
"""A row of a query: fields by name or by position."""


async def _insert(session: Session, statements: Iterable[Sequence[NewJob]], meters: Meters) -> list[InsertedJob]:
    began = time.perf_counter()
    done = [job for jobs in statements for job in await bulk.insert_jobs(session, jobs)]
    _count(meters, done, began)
    return done


def _count(meters: Meters, done: list[InsertedJob], began: float) -> None:
    if meters.instruments is not None and done:
        meters.inserted([(job.kind, job.queue) for job in done if job.inserted], time.perf_counter() - began)


def _sending(meters: Meters, args: Any, opts: InsertOpts | None) -> AbstractContextManager[None]:
    """Be in a producer's span, where spans are made."""
    if meters.tracing is None:
        return nullcontext()
    named = None if opts is None else opts.queue
    return meters.tracing.sending(named or codec.args_type(type(args)).queue, 1)


def _sending_many(meters: Meters, jobs: int) -> AbstractContextManager[None]:
    return nullcontext() if meters.tracing is None else meters.tracing.sending(None, jobs)


@attrs.frozen(eq=False)
class Transaction(ResolvesCallbacks):
    """Your statements and awa's in one commit. Made by :meth:`Client.transaction`."""

    _session: Session
    _limit: int
    _registry: Registry = attrs.field(factory=Registry)
    _meters: Meters = attrs.field(factory=Meters)

    async def execute(self, sql: str, *args: Any) -> str:
        """Run a statement with ``$1`` placeholders; returns its command tag."""
        return await self._session.execute(sql, *args)

    async def fetch(self, sql: str, *args: Any) -> list[Row]:
        """Run a query; returns its rows."""
        return await self._session.fetch(sql, *args)

    async def fetchrow(self, sql: str, *args: Any) -> Row | None:
        """Run a query; returns its first row or None."""
        return await self._session.fetchrow(sql, *args)

    async def fetchval(self, sql: str, *args: Any) -> Any:
        """Run a query; returns the first column of its first row or None."""
        return await self._session.fetchval(sql, *args)

    async def insert(self, args: Any, opts: InsertOpts | None = None) -> InsertedJob:
        """Insert one job; it exists when this transaction commits."""
        with _sending(self._meters, args, opts):
            return (await _insert(self._session, [[admit(args, opts, limit=self._limit)]], self._meters))[0]

    async def insert_many(self, jobs: Iterable[Any], opts: InsertOpts | None = None) -> list[InsertedJob]:
        """Insert many jobs; they exist when this transaction commits."""
        wanted = all_of(jobs)
        with _sending_many(self._meters, len(wanted)):
            return await _insert(self._session, chunks(admit_many(wanted, opts, limit=self._limit)), self._meters)

    async def cancel(self, job_id: int, reason: str = "cancelled by an operator") -> JobRow | None:
        """Cancel a job that has not ended, with its follow-ups, when this transaction commits; None: nothing to cancel.

        Raises:
            FollowUpError: a follow-up failed; let it out, so that this transaction is rolled back.
        """
        return await cancel_within(self._session, self._registry, job_id, reason)

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
        """As `client.admin.cancel_by_key`, when this transaction commits."""
        wanted = derived_key(kind, queue, args, period, key)
        return await cancel_key_within(self._session, self._registry, wanted, reason)

    async def retry(self, job_id: int) -> JobRow | None:
        """Run a failed, cancelled, dead or deferred job again when this transaction commits; None: nothing to retry.

        Raises:
            UniqueConflict: a newer job holds its unique key; let it out, so that this transaction is rolled back.
        """
        from awa_actors.store import jobs

        return retried(self._meters, await jobs.retry(self._session, job_id))

    async def complete(self, job: Job[Any]) -> FinalizationReceipt:
        """Complete the job whose handler this is, in this transaction; return the receipt from the handler.

        Insert what is to follow in this transaction too: registered follow-ups of a completion are not evaluated here.

        Raises:
            StaleAttempt: the attempt is no longer this process's; let it out, so that this transaction is rolled back.
            UsageError: the handler is not registered as one that completes its jobs itself.
        """
        await self._session.execute(COMPLETE_ATTEMPT, *completion(job))
        return receipt(job)

    async def resolve_external(
        self, callback_id: str, payload: Any = None, default_action: str = "ignore"
    ) -> ExternalOutcome:
        """Let the callback's own expressions decide what the payload means; locked until this transaction ends."""
        asked = resolutions.by_expressions(callback_id, payload, default_action, limit=self._limit)
        resolved = await resolutions.resolve_within(self._session, self._registry, asked)
        self._meters.buried([resolved.job])
        return outcome_of(resolved)

    async def _resolve(self, resolution: resolutions.Resolution) -> JobRow:
        job = (await resolutions.resolve_within(self._session, self._registry, resolution)).job
        self._meters.buried([job])
        return job

    @property
    def _payload_limit(self) -> int:
        return self._limit


@attrs.frozen(eq=False)
class Client(ResolvesCallbacks):
    """An open client. Everything on it may be cancelled and leaves its connections whole."""

    pool: Pool
    registry: Registry
    settings: DatabaseSettings
    admin: Admin
    meters: Meters = attrs.field(factory=Meters)

    async def migrate(self, to: int | None = None, *, storage: str | None = None) -> list[Migration]:
        """Bring the database's schema up to this release (or to version `to`); returns the steps that were applied.

        Args:
            to: stop at this version.
            storage: ``canonical`` begins a fresh database on the canonical plane, to rehearse a transition.

        Raises:
            SchemaNewerThanCode: the database knows steps that this release does not.
            UsageError: the database is not fresh, so that it cannot begin anywhere.
        """
        from awa_actors.store.migrate import migrate, start_canonical

        async with self.pool.acquire() as session:
            applied = await migrate(session, to)
            if storage == "canonical":
                await start_canonical(session)
            return applied

    async def insert(self, args: Any, opts: InsertOpts | None = None) -> InsertedJob:
        """Insert one job, committed when this returns.

        Raises:
            ValidationError: something in it cannot be stored; nothing was written.
            UniqueConflict: another job holds its unique key, and the policy is to raise.
        """
        with _sending(self.meters, args, opts):
            admitted = [admit(args, opts, limit=self.settings.max_args_bytes)]
            session = await self.pool.borrow()
            try:
                return (await _insert(session, [admitted], self.meters))[0]
            finally:
                await self.pool.take_back(session)

    async def insert_many(self, jobs: Iterable[Any], opts: InsertOpts | None = None) -> list[InsertedJob]:
        """Insert many jobs, all or none, in their order.

        Args:
            jobs: instances of args classes, not necessarily of one.
            opts: options of every one of them.
        """
        wanted = all_of(jobs)
        with _sending_many(self.meters, len(wanted)):
            limit = self.settings.max_args_bytes
            if opts is not None and opts.unique is not None:
                admitted, left = admit_many(wanted, opts, limit=limit), 0
            else:
                pieces = bulk.Pieces(wanted, opts, limit)
                admitted = await pieces.encode()
                left = pieces.left
            if not left:
                async with self.pool.acquire() as session:
                    return await _insert(session, [admitted] if admitted else [], self.meters)
            async with self.pool.acquire() as session, session.transaction():
                began = time.perf_counter()
                done = await bulk.insert_many(session, admitted, pieces)
                _count(self.meters, done, began)
                return done

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Open a transaction: commits at the end of the body, rolls back when it raises or is cancelled."""
        async with self.pool.acquire() as session, session.transaction():
            yield Transaction(session, self.settings.max_args_bytes, self.registry, self.meters)

    async def resolve_external(
        self, callback_id: str, payload: Any = None, default_action: str = "ignore"
    ) -> ExternalOutcome:
        """Let the callback's own expressions decide what the payload means, committed when this returns."""
        async with self.transaction() as tx:
            return await tx.resolve_external(callback_id, payload, default_action)

    async def _resolve(self, resolution: resolutions.Resolution) -> JobRow:
        async with self.pool.acquire() as session:
            job = (await resolutions.resolve_alone(session, self.registry, resolution)).job
        self.meters.buried([job])
        return job

    @property
    def _payload_limit(self) -> int:
        return self.settings.max_args_bytes

    async def run_worker(
        self,
        *queues: QueueConfig,
        maintenance: bool | MaintenanceSettings = True,
        settings: WorkerSettings | None = None,
        task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run handlers, as ``await nursery.start(client.run_worker, …)``; ends when drained or cancelled.

        Args:
            queues: what to work on; without any, every queue that the registry's workers name.
            maintenance: stand for maintenance too (or settings for it); False leaves that to other processes.
            settings: how this worker lives.
            task_status: gives the :class:`~awa_actors.Worker`.

        Raises:
            UsageError: no handler, or a queue named twice; before anything runs.
            SchemaNotMigrated, SchemaNewerThanCode: as they say.

        Cancellation: handlers are cancelled, what became of them is recorded in one bounded step. Leaving waits for
            handlers: one that blocks a thread holds it up.
        """
        from awa_actors.actors.worker import WorkerActor

        configs = queues or tuple(QueueConfig(name) for name in self.registry.queues())
        names = [config.name for config in configs]
        if not self.registry.workers:
            raise UsageError("the registry has no handler: register one with @registry.worker, or run maintenance")
        if len(set(names)) != len(names):
            raise UsageError(f"a queue is named twice: {', '.join(names)}")
        lanes = MaintenanceSettings() if maintenance is True else maintenance or None
        actor = WorkerActor(self, self.pool, self.registry, configs, settings or WorkerSettings(), lanes)
        await actor.run(task_status=task_status)

    async def run_maintenance(
        self,
        *,
        settings: MaintenanceSettings | None = None,
        life: WorkerSettings | None = None,
        task_status: trio.TaskStatus[Maintenance] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Keep the database moving, as ``await nursery.start(client.run_maintenance)``. Never claims or runs a job.

        Args:
            settings: what the lanes do.
            life: beats and shutdown bounds of this process.
            task_status: gives the :class:`~awa_actors.Maintenance` as soon as it is a candidate.
        """
        from awa_actors.actors.maintenance_role import MaintenanceRole

        role = MaintenanceRole(
            self.pool, self.registry, settings or MaintenanceSettings(), life or WorkerSettings(), self.admin.watching,
            self.meters,
        )  # fmt: skip
        await role.run(task_status=task_status)

    async def tick(self, budget: Budget | None = None, settings: MaintenanceSettings | None = None) -> TickReport:
        """Do a bounded share of maintenance now, beside whoever leads; for schedulers and scale-to-zero deployments."""
        from awa_actors.actors.maintenance import steps
        from awa_actors.actors.rescued_follow_ups import FollowUpStep, RescuedFollowUps
        from awa_actors.actors.tick import tick
        from awa_actors.store.follow_up_plan import Specs

        follow_ups = FollowUpStep(RescuedFollowUps(Specs(self.registry)))
        lanes = steps(
            self.pool, settings or MaintenanceSettings(), self.registry, follow_ups.told.extend, meters=self.meters
        )
        return await tick(self.pool, [*lanes, follow_ups], budget or Budget())


@asynccontextmanager
async def open_client(
    database: str | PrivatePostgres | None = None,
    *,
    registry: Registry | None = None,
    settings: DatabaseSettings | None = None,
    telemetry: Telemetry | None = None,
) -> AsyncIterator[Client]:
    """Open a client; leaving closes its connections.

    Neither connects nor checks the schema: `migrate` runs through it, and `run_*` check.

    Args:
        database: any Postgres URL, a :class:`~awa_actors.PrivatePostgres`, or None for the PG* environment.
        registry: what this process declares.
        settings: pool size, timeouts, pooler.
        telemetry: where metrics and spans go, for example an :class:`awa_actors.telemetry.OpenTelemetry`.
    """
    # Imported here and not before: a process that only enqueues over a bridge needs no driver and no Trio.
    from awa_actors.store.loop import open_driver_loop
    from awa_actors.store.pool import Pool

    settings = settings or DatabaseSettings()
    async with _database_url(database) as url, open_driver_loop() as loop:
        pool = Pool(url, settings, loop)
        try:
            known = registry or Registry()
            meters = Meters() if telemetry is None else Meters(telemetry.instruments, telemetry.tracing)
            yield Client(pool, known, settings, Admin(pool, known, meters=meters), meters)
        finally:
            await pool.close()


@asynccontextmanager
async def _database_url(database: str | PrivatePostgres | None) -> AsyncIterator[str | None]:
    if not isinstance(database, PrivatePostgres):
        yield database
        return
    server = await trio.to_thread.run_sync(database.start)
    try:
        yield server.url
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.stop)
