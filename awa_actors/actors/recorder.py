"""Records ends of attempts in batches, each with the follow-up jobs that belong to it: both are committed, or neither.

Two of these run in a worker: the completer takes plain completions, reschedule takes everything else, so that a storm
of failures does not slow successes. Each owns one connection, so handlers that use up the pool starve neither.
"""

from __future__ import annotations

import logging
from typing import Any

import attrs
import trio

from awa_actors.actors.messages import Ended, PlanFollowUps, Planned, Reply, SpecFailed
from awa_actors.actors.observers import Observers
from awa_actors.actors.outcome_events import event_of
from awa_actors.core.outcome import Decision, Outcome
from awa_actors.errors import StoreError, TransientStoreError
from awa_actors.jobs import JobRow
from awa_actors.registry import Registry
from awa_actors.store import follow_ups
from awa_actors.store.complete import complete
from awa_actors.store.connection import OwnConnection
from awa_actors.store.insert import NewJob
from awa_actors.store.pool import Session
from awa_actors.store.settle import note_body, settle

BATCH = 512
MAILBOX = 1024
"""Two batches: one being written, one waiting; beyond that handlers wait, which is the back-pressure."""
RETRY_FIRST, RETRY_MOST = 0.05, 5.0

GIVE_BACK = Decision(Outcome.GIVEN_BACK, {"give_back": True})

logger = logging.getLogger("awa_actors.worker")


@attrs.frozen(eq=False)
class Recorder:
    """Owns one connection and one mailbox of :class:`Ended`."""

    name: str
    connection: OwnConnection
    registry: Registry
    mailbox: trio.MemoryReceiveChannel[Ended]
    planner: trio.MemorySendChannel[PlanFollowUps]
    observers: Observers
    failures_allowed: int
    unwritten: list[Ended] = attrs.field(factory=list)
    ended: trio.Event = attrs.field(factory=trio.Event)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Record until the last sender has gone, then end.

        Cancellation: what was not written is left in `unwritten` and in the mailbox, for the worker's last step.
        """
        await self.connection.session()
        task_status.started()
        async with self.connection:
            async for first in self.mailbox:
                batch = [first]
                while len(batch) < BATCH:
                    try:
                        batch.append(self.mailbox.receive_nowait())
                    except (trio.WouldBlock, trio.EndOfChannel):
                        break
                try:
                    await self.record_surely(batch)
                except trio.Cancelled:
                    self.unwritten.extend(batch)
                    raise
        self.ended.set()

    def left_over(self) -> list[Ended]:
        """What was told but not written, after `run` was cancelled."""
        while True:
            try:
                self.unwritten.append(self.mailbox.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                return self.unwritten

    async def record_surely(self, batch: list[Ended]) -> None:
        """Record a batch, however long the database is away; fencing, not a count, is what bounds this."""
        delay = RETRY_FIRST
        while True:
            try:
                await self.record(await self.connection.session(), batch)
                return
            except StoreError as error:
                logger.warning(
                    "%s: could not record %d attempts, trying again in %.2f s: %s", self.name, len(batch), delay, error
                )
                if not isinstance(error, TransientStoreError) and len(batch) > 1:
                    for ended in batch:  # one that the database refuses must not hold up the others
                        await self.record_surely([ended])
                    return
            await trio.sleep(delay)
            delay = min(delay * 2, RETRY_MOST)

    async def record(self, session: Session, batch: list[Ended]) -> None:
        """Record a batch once, with follow-ups and events."""
        plain: list[Ended] = []
        followed: list[Ended] = []
        for ended in batch:
            (followed if self._has_specs(ended) else plain).append(ended)
        if plain:
            landed = await self._write(session, plain)
            self._observe(plain, landed)
        if followed:
            await self._record_followed(session, followed)

    async def record_plainly(self, session: Session, batch: list[Ended]) -> None:
        """Record a stopping worker's last ends.

        The dispatcher has gone by then, so an outcome with follow-ups is not written:
        its attempt goes back, uncounted, and its next run commits both.
        """
        plain = [attrs.evolve(ended, decision=GIVE_BACK) if self._has_specs(ended) else ended for ended in batch]
        self._observe(plain, await self._write(session, plain))

    def _has_specs(self, ended: Ended) -> bool:
        return (ended.decision.outcome.value, ended.attempt.claimed.kind) in self.registry.follow_ups

    async def _write(self, session: Session, batch: list[Ended]) -> dict[int, JobRow | Any]:
        """Write the ends. Returns what landed by job id: a row, or the database's time of a completion."""
        landed: dict[int, Any] = {}
        for instance in {ended.attempt.instance for ended in batch}:
            mine = [ended for ended in batch if ended.attempt.instance == instance]
            completions = [ended.attempt for ended in mine if ended.decision.outcome is Outcome.COMPLETED]
            if completions:
                claims = [attempt.claimed for attempt in completions]
                for attempt in completions:
                    if (metadata := attempt.notes().get("metadata")) is not None:
                        await note_body(session, attempt.claimed.job_id, attempt.claimed.run_lease, instance, metadata)
                done, at = await complete(
                    session,
                    instance,
                    [c.job_id for c in claims],
                    [c.run_lease for c in claims],
                    [c.lslot for c in claims],
                )
                landed.update(dict.fromkeys(done, at))
            others = [ended for ended in mine if ended.decision.outcome is not Outcome.COMPLETED]
            if others:
                landed.update(await settle(session, instance, [_entry(ended) for ended in others]))
        for ended in batch:
            if ended.attempt.claimed.job_id not in landed:
                logger.warning("job %d: its attempt %d had been taken away; outcome %s is dropped",
                               ended.attempt.claimed.job_id, ended.attempt.claimed.attempt,
                               ended.decision.outcome.value)  # fmt: skip
        return landed

    async def _record_followed(self, session: Session, batch: list[Ended]) -> None:
        """One transaction for all; if a closure or an insert fails, the batch is redone without its job."""
        failed: dict[int, SpecFailed] = {}
        rest = batch
        while rest:
            try:
                async with session.transaction():
                    landed = await self._write(session, rest)
                    jobs, broken = await self._plan(rest, landed)
                    if broken:
                        raise _RedoWithout(broken)
                    if jobs:
                        await follow_ups.insert(session, jobs)
            except _RedoWithout as redo:
                failed.update(redo.failed)
                rest = [ended for ended in rest if ended.attempt.claimed.job_id not in redo.failed]
                continue
            except StoreError as error:
                if isinstance(error, TransientStoreError):
                    raise
                if len(rest) > 1:
                    for ended in rest:
                        await self._record_followed(session, [ended])
                else:
                    failed[rest[0].attempt.claimed.job_id] = SpecFailed("insert", str(error))
                break
            self._observe(rest, landed)
            break
        for ended in batch:
            if (failure := failed.get(ended.attempt.claimed.job_id)) is not None:
                await self._record_without(session, ended, failure)

    async def _plan(self, batch: list[Ended], landed: dict[int, Any]) -> tuple[list[NewJob], dict[int, SpecFailed]]:
        events = [
            (ended.decision.outcome.value, event_of(ended, landed[ended.attempt.claimed.job_id]))
            for ended in batch
            if ended.attempt.claimed.job_id in landed
        ]
        reply: Reply[list[Planned | SpecFailed]] = Reply()
        await self.planner.send(PlanFollowUps(events, reply))
        jobs: list[NewJob] = []
        failed: dict[int, SpecFailed] = {}
        for (_, event), answer in zip(events, await reply.wait(), strict=True):
            match answer:
                case Planned():
                    jobs.extend(answer.jobs)
                case SpecFailed():
                    failed[event.job.id] = answer
        return jobs, failed

    async def _record_without(self, session: Session, ended: Ended, failure: SpecFailed) -> None:
        """A follow-up failed: run the attempt again with that error; after enough failures, commit without it."""
        claimed = ended.attempt.claimed
        earlier = 0 if ended.attempt.job is None else int(ended.attempt.job.metadata.get(follow_ups.FAILURES_KEY, 0))
        text = f"follow-up {failure.spec} failed: {failure.error}"
        if earlier + 1 < self.failures_allowed and claimed.attempt < claimed.max_attempts:
            fields = {
                "state": "retryable",
                "delay": 1.0,
                "error": text,
                "metadata": {follow_ups.FAILURES_KEY: earlier + 1},
            }
            landed = await self._write(session, [attrs.evolve(ended, decision=Decision(Outcome.RETRIED, fields))])
            logger.error("job %d: %s; the attempt is run again", claimed.job_id, text)
        else:
            async with session.transaction():
                landed = await self._write(session, [ended])
                if claimed.job_id in landed:
                    await follow_ups.record_failure(
                        session, claimed.job_id, claimed.kind, ended.decision.outcome.value, failure
                    )
            logger.error("job %d: %s; its outcome stands without it, see 'doctor'", claimed.job_id, text)
            self._observe([ended], landed)

    def _observe(self, batch: list[Ended], landed: dict[int, Any]) -> None:
        for ended in batch:
            kind, job_id = ended.attempt.claimed.kind, ended.attempt.claimed.job_id
            if (
                kind in self.registry.observers
                and job_id in landed
                and (event := event_of(ended, landed[job_id])) is not None
            ):
                self.observers.tell(kind, event)


class _RedoWithout(Exception):
    def __init__(self, failed: dict[int, SpecFailed]) -> None:
        self.failed = failed
        super().__init__(len(failed))


def _entry(ended: Ended) -> dict[str, Any]:
    claimed = ended.attempt.claimed
    fields = ended.decision.fields
    metadata = {**ended.attempt.notes().get("metadata", {}), **fields.get("metadata", {})}
    entry = {"job_id": claimed.job_id, "run_lease": claimed.run_lease, **ended.attempt.notes(), **fields}
    return {**entry, "metadata": metadata} if metadata else entry
