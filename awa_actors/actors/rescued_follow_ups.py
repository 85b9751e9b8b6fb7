"""What follows from rescues: user code that nothing waits for. Best effort after the commit, or through the outbox.

Closures run in threads with a bound, one per spec: one that hangs holds up itself alone, and only in this process.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from awa_actors.actors.lane import StepReport
from awa_actors.actors.outcome_events import event_record, rescued_event
from awa_actors.core.text import error_text, storable
from awa_actors.errors import AwaError, TransientStoreError, ValidationError
from awa_actors.events import Rescued
from awa_actors.jobs import Delivery
from awa_actors.registry import FollowUpSpec
from awa_actors.store import follow_ups, outbox
from awa_actors.store.follow_up_plan import PlannedJob, SpecFailed, Specs, plan_one
from awa_actors.store.pool import Session
from awa_actors.store.rescue import RescuedJob
from awa_actors.store.rows import job_row

CLOSURE_LIMIT = 10.0
"""Seconds a batch of one spec's closures may take."""
OUTBOX_INTERVAL = 5.0
"""Seconds between looks at the outbox; a rescue of this process wakes it at once."""
LEASE_MARGIN = 20.0
"""Seconds on top of CLOSURE_LIMIT until another process may try rows that this one took and never finished."""
TOLD_BATCH = 512
"""Committed rescues whose closures are evaluated together."""
PARK_AFTER = 5
"""Tries after which a row is parked among the recorded failures."""
RETRY_FIRST, RETRY_MOST = 1.0, 300.0

Outcomes = list[tuple[RescuedJob, PlannedJob | SpecFailed]]

logger = logging.getLogger("awa_actors.follow_ups")


@attrs.define(eq=False)
class RescuedFollowUps:
    """Evaluates and enqueues the follow-ups of rescues.

    Args:
        specs: which.
        closure_limit: seconds, see CLOSURE_LIMIT.
        dropped: best-effort follow-ups that are lost.
    """

    specs: Specs
    closure_limit: float = CLOSURE_LIMIT
    dropped: int = 0
    _threads: dict[tuple[str, str], trio.CapacityLimiter] = attrs.field(factory=dict, init=False)
    _is_published: bool = attrs.field(default=False, init=False)

    def best_effort(self, kind: str) -> list[FollowUpSpec]:
        """Specs of a kind that are evaluated after the rescue's commit."""
        return [spec for spec in self.specs.of("rescued", kind) if spec.delivery is Delivery.BEST_EFFORT]

    async def publish(self, session: Session) -> None:
        """Store what this process declares, and read what all declare.

        Raises:
            StoreError: as it says; nothing is half published that a second call would not repair.
        """
        registry = self.specs.registry
        for declared in registry.declared_follow_ups.values():
            await outbox.publish(session, declared)
        await self._read(session)
        if specs := self.specs.outbox():
            await outbox.declare_outbox(session, specs, registry.application)
        self._is_published = True

    async def refresh(self, session: Session) -> None:
        """Read the declarations of all applications again; the first time, publish this process's before."""
        await (self._read(session) if self._is_published else self.publish(session))

    async def _read(self, session: Session) -> None:
        stored = await outbox.declared(session)
        self.specs.set_declared(stored)
        for difference in self.specs.drift(stored):
            logger.warning("%s", difference)

    def is_hanging(self, spec: FollowUpSpec) -> bool:
        """Whether a thread of this spec has not come back."""
        limiter = self._threads.get((spec.kind, spec.name))
        return limiter is not None and limiter.borrowed_tokens > 0

    async def evaluate(self, spec: FollowUpSpec, rescued: Sequence[RescuedJob]) -> Outcomes:
        """Evaluate a spec in a thread, within the limit; every answer is a value.

        Cancellation: the thread is left to itself.
        """
        if self.is_hanging(spec):
            return self._all_failed(spec, rescued, "its closure has not come back from an earlier event")
        limiter = self._threads.setdefault((spec.kind, spec.name), trio.CapacityLimiter(1))
        with trio.move_on_after(self.closure_limit):
            answers = await trio.to_thread.run_sync(
                self._plan_all, spec, rescued, abandon_on_cancel=True, limiter=limiter
            )
            return list(zip(rescued, answers, strict=True))
        return self._all_failed(spec, rescued, f"its closure took longer than {self.closure_limit:g} s")

    def _all_failed(self, spec: FollowUpSpec, rescued: Sequence[RescuedJob], why: str) -> Outcomes:
        return [(one, SpecFailed(spec.name, why)) for one in rescued]

    def _plan_all(self, spec: FollowUpSpec, rescued: Sequence[RescuedJob]) -> list[PlannedJob | SpecFailed]:
        return [self._plan(spec, one) for one in rescued]

    def _plan(self, spec: FollowUpSpec, one: RescuedJob) -> PlannedJob | SpecFailed:
        try:
            event: Rescued[Any] = rescued_event(one, None if spec.args is object else spec.args)
        except ValidationError as error:
            return SpecFailed(spec.name, error_text(error))
        return plan_one(spec, event, self.specs.registry.max_follow_up_depth)

    async def deliver(self, session: Callable[[], Awaitable[Session]], rescued: Sequence[RescuedJob]) -> None:
        """Enqueue the best-effort follow-ups of committed rescues. What fails is recorded if it can be, and counted.

        Args:
            session: gives a connection outside a transaction.
            rescued: what is durable already.
        """
        kinds = dict.fromkeys(one.job.kind for one in rescued)
        for kind in kinds:
            for spec in self.best_effort(kind):
                answers = await self.evaluate(spec, [one for one in rescued if one.job.kind == kind])
                try:
                    await self._insert(await session(), answers)
                except AwaError as error:
                    self.dropped += len(answers)
                    logger.error(
                        "%d rescued follow-ups of %s could not be enqueued: %s", len(answers), spec.name, error
                    )

    async def _insert(self, session: Session, answers: Outcomes) -> None:
        jobs = [answer.job for _, answer in answers if isinstance(answer, PlannedJob)]
        try:
            if jobs:
                await follow_ups.insert(session, jobs)
            failed = [(one, answer) for one, answer in answers if isinstance(answer, SpecFailed)]
        except TransientStoreError:
            raise
        except AwaError:
            failed = await self._insert_each(session, answers)
        for one, failure in failed:
            self.dropped += 1
            logger.error("follow-up %s of rescued job %d failed: %s", failure.spec, one.job.id, failure.error)
            await record(session, one, failure)

    async def _insert_each(self, session: Session, answers: Outcomes) -> list[tuple[RescuedJob, SpecFailed]]:
        failed: list[tuple[RescuedJob, SpecFailed]] = []
        for one, answer in answers:
            if isinstance(answer, PlannedJob):
                async with session.transaction():
                    refused = await follow_ups.in_savepoint(session, follow_ups.insert(session, [answer.job]))
                if refused is None:
                    continue
                answer = SpecFailed(answer.spec, storable(str(refused)))
            failed.append((one, answer))
        return failed


@attrs.define(eq=False)
class FollowUpStep:
    """One pass over the outbox, and a look at what is declared. Any process that has a spec drains it, leader or not.

    Args:
        rescued: evaluates.
        interval: seconds between passes.
        told: committed rescues whose best-effort follow-ups are delivered first.
    """

    rescued: RescuedFollowUps
    interval: float = OUTBOX_INTERVAL
    told: list[RescuedJob] = attrs.field(factory=list)
    name: str = "follow-ups"

    async def run(self, session: Session, rows: int) -> StepReport:
        """Take due rows of each spec, evaluate, and enqueue or put off."""
        await self.rescued.refresh(session)
        await self.deliver_told(partial(_same, session))
        done, more, hanging = 0, False, []
        specs = {(spec.kind, spec.name): spec for spec in self.rescued.specs.outbox()}
        due = await outbox.waiting(session, [name for _, name in specs]) if specs else set()
        for key in sorted(due & specs.keys()):
            spec = specs[key]
            if self.rescued.is_hanging(spec):
                hanging.append(spec.name)
                continue
            took = await self._drain(session, spec, rows)
            done += took
            more = more or took > 0
        blocked = f"closures that have not come back: {', '.join(hanging)}" if hanging else None
        return StepReport(done, more, blocked=blocked)

    async def deliver_told(self, session: Callable[[], Awaitable[Session]]) -> None:
        """Deliver what was told, a bounded batch at a time.

        Cancellation: the batch under way is lost, which is what best effort means; the rest is still told.
        """
        while self.told:
            batch = self.told[:TOLD_BATCH]
            del self.told[:TOLD_BATCH]
            await self.rescued.deliver(session, batch)

    async def _drain(self, session: Session, spec: FollowUpSpec, rows: int) -> int:
        lease = self.rescued.closure_limit + LEASE_MARGIN
        taken = await outbox.take(session, spec.kind, spec.name, fresh=True, rows=rows, lease=lease)
        if not taken:
            taken = await outbox.take(session, spec.kind, spec.name, fresh=False, rows=1, lease=lease)
        tried = [row for row in taken if row.tries <= PARK_AFTER]
        for row in taken:
            if row.tries > PARK_AFTER:
                await self._park(session, spec, row, row.error or "the processes that evaluated it ended")
        if tried:
            answers = await self.rescued.evaluate(spec, [RescuedJob(job_row(row.job), row.reason) for row in tried])
            await self._settle(session, spec, [(row, answer) for row, (_, answer) in zip(tried, answers, strict=True)])
        return len(taken)

    async def _settle(
        self, session: Session, spec: FollowUpSpec, answers: list[tuple[outbox.OutboxRow, PlannedJob | SpecFailed]]
    ) -> None:
        planned = [(row, answer) for row, answer in answers if isinstance(answer, PlannedJob)]
        try:
            await self._enqueue(session, planned)
        except TransientStoreError:
            raise
        except AwaError as error:
            if len(planned) > 1:
                for one in planned:
                    await self._settle(session, spec, [one])
            else:
                await self._put_off(session, spec, planned[0][0], str(error))
        for row, answer in answers:
            if isinstance(answer, SpecFailed):
                await self._put_off(session, spec, row, answer.error, final=answer.final)

    async def _enqueue(self, session: Session, planned: list[tuple[outbox.OutboxRow, PlannedJob]]) -> None:
        if not planned:
            return
        async with session.transaction():
            mine = await outbox.finish(session, [row.id for row, _ in planned])
            jobs = [answer.job for row, answer in planned if row.id in mine]
            if jobs:
                await follow_ups.insert(session, jobs)

    async def _put_off(
        self, session: Session, spec: FollowUpSpec, row: outbox.OutboxRow, error: str, *, final: bool = False
    ) -> None:
        if final or row.tries >= PARK_AFTER:
            await self._park(session, spec, row, error)
            return
        delay = min(RETRY_MOST, RETRY_FIRST * 4.0 ** (row.tries - 1))
        logger.warning("follow-up %s failed, next try in %.0f s: %s", spec.name, delay, error)
        await outbox.put_off(session, row, error, delay)

    async def _park(self, session: Session, spec: FollowUpSpec, row: outbox.OutboxRow, error: str) -> None:
        one = RescuedJob(job_row(row.job), row.reason)
        logger.error(
            "follow-up %s of rescued job %d is parked after %d tries: %s", spec.name, one.job.id, row.tries, error
        )
        async with session.transaction():
            if await outbox.finish(session, [row.id]):
                await record(session, one, SpecFailed(spec.name, error))


async def _same(session: Session) -> Session:
    return session


async def record(session: Session, one: RescuedJob, failure: SpecFailed) -> None:
    """Record a rescued follow-up that is missing, for operators to see and replay."""
    event = event_record(rescued_event(one, None))
    await follow_ups.record_failure(session, one.job.id, one.job.kind, "rescued", failure, event)
