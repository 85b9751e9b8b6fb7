"""One dispatcher per queue: permits, then rate, then claim, then a task per attempt."""

from __future__ import annotations

import logging
import random
import uuid
from collections import deque
from collections.abc import Callable
from typing import Protocol

import attrs
import trio

from awa_actors.actors.looks import Looks
from awa_actors.actors.meters import Meters
from awa_actors.actors.rate import Bucket
from awa_actors.config import QueueConfig, RateLimit
from awa_actors.errors import AwaError
from awa_actors.store.claim import Claim, Claimed, claim
from awa_actors.store.connection import OwnConnection
from awa_actors.store.held import held
from awa_actors.store.overrides import Overrides
from awa_actors.store.planes import Planes
from awa_actors.store.queues import mark_asleep
from awa_actors.store.settle import settle

MARK_SECONDS = 10.0
"""How long one mark of an idle queue lasts; renewed while idle, left to run out when busy."""
QUICK = 0.25
"""Seconds from one full claim to the next within which handlers count as quick: only then is anything claimed ahead."""
BACKOFF_FIRST, BACKOFF_MOST = 0.1, 5.0
LONGEST_PAUSE = 2.0
"""Seconds between looks at a rate limit: an operator may have raised it meanwhile."""

logger = logging.getLogger("awa_actors.worker")


class Runner(Protocol):
    """Where claimed attempts go."""

    def start(self, claimed: Claimed, claim: Claim, queue: QueueConfig, done: Callable[[], None]) -> None:
        """Run an attempt in a task of its own; `done` gives its permit back."""

    def give_back(self, claimed: Claimed, claim: Claim, queue: QueueConfig) -> None:
        """Return a claim that was never started."""

    def knows(self, key: tuple[int, int]) -> bool:
        """Whether an attempt (job_id, run_lease) runs here, or has ended and waits to be recorded."""

    def may_claim(self) -> bool:
        """Whether this process is alive enough to take more."""

    def instance(self) -> uuid.UUID:
        """Whose leases new claims become."""


@attrs.define(eq=False)
class Dispatcher:
    """Claims for one queue of one process.

    Permits are taken before the claim. While handlers are quick and the queue is full, one round is claimed ahead, so
    that server and client work at the same time; it waits here for permits, and goes back when handlers turn out to be
    slow or the worker drains.
    """

    queue: QueueConfig
    connection: OwnConnection
    runner: Runner
    listens: bool
    planes: Planes = attrs.field(factory=Planes.settled)
    meters: Meters = attrs.field(factory=Meters)
    free: int = attrs.field(init=False)
    _ahead: deque[tuple[Claimed, Claim]] = attrs.field(factory=deque, init=False)
    _quick: bool = attrs.field(default=False, init=False)
    _round_began: float = attrs.field(default=0.0, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _notified_at: float | None = attrs.field(default=None, init=False)
    _looks: Looks = attrs.field(factory=Looks, init=False)
    _marked_until: float = attrs.field(default=0.0, init=False)
    _starved: bool = attrs.field(default=False, init=False)
    _stopping: bool = attrs.field(default=False, init=False)
    _in_doubt: uuid.UUID | None = attrs.field(default=None, init=False)
    _tuned: QueueConfig = attrs.field(init=False)
    _bucket: Bucket | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Start with all permits free."""
        self.free = self.queue.max_workers
        self._tuned, self._bucket = self.queue, _bucket_of(self.queue.rate_limit)

    def tune(self, overrides: Overrides) -> None:
        """Follow an operator's overrides from the next turn on. The deadline is not here: the claim reads it itself."""
        rate = self.queue.rate_limit if overrides.rate_limit is None else RateLimit(overrides.rate_limit)
        if rate != self._tuned.rate_limit:
            self._bucket = _bucket_of(rate)
        self._tuned = attrs.evolve(
            self.queue,
            poll_interval=overrides.poll_interval or self.queue.poll_interval,
            claim_batch=overrides.claim_batch or self.queue.claim_batch,
            rate_limit=rate,
        )
        self.wake()

    def wake(self) -> None:
        """Something may have become claimable, or a permit free."""
        self._wake.set()

    def notified(self) -> None:
        """A producer said that there is work."""
        if self._notified_at is None:
            self._notified_at = trio.current_time()
        self._wake.set()

    def in_flight(self) -> int:
        """Attempts that hold a permit."""
        return self.queue.max_workers - self.free

    def stop(self) -> None:
        """Claim no more: `run` ends after the claim that is under way, and what was not started goes back."""
        self._stopping = True
        self._wake.set()

    def forget(self, job_id: int, run_lease: int) -> None:
        """An attempt was cancelled: if it waits here for a permit, it is not started."""
        self._ahead = deque(one for one in self._ahead if one[0][:2] != (job_id, run_lease))

    def _done(self) -> None:
        """A permit came back: the next claim that waits takes it at once."""
        self.free += 1
        while self._ahead and not self._stopping:
            claimed, claim = self._ahead.popleft()
            if claim.instance == self.runner.instance():  # else it was declared dead, and rescue has this attempt
                self.free -= 1
                self.runner.start(claimed, claim, self.queue, self._done)
                break
        if self._starved and len(self._ahead) <= self._room // 2:
            self._wake.set()

    @property
    def _room(self) -> int:
        """How many claims may wait for a permit."""
        return min(self.queue.max_workers, self._tuned.claim_batch) if self._quick else 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Claim until stopped or cancelled. An outage is waited out; it never ends the process.

        Cancellation: what was claimed ahead goes back; a claim whose answer was lost is given back by the worker, which
            knows every lease of its instance.
        """
        delay = BACKOFF_FIRST
        task_status.started()
        try:
            async with self.connection:
                while not self._stopping:
                    try:
                        await self._turn()
                        delay = BACKOFF_FIRST
                    except AwaError as error:
                        logger.warning("queue %s: cannot claim, next try in %.1f s: %s", self.queue.name, delay, error)
                        await self._pause(delay * (0.75 + random.random() / 2))
                        delay = min(delay * 2, BACKOFF_MOST)
        finally:
            self._give_back_ahead()

    def _give_back_ahead(self) -> None:
        while self._ahead:
            self.runner.give_back(*self._ahead.popleft(), self.queue)

    async def _turn(self) -> None:
        self._wake = trio.Event()
        if self._in_doubt is not None:
            await self._clear_doubt(self._in_doubt)
        wanted = min(self.free + self._room - len(self._ahead), self._tuned.claim_batch)
        if wanted <= 0 or not self.runner.may_claim():
            await self._starve()
            return
        if self._bucket is not None:
            wanted = self._bucket.take(wanted, trio.current_time())
            if wanted == 0:
                self.meters.rate_limited(self.queue.name)
                await self._pause(min(self._bucket.next_in(trio.current_time()), LONGEST_PAUSE))
                return
        bucket = self._bucket  # another one may come while the claim is under way
        got, is_full = await self._claim(wanted)
        if bucket is not None:
            bucket.give_back(wanted - got)
        self._quick = is_full and trio.current_time() - self._round_began < QUICK
        self._round_began = trio.current_time()
        if is_full:
            # Let the attempts that were just started end in the same turn of the loop, so that the next claim is a
            # large one.
            await trio.lowlevel.checkpoint()
        elif not await self._sleep_is_marked():
            wait = self._tuned.poll_interval * (0.9 + random.random() / 5)
            wait = min(wait, self._looks.wait(trio.current_time()))
            if self.listens:  # however rarely it is polled: producers notify only while the queue is marked
                wait = min(wait, max(0.0, self._marked_until - trio.current_time()))
            await self._wait(wait)

    async def _starve(self) -> None:
        """Wait for a permit. What was claimed ahead goes back when handlers turn out to be slow: others may be idle."""
        self._starved = True
        await self._wait(QUICK if self._ahead else self._tuned.poll_interval)
        # Permits come back in crowds, when a recorder takes what waited for room: one claim for all of them.
        await trio.lowlevel.checkpoint()
        self._starved = False
        if self._ahead and not self._wake.is_set():
            self._quick = False
            self._give_back_ahead()

    async def _clear_doubt(self, instance: uuid.UUID) -> None:
        """The answer of a claim was lost: give back what this instance holds without knowing it.

        This dispatcher is the only one that claims this queue for this instance, and it has no claim under way.
        """
        session = await self.connection.session()
        waiting = {claimed[:2] for claimed, _ in self._ahead}
        keys = await held(session, instance, self.queue.name)
        unknown = [key for key in keys if key not in waiting and not self.runner.knows(key)]
        if unknown:
            logger.warning("queue %s: gives back %d claims whose answer was lost", self.queue.name, len(unknown))
            entries = [{"job_id": job_id, "run_lease": lease, "give_back": True} for job_id, lease in unknown]
            await settle(session, instance, entries)
        self._in_doubt = None

    async def _claim(self, wanted: int) -> tuple[int, bool]:
        """One claim: how many jobs it brought, and whether there may be more."""
        session, instance = await self.connection.session(), self.runner.instance()
        if not self.planes.finalized:
            await self.planes.refresh(session)
        self._in_doubt, sent = instance, trio.current_time()
        taken = await claim(
            session,
            self.queue.name,
            wanted,
            instance,
            max_bytes=self.queue.claim_bytes,
            aging=self.queue.priority_aging,
            deadline=self.queue.deadline,
            hints=self._looks.start(sent),
            planes=self.planes.claim_from,
        )
        self._in_doubt, now = None, trio.current_time()
        woken_for = None if self._notified_at is None else now - self._notified_at
        self._notified_at = None
        self.meters.claimed(self.queue.name, wanted, taken, now - sent, woken_for)
        for claimed in taken.attempts:
            if self.free > 0 and not self._stopping:
                self.free -= 1
                self.runner.start(claimed, taken, self.queue, self._done)
            else:
                self._ahead.append((claimed, taken))
        self._looks.came(taken.hints, is_full=taken.is_full, looked=taken.looked, now=now)
        return len(taken.attempts), taken.is_full

    async def _sleep_is_marked(self) -> bool:
        """Mark the queue before sleeping; True when the mark is new, so that the queue is looked at once more first."""
        now = trio.current_time()
        if not self.listens or now < self._marked_until:
            return False
        await mark_asleep(await self.connection.session(), self.queue.name, MARK_SECONDS)
        self._marked_until = now + MARK_SECONDS / 2
        return True

    async def _pause(self, seconds: float) -> None:
        """Do nothing for a while, whoever wakes; only a stop cuts it short."""
        until = trio.current_time() + seconds
        while not self._stopping and (left := until - trio.current_time()) > 0:
            self._wake = trio.Event()
            await self._wait(left)

    async def _wait(self, seconds: float) -> None:
        """Wait to be woken. A stop that came while a claim was under way must not be slept through."""
        if not self._stopping:
            with trio.move_on_after(seconds) as scope:
                await self._wake.wait()
            if self.meters.instruments is not None:
                self.meters.woken(self.queue.name, _reason(self._notified_at, scope))


def _reason(notified_at: float | None, scope: trio.CancelScope) -> str:
    if notified_at is not None:
        return "notified"
    return "poll" if scope.cancelled_caught else "permit"


def _bucket_of(limit: RateLimit | None) -> Bucket | None:
    return None if limit is None else Bucket(limit.per_second, limit.burst)
