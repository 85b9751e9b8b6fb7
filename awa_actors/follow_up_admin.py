"""What operators see of follow-ups and do about them: a part of :class:`awa_actors.admin.Admin`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import attrs

from awa_actors.actors.meters import Meters
from awa_actors.codec import structure
from awa_actors.core.text import storable
from awa_actors.errors import AwaError, FollowUpError, NotFound, TransientStoreError, UsageError, ValidationError
from awa_actors.events import Cancelled
from awa_actors.jobs import InsertedJob, JobRow
from awa_actors.registry import Registry

if TYPE_CHECKING:
    from awa_actors.actors.observers import Observers
    from awa_actors.core.follow_up_template import DeclaredFollowUp
    from awa_actors.store.follow_ups import Failure
    from awa_actors.store.outbox import OutboxStatus
    from awa_actors.store.pool import Pool, Session

logger = logging.getLogger("awa_actors.follow_ups")


@attrs.frozen(eq=False)
class FollowUpAdmin:
    """Cancel with follow-ups; recorded failures, the outbox, and what is declared in the database.

    Args:
        _pool: for work.
        _registry: of this process; its specs follow what is done here, and are what a replay evaluates.
        watching: observers of the workers and maintenance that run on this client.
        _meters: of the client.
    """

    _pool: Pool
    _registry: Registry = attrs.field(factory=Registry)
    watching: list[Observers] = attrs.field(factory=list)
    _meters: Meters = attrs.field(factory=Meters, kw_only=True)

    async def cancel(
        self, job_id: int, reason: str = "cancelled by an operator", *, without_follow_ups: bool = False
    ) -> JobRow | None:
        """Cancel a job that has not ended, with its follow-ups; a running handler is told at once.

        What this client's registry and the database know to follow a cancellation is enqueued in the same transaction.
        Observers see a `Cancelled` event only where a worker or maintenance runs on this client; elsewhere nobody
        observes.

        Args:
            job_id: which.
            reason: kept in the job's errors.
            without_follow_ups: cancel although a follow-up is broken; none is enqueued.

        Returns:
            The job as it is now, or None when there was nothing to cancel.

        Raises:
            FollowUpError: a follow-up failed, with the reason; the job is as it was.
        """
        from awa_actors.store import jobs

        text = storable(reason)
        async with self._pool.acquire() as session, session.transaction():
            found = await jobs.cancel(session, job_id, text)
            if found is None:
                return None
            if not without_follow_ups:
                await follow_cancel(session, self._registry, found[0], text)
        self._show_cancel(found[0], text)
        return found[0]

    def _show_cancel(self, row: JobRow, reason: str) -> None:
        """Tell the observers of this client, once the cancellation is committed."""
        if row.kind not in self._registry.observers or not self.watching:
            return
        try:
            args = structure(row.args, self._registry.args_types[row.kind])
        except ValidationError as error:
            logger.warning("job %d was cancelled, but observers cannot read its args: %s", row.id, error)
            return
        self.watching[0].tell(row.kind, Cancelled(job=row, args=args, reason=reason))

    async def follow_up_failures(self, *, before: int | None = None, limit: int = 100) -> list[Failure]:
        """Follow-ups that are missing although their outcome stands, newest first; `before` gives the next page."""
        from awa_actors.store import follow_ups

        if not 1 <= limit <= 10_000:
            raise UsageError(f"limit must be from 1 to 10000, not {limit}")
        async with self._pool.acquire() as session:
            return await follow_ups.failures(session, limit, before)

    async def replay_follow_up(self, failure_id: int) -> InsertedJob:
        """Evaluate a recorded failure's spec again and enqueue its job; the record goes in the same transaction.

        Raises:
            NotFound: there is no such record (any more).
            UsageError: neither this client's registry nor the database has the spec.
            FollowUpError: it failed again; the record stays.
        """
        from awa_actors.store import follow_ups

        async with self._pool.acquire() as session, session.transaction():
            failure = await follow_ups.take_failure(session, failure_id)
            if failure is None:
                raise NotFound(f"there is no failed follow-up {failure_id} (any more)")
            return await self._replay(session, failure)

    async def _replay(self, session: Session, failure: Failure) -> InsertedJob:
        from awa_actors.actors.outcome_events import recorded_event
        from awa_actors.store import follow_ups, outbox
        from awa_actors.store.follow_up_plan import SpecFailed, Specs, plan_one

        specs = Specs(self._registry)
        specs.set_declared(await outbox.declared(session))
        known = {spec.name: spec for spec in specs.of(failure.outcome, failure.kind)}
        if (spec := known.get(failure.spec)) is None:
            raise UsageError(
                f"no follow-up {failure.spec!r} of {failure.outcome} {failure.kind!r} is registered here:"
                " replay it through a client whose registry has it"
            )
        try:
            event = recorded_event(failure.event, None if spec.args is object else spec.args)
            made = plan_one(spec, event, self._registry.max_follow_up_depth)
            if isinstance(made, SpecFailed):
                raise FollowUpError(f"follow-up {made.spec} failed again: {made.error}")
            return (await follow_ups.insert(session, [made.job]))()[0]
        except (FollowUpError, TransientStoreError):
            raise
        except AwaError as error:
            raise FollowUpError(f"follow-up {spec.name} failed again: {error}") from error

    async def forget_follow_up(self, failure_id: int) -> bool:
        """Delete a recorded failure without replaying it; False when there is none."""
        from awa_actors.store import follow_ups

        async with self._pool.acquire() as session:
            return await follow_ups.forget(session, failure_id)

    async def follow_up_outbox(self) -> list[OutboxStatus]:
        """What waits in the outbox, by spec: many old rows mean that no process with that spec runs."""
        from awa_actors.store import outbox

        async with self._pool.acquire() as session:
            return await outbox.status(session)

    async def retire_outbox_spec(self, kind: str, spec: str) -> int:
        """Stop writing outbox rows for a spec that no code has any more; returns how many waiting rows went with it.

        Raises:
            NotFound: it is not declared.
        """
        from awa_actors.store import outbox

        async with self._pool.acquire() as session, session.transaction():
            dropped = await outbox.retire_outbox(session, kind, spec)
        if dropped is None:
            raise NotFound(f"the outbox has no spec {spec!r} of kind {kind!r}")
        return dropped

    async def follow_up_drift(self) -> list[str]:
        """Where live processes disagree about follow-ups in code, in words; empty when all agree."""
        from awa_actors.core.follow_up_drift import Speaker, drift
        from awa_actors.store import instances, leadership

        async with self._pool.acquire() as session:
            live = [one for one in await instances.instances(session) if one.alive]
            lease = await leadership.look(session)
        return drift(
            [
                Speaker(
                    f"{one.role} {one.hostname}:{one.pid}",
                    one.kinds,
                    {(outcome, kind, name) for outcome, kind, name in one.details.get("follow_ups", ())},
                    lease is not None and lease.holder == one.id,
                )
                for one in live
            ]
        )

    async def declared_follow_ups(self) -> list[DeclaredFollowUp]:
        """Follow-ups that are declared as data, of all applications."""
        from awa_actors.store import outbox

        async with self._pool.acquire() as session:
            return await outbox.declared(session)

    async def withdraw_follow_up(self, name: str, application: str | None = None) -> None:
        """Delete a declared follow-up; code that still declares it brings it back at its next start.

        Args:
            name: as declared.
            application: its owner; None for this client's registry.

        Raises:
            NotFound: nobody declared it.
        """
        from awa_actors.store import outbox

        owner = self._registry.application if application is None else application
        async with self._pool.acquire() as session:
            if not await outbox.withdraw(session, owner, name):
                raise NotFound(f"application {owner!r} has declared no follow-up {name!r}")


async def follow_cancel(session: Session, registry: Registry, row: JobRow, reason: str) -> None:
    """Enqueue what follows from a cancellation, in the transaction that made it.

    Raises:
        FollowUpError: a follow-up failed; roll back.
    """
    from awa_actors.store import follow_ups

    args = row.args
    if ("cancelled", row.kind) in registry.follow_ups:
        try:
            args = structure(args, registry.args_types[row.kind])
        except ValidationError as error:
            raise FollowUpError(f"the follow-ups of job {row.id} cannot read its args: {error}") from error
    await follow_ups.enqueue(session, registry, "cancelled", Cancelled(job=row, args=args, reason=reason))
