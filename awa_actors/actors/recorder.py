"""Records ends of attempts in batches, each with the follow-up jobs that belong to it: both are committed, or neither.

Two of these run in a worker: the completer takes plain completions, reschedule takes everything else, so that a storm
of failures does not slow successes. Each owns one connection, so handlers that use up the pool starve neither. Where
follow-ups of completions are registered, there are two completers on one mailbox.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, assert_never

import attrs
import orjson
import trio

from awa_actors.actors.follow_ups import FollowUps
from awa_actors.actors.messages import Ended
from awa_actors.actors.meters import Landed, Meters
from awa_actors.actors.observers import Observers
from awa_actors.actors.outcome_events import event_of, event_record, possible_outcomes
from awa_actors.core.outcome import Decision, Outcome
from awa_actors.core.reschedule import CancelledDuplicate, Migrated, Refused, Rescheduled, Stale
from awa_actors.core.text import storable
from awa_actors.errors import AwaError, TransientStoreError, UsageError
from awa_actors.events import Event
from awa_actors.jobs import JobRow
from awa_actors.store import follow_ups
from awa_actors.store.callbacks import park
from awa_actors.store.complete import complete
from awa_actors.store.connection import OwnConnection
from awa_actors.store.follow_up_plan import FAILURES_KEY, SpecFailed, outcome_of
from awa_actors.store.insert import NewJob
from awa_actors.store.pool import Session
from awa_actors.store.reschedule import reschedule
from awa_actors.store.settle import note_body, settle

BATCH = 512
MAILBOX = 1024
"""Two batches: one being written, one waiting; beyond that handlers wait, which is the back-pressure."""
RETRY_FIRST, RETRY_MOST = 0.05, 5.0
AGAIN_AFTER = 1.0
"""Seconds until an attempt runs again whose outcome could not be committed with its follow-ups."""
AGAIN = frozenset({Outcome.SNOOZED, Outcome.RETRIED})
OTHERS = frozenset(Outcome) - AGAIN - {Outcome.COMPLETED, Outcome.WAITING}

logger = logging.getLogger("awa_actors.worker")


@attrs.frozen(eq=False)
class Recorder:
    """Owns one connection and one mailbox of :class:`Ended`."""

    name: str
    connection: OwnConnection
    mailbox: trio.MemoryReceiveChannel[Ended]
    follow_ups: FollowUps
    observers: Observers
    failures_allowed: int
    meters: Meters = attrs.field(factory=Meters)
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
                await self.record_surely(batch)
                first.attempt.services.recorded([ended.attempt for ended in batch])
        self.ended.set()

    def left_over(self) -> list[Ended]:
        """What was told but not written, after `run` was cancelled."""
        while True:
            try:
                self.unwritten.append(self.mailbox.receive_nowait())
            except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                return self.unwritten

    async def record_surely(self, batch: list[Ended]) -> None:
        """Record a batch, however long the database is away; fencing, not a count, is what bounds this.

        Cancellation: what was not written is added to `unwritten`.
        """
        plain, followed = self._parted(batch)
        left = [(self._record_plain, plain), (self._record_followed, followed)]
        try:
            while left:
                await self._surely(*left[0])
                del left[0]
        except trio.Cancelled:
            self.unwritten.extend(ended for _, part in left for ended in part)
            raise

    async def _surely(self, record: Callable[[Session, list[Ended]], Awaitable[None]], batch: list[Ended]) -> None:
        delay = RETRY_FIRST
        while batch:
            try:
                return await record(await self.connection.session(), batch)
            except AwaError as error:
                if not isinstance(error, TransientStoreError) and len(batch) > 1:
                    for ended in batch:  # one that the database refuses must not hold up the others
                        await self._surely(record, [ended])
                    return
                logger.warning(
                    "%s: could not record %d attempts, trying again in %.2f s: %s", self.name, len(batch), delay, error
                )
            await trio.sleep(delay)
            delay = min(delay * 2, RETRY_MOST)

    async def record(self, session: Session, batch: list[Ended]) -> None:
        """Record a batch once, with follow-ups and events: a worker's last step, after its dispatcher has ended too."""
        plain, followed = self._parted(batch)
        if plain:
            await self._record_plain(session, plain)
        if followed:
            await self._record_followed(session, followed)

    def _parted(self, batch: list[Ended]) -> tuple[list[Ended], list[Ended]]:
        """Those without follow-ups, whose write is one statement, and those with."""
        plain: list[Ended] = []
        followed: list[Ended] = []
        known: dict[tuple[Outcome, str], bool] = {}  # most of a batch is of a few kinds
        for ended in batch:
            key = ended.decision.outcome, ended.attempt.claimed.kind
            if (is_followed := known.get(key)) is None:
                is_followed = known[key] = self.follow_ups.specs.any_of(key[1], *possible_outcomes(key[0]))
            (followed if is_followed else plain).append(ended)
        return plain, followed

    async def _record_plain(self, session: Session, batch: list[Ended]) -> None:
        began = time.perf_counter()
        try:
            landed = await self._write(session, batch)
        except UsageError as error:
            if len(batch) > 1 or batch[0].bare:
                raise
            batch = [_refused(batch[0], error)]
            landed = await self._write(session, batch)
        self.meters.recorded(self.name, batch, landed, time.perf_counter() - began)
        for ended in batch if self.observers.registry.observers else ():
            if self.observers.wants(ended.attempt.claimed.kind) and ended.attempt.claimed.job_id in landed:
                self._observe(event_of(ended, landed[ended.attempt.claimed.job_id]))

    async def _write(self, session: Session, batch: list[Ended]) -> Landed:
        """Write the ends. Returns what landed by job id: a row, or the database's time of a completion."""
        landed = Landed()
        for instance, mine in _by_instance(batch):
            completions = [ended.attempt for ended in mine if ended.decision.outcome is Outcome.COMPLETED]
            if completions:
                # In the order of their ids, as every batch that locks several jobs: two of them never wait in a circle.
                claims = sorted(attempt.claimed for attempt in completions)
                for attempt in completions:
                    if attempt.job is not None and (metadata := attempt.job._metadata_patch) is not None:
                        await note_body(session, attempt.claimed.job_id, attempt.claimed.run_lease, instance, metadata)
                done, at = await complete(
                    session,
                    instance,
                    [c.job_id for c in claims],
                    [c.run_lease for c in claims],
                    [c.lslot for c in claims],
                )
                landed.update(dict.fromkeys(done, at))
                landed.completed += len(done)
            waiting = [ended for ended in mine if ended.decision.outcome is Outcome.WAITING]
            if waiting:
                parked = await park(session, instance, [_entry(ended) for ended in waiting])
                landed.update({job_id: one.job for job_id, one in parked.items()})
            if again := [_entry(ended) for ended in mine if ended.decision.outcome in AGAIN]:
                landed.update(await _rescheduled(session, instance, again))
            if others := [_entry(ended) for ended in mine if ended.decision.outcome in OTHERS]:
                landed.update(await settle(session, instance, others))
        for ended in batch:
            # A callback that came before its job could wait has ended the attempt: nothing is lost by not parking it.
            claimed, outcome = ended.attempt.claimed, ended.decision.outcome
            if claimed.job_id not in landed and outcome is not Outcome.WAITING:
                logger.warning("job %d: its attempt %d has ended already or was taken away; outcome %s is dropped",
                               claimed.job_id, claimed.attempt, outcome.value)  # fmt: skip
        return landed

    async def _record_followed(self, session: Session, batch: list[Ended]) -> None:
        """One transaction for all; if a closure or an insert fails, the batch is redone without its job."""
        failed: dict[int, SpecFailed] = {}
        rest = batch
        while rest:
            try:
                made = await self._commit_both(session, rest)
            except _RedoWithout as redo:
                failed.update(redo.failed)
                rest = [ended for ended in rest if ended.attempt.claimed.job_id not in redo.failed]
            except _Refused as refused:
                if len(rest) > 1:
                    for ended in rest:
                        await self._record_followed(session, [ended])
                else:
                    failed[rest[0].attempt.claimed.job_id] = SpecFailed("insert", storable(str(refused)))
                break
            except UsageError as error:
                if len(rest) > 1 or rest[0].bare:
                    raise
                batch = rest = [_refused(rest[0], error)]
            else:
                for event in made if self.observers.registry.observers else ():
                    self._observe(event)
                break
        for ended in batch if failed else ():
            if (failure := failed.get(ended.attempt.claimed.job_id)) is not None:
                await self._record_without(session, ended, failure)

    async def _commit_both(self, session: Session, batch: list[Ended]) -> list[Event[Any]]:
        """Write the ends and insert what follows from them. Returns the events of what was committed."""
        began = time.perf_counter()
        async with session.transaction():
            landed = await self._write(session, batch)
            events = self._events(batch, landed)
            jobs: list[NewJob] = []
            failed: dict[int, SpecFailed] = {}
            for event, answers in zip(events, await self.follow_ups.ask(events) if events else [], strict=True):
                for answer in answers:
                    if isinstance(answer, SpecFailed):
                        failed.setdefault(event.job.id, answer)
                    else:
                        jobs.append(answer)
            if failed:
                raise _RedoWithout(failed)
            if jobs:
                try:
                    await follow_ups.insert(session, jobs)
                except TransientStoreError:
                    raise
                except AwaError as error:
                    raise _Refused(str(error)) from error
        self.meters.recorded(self.name, batch, landed, time.perf_counter() - began)
        return events

    def _events(self, batch: list[Ended], landed: dict[int, Any]) -> list[Event[Any]]:
        made = []
        for ended in batch:
            became = landed.get(ended.attempt.claimed.job_id)
            if became is not None and (event := event_of(ended, became)) is not None:
                made.append(event)
        return made

    async def _record_without(self, session: Session, ended: Ended, failure: SpecFailed) -> None:
        """A follow-up failed: run the attempt again with that error; after enough failures, commit anyway."""
        claimed, count = ended.attempt.claimed, _spec_failures(ended) + 1
        text = f"follow-up {failure.spec} failed: {failure.error}"
        is_again = FAILURES_KEY in ended.decision.fields.get("metadata", {})
        if count >= self.failures_allowed or claimed.attempt >= claimed.max_attempts or failure.final or is_again:
            await self._commit_anyway(session, ended)
            return
        logger.error("job %d: %s; the attempt is run again", claimed.job_id, text)
        fields = {"state": "retryable", "delay": AGAIN_AFTER, "metadata": {FAILURES_KEY: count}, "error": text}
        if "error" in ended.decision.fields:
            fields["error"] = f"{text}\nThe outcome that could not be committed: {ended.decision.fields['error']}"
        if ended.decision.outcome is Outcome.RETRIED:
            fields["delay"] = ended.decision.fields["delay"]
        await self.record(session, [attrs.evolve(ended, decision=Decision(Outcome.RETRIED, fields))])

    async def _commit_anyway(self, session: Session, ended: Ended) -> None:
        """Commit the outcome with those follow-ups that can be had; the others are recorded for operators to replay."""
        began = time.perf_counter()
        async with session.transaction():
            landed = await self._write(session, [ended])
            events = self._events([ended], landed)
            for event, answers in zip(events, await self.follow_ups.ask(events) if events else [], strict=True):
                for place, answer in enumerate(answers):
                    await self._insert_or_record(session, event, place, answer)
        self.meters.recorded(self.name, [ended], landed, time.perf_counter() - began)
        for event in events:
            self._observe(event)

    async def _insert_or_record(
        self, session: Session, event: Event[Any], place: int, answer: NewJob | SpecFailed
    ) -> None:
        if isinstance(answer, NewJob):
            refused = await follow_ups.in_savepoint(session, follow_ups.insert(session, [answer]))
            if refused is None:
                return
            specs = self.follow_ups.specs.of_event(event)  # what is declared may have changed since
            name = specs[place].name if place < len(specs) else "follow-up"
            answer = SpecFailed(name, storable(str(refused)))
        job, outcome = event.job, outcome_of(event)
        record = follow_ups.record_failure(session, job.id, job.kind, outcome, answer, event_record(event))
        lost = await follow_ups.in_savepoint(session, record)
        logger.error("job %d is %s without its follow-up %s, which is %s: %s", job.id, outcome, answer.spec,
                     "recorded for replay" if lost is None else f"lost ({lost})", answer.error)  # fmt: skip

    def _observe(self, event: Event[Any] | None) -> None:
        if event is not None and self.observers.wants(event.job.kind):
            self.observers.tell(event.job.kind, event)


async def _rescheduled(session: Session, instance: uuid.UUID, entries: list[dict[str, Any]]) -> dict[int, JobRow]:
    """Reschedule; gives the rows by job id, those that are stale left out."""
    landed: dict[int, JobRow] = {}
    for job_id, result in (await reschedule(session, instance, entries)).items():
        match result:
            case Stale():
                continue
            case CancelledDuplicate():
                logger.warning("job %d: a newer job holds its unique key, so it does not run again", job_id)
            case Rescheduled() | Migrated() | Refused():
                pass
            case never:
                assert_never(never)
        landed[job_id] = result.job
    return landed


class _RedoWithout(Exception):
    def __init__(self, failed: dict[int, SpecFailed]) -> None:
        self.failed = failed
        super().__init__(len(failed))


class _Refused(Exception):
    """The database refused an insert of follow-ups."""


def _by_instance(batch: list[Ended]) -> list[tuple[uuid.UUID, list[Ended]]]:
    """Nearly always all are of one incarnation; to hash its id for each of them would cost more than to record it."""
    first = batch[0].attempt.instance
    if all([ended.attempt.instance is first for ended in batch]):
        return [(first, batch)]
    found = {ended.attempt.instance for ended in batch}
    return [(instance, [ended for ended in batch if ended.attempt.instance == instance]) for instance in found]


def _refused(ended: Ended, error: UsageError) -> Ended:
    """The end of an attempt whose own cannot be stored: failed, with why, and without its notes."""
    text = f"its end could not be recorded as asked: {storable(str(error))}"
    fields = {"state": "failed", "terminal": True, "reason": "terminal_error", "error": text}
    return attrs.evolve(ended, decision=Decision(Outcome.EXHAUSTED, fields), bare=True)


def _spec_failures(ended: Ended) -> int:
    """How often follow-ups of this job have failed before."""
    extras = ended.attempt.claimed.extras
    count = (orjson.loads(extras).get("metadata") or {}).get(FAILURES_KEY, 0) if extras else 0
    return count if isinstance(count, int) else 0


def _entry(ended: Ended) -> dict[str, Any]:
    claimed, fields = ended.attempt.claimed, ended.decision.fields
    notes = {} if ended.bare else ended.attempt.notes()
    metadata = {**notes.get("metadata", {}), **fields.get("metadata", {})}
    entry = {"job_id": claimed.job_id, "run_lease": claimed.run_lease, "lslot": claimed.lslot, **notes, **fields}
    return {**entry, "metadata": metadata} if metadata else entry
