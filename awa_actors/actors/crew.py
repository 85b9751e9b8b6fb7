"""The attempts of one worker: where dispatchers hand claims over, and where stopping reaches every handler."""

from __future__ import annotations

import datetime as dt
import functools
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import attrs
import orjson
import trio

from awa_actors import codec
from awa_actors.actors.attempt import Attempt
from awa_actors.actors.callbacks import Callbacks
from awa_actors.actors.liveness import LivenessActor
from awa_actors.actors.messages import Ended
from awa_actors.actors.observers import Observers
from awa_actors.actors.outcome_events import claimed_row, event_of
from awa_actors.actors.runners import Runners
from awa_actors.actors.unknown_kind import UNKNOWN, given_back
from awa_actors.config import QueueConfig, WorkerSettings
from awa_actors.core.outcome import COMPLETED, GIVE_BACK, Cause, Decision, Outcome
from awa_actors.core.trace_context import traceparent_of
from awa_actors.errors import StoreError, ValidationError
from awa_actors.events import Started
from awa_actors.jobs import Completion, JobState
from awa_actors.registry import Registry
from awa_actors.store import caller_owned
from awa_actors.store.claim import Claim, Claimed
from awa_actors.store.connection import OwnConnection
from awa_actors.store.pool import Pool
from awa_actors.store.settle import lost, note

RECONCILE_AGAIN = 0.5
"""Seconds between looks at an attempt whose end only the database knows, while that is away."""

logger = logging.getLogger("awa_actors.worker")


@attrs.define(eq=False)
class _Errand:
    """One attempt on its way through a runner."""

    crew: Crew
    attempt: Attempt
    done: Callable[[], None]
    began: float = 0.0

    @property
    def keeps_scope(self) -> bool:
        return self.attempt.deadline is not None or self.attempt.cause is not None

    def run(self, scope: trio.CancelScope) -> Coroutine[Any, Any, Decision]:
        self.began = time.perf_counter()
        if self.attempt.claimed.kind in self.crew.registry.observers:
            self.crew.announce(self.attempt)
        return self.attempt.run(scope)

    def damaged(self, error: RuntimeError) -> Decision:
        claimed = self.attempt.claimed
        logger.error("job %d: a handler of %r left a scope or a nursery open", claimed.job_id, claimed.kind)
        return self.attempt.failed_with(f"the handler left a cancel scope or a nursery open: {error}")

    def waits(self) -> None:
        self.attempt.waited = True

    def finish_nowait(self, outcome: Decision) -> bool:
        duration = time.perf_counter() - self.began
        if outcome is not COMPLETED or not self.crew.completed_nowait(self.attempt, duration):
            return False
        self._leave()
        return True

    async def finish(self, outcome: Decision) -> None:
        self._leave()
        await self.crew.ended(self.attempt, outcome, time.perf_counter() - self.began)

    def gave_up(self) -> None:
        self._leave()
        self.crew.late.append(Ended(self.attempt, GIVE_BACK, 0.0))

    def _leave(self) -> None:
        self.crew.running.pop(self.attempt.claimed[:2], None)
        self.done()


class _TracedErrand(_Errand):
    """One whose handler runs in a span of its own."""

    def run(self, scope: trio.CancelScope) -> Coroutine[Any, Any, Decision]:
        attempt, tracing = self.attempt, self.crew.client.meters.tracing
        claimed, extras = attempt.claimed, attempt.claimed.extras
        parent = None if extras is None else traceparent_of(orjson.loads(extras).get("metadata"))
        run: Coroutine[Any, Any, Decision] = tracing.attempt(
            super().run(scope), job_id=claimed.job_id, kind=claimed.kind, queue=attempt.queue, attempt=claimed.attempt,
            parent=parent,
        )  # fmt: skip
        return run


@attrs.define(eq=False)
class Crew:
    """What runs, and what ended too late to be told.

    Args:
        client: what handlers get as ``job.client``.
        pool: what callbacks are registered through.
        control: the connection for looking after running attempts, so that handlers that use up the pool starve
            neither cancellation nor their own notes.
        drain: called when the worker must take no more work.

    Shape: implements :class:`~awa_actors.actors.dispatcher.Runner` and :class:`~awa_actors.actors.attempt.Services`.
    """

    client: Any
    pool: Pool
    control: OwnConnection
    registry: Registry
    settings: WorkerSettings
    liveness: LivenessActor
    observers: Observers
    completions: trio.MemorySendChannel[Ended]
    others: trio.MemorySendChannel[Ended]
    nursery: trio.Nursery
    drain: Callable[[], None]
    running: dict[tuple[int, int], Attempt] = attrs.field(factory=dict)
    late: list[Ended] = attrs.field(factory=list)
    runners: Runners = attrs.field(
        default=attrs.Factory(lambda self: Runners(self.nursery, self.drain), takes_self=True)
    )
    callbacks: Callbacks = attrs.field(
        default=attrs.Factory(lambda self: Callbacks(self.pool, self.settings.cancel_poll), takes_self=True)
    )
    _errand: type[_Errand] = attrs.field(
        default=attrs.Factory(lambda self: _errand_of(self.client), takes_self=True), init=False
    )
    _told: set[tuple[int, int]] = attrs.field(factory=set)
    _limiters: dict[str, trio.CapacityLimiter] = attrs.field(factory=dict)
    _control_lock: trio.Lock = attrs.field(factory=trio.Lock)
    _look: trio.Event = attrs.field(factory=trio.Event)

    def may_claim(self) -> bool:
        """Whether the stored beat is fresh enough to take more work."""
        return self.liveness.may_claim()

    def instance(self) -> uuid.UUID:
        """The current incarnation."""
        return self.liveness.instance

    def knows(self, key: tuple[int, int]) -> bool:
        """Whether an attempt runs here, or has ended and waits to be recorded."""
        return key in self.running or key in self._told

    def recorded(self, attempts: Iterable[Attempt]) -> None:
        """The ends of attempts are durable."""
        self._told.difference_update([attempt.claimed[:2] for attempt in attempts])

    def start(self, claimed: Claimed, claim: Claim, queue: QueueConfig, done: Callable[[], None]) -> None:
        """Run a claimed attempt; an unknown kind is given back, visibly and uncounted."""
        spec = self.registry.workers.get(claimed.kind)
        if spec is None:
            attempt = Attempt(claimed, queue.name, claim.instance, UNKNOWN, self, None)
            self._told.add(attempt.key)
            self.nursery.start_soon(self._give_back, attempt, done, name=f"give back job {claimed.job_id}")
            return
        seconds = None
        if claimed.deadline_at is not None and claim.claimed_at is not None:
            seconds = (claimed.deadline_at - claim.claimed_at).total_seconds()
        attempt = Attempt(
            claimed, queue.name, claim.instance, spec, self, seconds, None if spec.is_async else self._caller(queue),
            interrupted_bound=self.settings.interrupted_bound,
        )  # fmt: skip
        self.running[claimed[:2]] = attempt
        self.runners.submit(self._errand(self, attempt, done))

    def give_back(self, claimed: Claimed, claim: Claim, queue: QueueConfig) -> None:
        """A claim that was never started goes back to its place, uncounted."""
        ended = Ended(Attempt(claimed, queue.name, claim.instance, UNKNOWN, self, None), GIVE_BACK, 0.0)
        self._told.add(ended.attempt.key)
        try:
            self.others.send_nowait(ended)
        except (trio.WouldBlock, trio.ClosedResourceError):
            self.late.append(ended)

    def _caller(self, queue: QueueConfig) -> Callable[..., Any]:
        limiter = self._limiters.get(queue.name)
        if limiter is None:
            limiter = self._limiters[queue.name] = trio.CapacityLimiter(queue.max_workers)
        return functools.partial(trio.to_thread.run_sync, limiter=limiter)

    async def ended(self, attempt: Attempt, decision: Decision, duration: float) -> None:
        """Tell what to record about an attempt whose handler has ended."""
        if decision.outcome is Outcome.RECEIPT or attempt.spec.completion is Completion.CALLER_OWNED:
            # In a task of its own: this one may have to run other attempts.
            ended = Ended(attempt, decision, duration)
            self._told.add(attempt.key)
            self.nursery.start_soon(self._reconcile, ended, name=f"reconcile job {attempt.claimed.job_id}")
        elif decision.outcome is not Outcome.STALE:
            await self._tell(Ended(attempt, decision, duration))

    def completed_nowait(self, attempt: Attempt, duration: float) -> bool:
        """Tell that an attempt is to be completed, if there is room; most attempts end here."""
        if attempt.spec.completion is Completion.CALLER_OWNED:
            return False
        key = attempt.claimed[:2]
        self._told.add(key)
        try:
            self.completions.send_nowait(Ended(attempt, COMPLETED, duration))
        except trio.WouldBlock:
            self._told.discard(key)
            return False
        return True

    async def _tell(self, ended: Ended) -> None:
        mailbox = self.completions if ended.decision.outcome is Outcome.COMPLETED else self.others
        self._told.add(ended.attempt.claimed[:2])
        try:
            mailbox.send_nowait(ended)
            return
        except trio.WouldBlock:
            pass
        try:
            await mailbox.send(ended)
        except trio.Cancelled:
            self.late.append(ended)
            raise

    def announce(self, attempt: Attempt) -> None:
        """Tell the observers that an attempt begins."""
        row = claimed_row(attempt.claimed, attempt.queue, JobState.RUNNING, None)
        try:
            args = codec.decode(attempt.claimed.args, attempt.spec.args)
        except ValidationError:  # the attempt itself reports what is wrong with its args
            return
        self.observers.tell(attempt.claimed.kind, Started(job=row, args=args))

    async def _give_back(self, attempt: Attempt, done: Callable[[], None]) -> None:
        done()
        await self._tell(Ended(attempt, given_back(attempt), 0.0))

    async def _reconcile(self, ended: Ended) -> None:
        """Look what the handler's own transaction did before anything is recorded.

        A receipt may be of a transaction that was rolled back; a handler that raised may have committed before, or have
        lost the answer to its commit.

        Cancellation: what was to be recorded is recorded by the last step; the guard refuses what is not true any more.
        """
        attempt, outcome = ended.attempt, ended.decision.outcome
        try:
            state, at = await self._state_of(attempt)
        except trio.Cancelled:
            if outcome not in (Outcome.RECEIPT, Outcome.STALE):
                self.late.append(ended)
            raise
        job_id, kind = attempt.claimed.job_id, attempt.claimed.kind
        if state != "live" or outcome is Outcome.STALE:
            self.recorded([attempt])
        if state == "completed" and at is not None:
            if outcome is not Outcome.RECEIPT:
                why = ended.decision.fields.get("error", outcome.value)
                logger.warning("job %d was completed by its handler, which then ended otherwise: %s", job_id, why)
            if self.observers.wants(kind) and (event := event_of(ended, at)) is not None:
                self.observers.tell(kind, event)
        elif state == "live" and outcome is Outcome.RECEIPT:
            failed = attempt.failed_with("returned a receipt of a transaction that was not committed")
            await self._tell(attrs.evolve(ended, decision=failed))
        elif state == "live" and outcome is not Outcome.STALE:
            await self._tell(ended)

    async def _state_of(self, attempt: Attempt) -> tuple[str, dt.datetime | None]:
        """What the database says of an attempt, however long it is away: without that, nothing may be recorded."""
        claimed = attempt.claimed
        while True:
            try:
                async with self._control_lock:
                    session = await self.control.session()
                    return await caller_owned.attempt_state(
                        session, claimed.job_id, claimed.run_lease, attempt.instance
                    )
            except StoreError as error:
                logger.warning("job %d: cannot look whether it was completed, trying again: %s", claimed.job_id, error)
            await trio.sleep(RECONCILE_AGAIN)

    def stop_all(self, cause: Cause) -> None:
        """Cancel every running handler."""
        for attempt in list(self.running.values()):
            attempt.stop(cause)

    def cancel(self, job_id: int, run_lease: int) -> None:
        """A cancellation was announced; if the attempt is ours, its handler is cancelled."""
        attempt = self.running.get((job_id, run_lease))
        if attempt is not None:
            attempt.stop(Cause.CANCEL)

    def look_soon(self) -> None:
        """Cancellations may have been announced while nobody listened."""
        self._look.set()

    async def watch(self) -> None:
        """Find cancelled and lost attempts by polling: what a missed notification would have said.

        Cancellation: the worker stops now, and says so to handlers in threads, which cannot be cancelled.
        """
        try:
            while True:
                with trio.move_on_after(self.settings.cancel_poll):
                    await self._look.wait()
                self._look = trio.Event()
                if mine := [attempt for attempt in self.running.values() if attempt.cause is None]:
                    try:
                        await self._look_after(mine)
                    except StoreError as error:
                        logger.debug("could not check running attempts: %s", error)
        except trio.Cancelled:
            self.stop_all(Cause.SHUTDOWN)
            raise

    async def _look_after(self, mine: list[Attempt]) -> None:
        for instance in {attempt.instance for attempt in mine}:
            held = [attempt.key for attempt in mine if attempt.instance == instance]
            async with self._control_lock:
                session = await self.control.session()
                gone = await lost(session, instance, [key[0] for key in held], [key[1] for key in held])
            for job_id, run_lease, cancelled in gone:
                if (attempt := self.running.get((job_id, run_lease))) is not None:
                    attempt.stop(Cause.CANCEL if cancelled else Cause.LOST_LEASE)

    async def store_notes(self, attempt: Attempt) -> bool:
        """Store progress and metadata of a running attempt."""
        notes = {name: orjson.dumps(value).decode() for name, value in attempt.notes().items()}
        progress, metadata = notes.get("progress"), notes.get("metadata")
        claimed = attempt.claimed
        async with self._control_lock:
            session = await self.control.session()
            return await note(session, claimed.job_id, claimed.run_lease, attempt.instance, progress, metadata)


def _errand_of(client: Any) -> type[_Errand]:
    return _Errand if client.meters.tracing is None else _TracedErrand
