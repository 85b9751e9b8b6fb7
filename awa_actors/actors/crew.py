"""The attempts of one worker: where dispatchers hand claims over, and where stopping reaches every handler."""

from __future__ import annotations

import functools
import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

import attrs
import orjson
import trio

from awa_actors import codec
from awa_actors.actors.attempt import Attempt
from awa_actors.actors.liveness import LivenessActor
from awa_actors.actors.messages import Ended
from awa_actors.actors.observers import Observers
from awa_actors.actors.outcome_events import claimed_row
from awa_actors.actors.unknown_kind import UNKNOWN, given_back
from awa_actors.config import QueueConfig, WorkerSettings
from awa_actors.core.outcome import Cause, Decision, Outcome
from awa_actors.errors import StoreError, ValidationError
from awa_actors.events import Started
from awa_actors.jobs import JobState
from awa_actors.registry import Registry, WorkerSpec
from awa_actors.store import caller_owned
from awa_actors.store.claim import Claim, Claimed
from awa_actors.store.pool import Pool
from awa_actors.store.settle import lost, note

logger = logging.getLogger("awa_actors.worker")


@attrs.define(eq=False)
class Crew:
    """What runs, and what ended too late to be told.

    Shape: implements :class:`~awa_actors.actors.dispatcher.Runner` and :class:`~awa_actors.actors.attempt.Services`.
    """

    client: Any
    pool: Pool
    registry: Registry
    settings: WorkerSettings
    liveness: LivenessActor
    observers: Observers
    completions: trio.MemorySendChannel[Ended]
    others: trio.MemorySendChannel[Ended]
    nursery: trio.Nursery
    running: dict[tuple[int, int], Attempt] = attrs.field(factory=dict)
    late: list[Ended] = attrs.field(factory=list)
    _limiters: dict[str, trio.CapacityLimiter] = attrs.field(factory=dict)

    def may_claim(self) -> bool:
        """Whether the stored beat is fresh enough to take more work."""
        return self.liveness.may_claim()

    def instance(self) -> uuid.UUID:
        """The current incarnation."""
        return self.liveness.instance

    def start(self, claimed: Claimed, claim: Claim, queue: QueueConfig, done: Callable[[], None]) -> None:
        """Run a claimed attempt in its own task; an unknown kind is given back, visibly and uncounted."""
        spec = self.registry.workers.get(claimed.kind)
        seconds = None
        if claimed.deadline_at is not None and claim.claimed_at is not None:
            seconds = (claimed.deadline_at - claim.claimed_at).total_seconds()
        attempt = Attempt(
            claimed, queue.name, self.instance(), spec or UNKNOWN, self, seconds,
            interrupted_bound=self.settings.interrupted_bound,
        )  # fmt: skip
        if spec is None:
            self.nursery.start_soon(self._give_back, attempt, done, name=f"give back job {claimed.job_id}")
            return
        self.running[attempt.key] = attempt
        self.nursery.start_soon(self._attempt, attempt, self._caller(spec, queue), done, name=claimed.kind)

    def give_back(self, claimed: Claimed, queue: QueueConfig) -> None:
        """A claim that was never started goes back to its place, uncounted."""
        attempt = Attempt(claimed, queue.name, self.instance(), UNKNOWN, self, None)
        ended = Ended(attempt, Decision(Outcome.GIVEN_BACK, {"give_back": True}), 0.0)
        try:
            self.others.send_nowait(ended)
        except trio.WouldBlock:
            self.late.append(ended)

    def _caller(self, spec: WorkerSpec, queue: QueueConfig) -> Callable[..., Any] | None:
        if spec.is_async:
            return None
        limiter = self._limiters.get(queue.name)
        if limiter is None:
            limiter = self._limiters[queue.name] = trio.CapacityLimiter(queue.max_workers)
        return functools.partial(trio.to_thread.run_sync, limiter=limiter)

    async def _attempt(self, attempt: Attempt, call: Callable[..., Any] | None, done: Callable[[], None]) -> None:
        began = time.perf_counter()
        if attempt.claimed.kind in self.registry.observers:
            self._announce(attempt)
        try:
            decision = await attempt.run(call)
        except BaseException:  # KeyboardInterrupt goes on up; the attempt goes back
            self.late.append(Ended(attempt, Decision(Outcome.GIVEN_BACK, {"give_back": True}), 0.0))
            raise
        finally:
            self.running.pop(attempt.key, None)
            done()
        if decision.outcome not in (Outcome.STALE, Outcome.RECEIPT):
            await self._tell(Ended(attempt, decision, time.perf_counter() - began))
        elif decision.outcome is Outcome.RECEIPT:
            await self._check_receipt(attempt)

    async def _tell(self, ended: Ended) -> None:
        mailbox = self.completions if ended.decision.outcome is Outcome.COMPLETED else self.others
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

    def _announce(self, attempt: Attempt) -> None:
        row = claimed_row(attempt.claimed, attempt.queue, JobState.RUNNING, None)
        try:
            args = codec.decode(attempt.claimed.args, attempt.spec.args)
        except ValidationError:  # the attempt itself reports what is wrong with its args
            return
        self.observers.tell(attempt.claimed.kind, Started(job=row, args=args))

    async def _give_back(self, attempt: Attempt, done: Callable[[], None]) -> None:
        done()
        await self._tell(Ended(attempt, given_back(attempt), 0.0))

    async def _check_receipt(self, attempt: Attempt) -> None:
        """A receipt says the handler's transaction completed the job; look, since it may have been rolled back."""
        claimed = attempt.claimed
        async with self.pool.acquire() as session:
            state = await caller_owned.attempt_state(session, claimed.job_id, claimed.run_lease, attempt.instance)
        if state == "live":
            await self._tell(
                Ended(attempt, attempt.failed_with("returned a receipt of a transaction that was not committed"), 0.0)
            )

    def stop_all(self, cause: Cause) -> None:
        """Cancel every running handler."""
        for attempt in list(self.running.values()):
            attempt.stop(cause)

    def cancel(self, job_id: int, run_lease: int) -> None:
        """A cancellation was announced; if the attempt is ours, its handler is cancelled."""
        attempt = self.running.get((job_id, run_lease))
        if attempt is not None:
            attempt.stop(Cause.CANCEL)

    async def watch(self) -> None:
        """Find cancelled and lost attempts by polling: what a missed notification would have said."""
        while True:
            await trio.sleep(self.settings.cancel_poll)
            mine = [attempt for attempt in self.running.values() if attempt.cause is None]
            if not mine:
                continue
            try:
                async with self.pool.acquire() as session:
                    for instance in {attempt.instance for attempt in mine}:
                        held = [attempt.key for attempt in mine if attempt.instance == instance]
                        gone = await lost(session, instance, [key[0] for key in held], [key[1] for key in held])
                        for job_id, run_lease, cancelled in gone:
                            if (attempt := self.running.get((job_id, run_lease))) is not None:
                                attempt.stop(Cause.CANCEL if cancelled else Cause.LOST_LEASE)
            except StoreError as error:
                logger.debug("could not check running attempts: %s", error)

    async def store_notes(self, attempt: Attempt) -> bool:
        """Store progress and metadata of a running attempt."""
        notes = {name: orjson.dumps(value).decode() for name, value in attempt.notes().items()}
        claimed = attempt.claimed
        async with self.pool.acquire() as session:
            return await note(
                session,
                claimed.job_id,
                claimed.run_lease,
                attempt.instance,
                notes.get("progress"),
                notes.get("metadata"),
            )
