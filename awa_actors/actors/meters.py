"""What a process counts: always a few totals for health and the log, and every metric where telemetry is configured.

One object per client, shared by its actors. Each method is called once per batch, pass or turn, never per job; what
costs something per job happens behind the one check for telemetry.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import attrs

from awa_actors.core import metrics as m
from awa_actors.core.metrics import Instruments
from awa_actors.core.outcome import COMPLETED, Outcome
from awa_actors.core.trace_context import Tracing
from awa_actors.jobs import JobRow, JobState

if TYPE_CHECKING:
    from awa_actors.actors.follow_ups import FollowUps
    from awa_actors.actors.liveness import LivenessActor
    from awa_actors.store.claim import Claim
    from awa_actors.store.descriptors import Described
    from awa_actors.store.hygiene import Ring
    from awa_actors.store.refresh import Counted
    from awa_actors.store.rescue import RescuedJob

Read = Callable[[], Iterable[tuple[m.Attributes, float]]]
"""Gives the values of a gauge when they are collected, from whichever thread that happens in."""


class Landed(dict[int, Any]):
    """What became of a batch of ends, by job id: a row, or the database's time of a completion. Stale ones are missing.

    `completed` counts the completions of a plain batch, so that totals need no look at each of them.
    """

    completed: int = 0


_BY_STATE = {
    JobState.COMPLETED: "completed",
    JobState.RETRYABLE: "retried",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.SCHEDULED: "snoozed",
    JobState.WAITING_EXTERNAL: "waiting_external",
}
"""What a landed row is called; `available` depends on what was asked for."""


@attrs.define(eq=False)
class Meters:
    """Totals since the start of the process, and the instruments, if any.

    Args:
        instruments, tracing: of the client's telemetry; None where there is none.
        totals: attempts claimed, and their ends by name; what maintenance moved by lane.
    """

    instruments: Instruments | None = None
    tracing: Tracing | None = None
    totals: Counter[str] = attrs.field(factory=Counter)
    _overrun: set[str] = attrs.field(factory=set, init=False)

    def describe(self) -> dict[str, int]:
        """Totals as health shows them."""
        return dict(self.totals)

    def told(self) -> str:
        """Totals in words, for the log."""
        return ", ".join(f"{name} {number}" for name, number in sorted(self.totals.items()) if number) or "nothing"

    @contextmanager
    def watching(self, gauges: Mapping[str, Read]) -> Iterator[None]:
        """Let gauges be read whenever metrics are collected, for the length of the block."""
        with ExitStack() as stack:
            for name, read in gauges.items():
                if self.instruments is not None:
                    stack.callback(self.instruments.watch(name, read))
            yield

    def claimed(self, queue: str, wanted: int, claim: Claim, seconds: float, woken_for: float | None) -> None:
        """A claim was answered.

        Args:
            queue: which.
            wanted: attempts it asked for.
            claim: what it brought.
            seconds: how long it took.
            woken_for: seconds since the notification that caused it, if one did.
        """
        got = len(claim.attempts)
        self.totals["claimed"] += got
        if (into := self.instruments) is None:
            return
        of_queue: m.Attributes = {m.QUEUE: queue}
        into.add("awa.dispatch.claim_batches" if got else "awa.dispatch.empty_claims", 1, of_queue)
        into.record("awa.dispatch.capacity_available", wanted, of_queue)
        into.record("awa.dispatch.claim_duration", seconds, of_queue)
        if got < wanted:
            into.add("awa.dispatch.unused_permits", wanted - got, of_queue)
        if not got:
            return
        into.add("awa.job.claimed", got, of_queue)
        into.record("awa.dispatch.claim_batch_size", got, of_queue)
        if woken_for is not None:
            into.record("awa.dispatch.wake_to_claim_duration", woken_for, of_queue)
        for one in claim.attempts:
            if one.attempt == 1 and claim.claimed_at is not None:
                waited = (claim.claimed_at - (one.run_at or one.created_at)).total_seconds()
                into.record("awa.job.wait_duration", max(0.0, waited), {m.KIND: one.kind, m.QUEUE: queue})

    def woken(self, queue: str, reason: str) -> None:
        """A dispatcher ended its sleep: `notified` or `poll`."""
        if self.instruments is not None:
            self.instruments.add("awa.dispatch.wakeups", 1, {m.QUEUE: queue, m.REASON: reason})

    def rate_limited(self, queue: str) -> None:
        """A dispatcher had permits and was put off by its rate limit."""
        if self.instruments is not None:
            self.instruments.add("awa.dispatch.rate_limited", 1, {m.QUEUE: queue})

    def recorded(self, recorder: str, batch: Sequence[Any], landed: Landed, seconds: float) -> None:
        """A batch of ends is committed.

        Args:
            recorder: which of a worker's two.
            batch: the :class:`~awa_actors.actors.messages.Ended` that were asked for.
            landed: what became of them.
            seconds: how long writing took.
        """
        self.totals["completed"] += landed.completed
        self.totals["stale"] += len(batch) - len(landed)
        if len(landed) > landed.completed:
            rest = (_end(ended, landed) for ended in batch if ended.decision is not COMPLETED)
            self.totals.update(end for end in rest if end not in ("completed", "stale"))
            self.buried(row for row in landed.values() if isinstance(row, JobRow))
        if self.instruments is not None:
            _measure(self.instruments, recorder, batch, landed, seconds)

    def rescued(self, rescued: Sequence[RescuedJob]) -> None:
        """Attempts were taken back."""
        self.totals["rescued"] += len(rescued)
        self.buried(one.job for one in rescued)
        if self.instruments is not None:
            for reason, number in Counter(one.reason for one in rescued).items():
                self.instruments.add("awa.maintenance.rescues", number, {m.RESCUE: reason})

    def buried(self, landed: Iterable[JobRow]) -> None:
        """Jobs have landed, those with a `dlq_reason` as dead letters."""
        found = Counter((row.kind, row.queue, row.dlq_reason) for row in landed if row.dlq_reason is not None)
        for (kind, queue, reason), number in found.items():
            self.moved_to_dlq(kind, queue, reason, number)

    def moved_to_dlq(self, kind: str, queue: str, reason: str, number: int) -> None:
        """So many jobs have become dead letters."""
        self.totals["dlq_moved"] += number
        if self.instruments is not None:
            self.instruments.add("awa.job.dlq_moved", number, {m.KIND: kind, m.QUEUE: queue, m.DLQ_REASON: reason})

    def left_dlq(self, end: Literal["retried", "purged"], queues: Mapping[str, int]) -> None:
        """Dead letters run again or were deleted, by the queue that they were dead in."""
        self.totals[f"dlq_{end}"] += sum(queues.values())
        if self.instruments is not None:
            for queue, number in queues.items():
                self.instruments.add(f"awa.job.dlq_{end}", number, {m.QUEUE: queue})

    def beaten(self, beats: int) -> None:
        """So many beats were stored since the last time."""
        if self.instruments is not None:
            self.instruments.add("awa.heartbeat.batches", beats)

    def passed(self, lane: str, interval: float, seconds: float, done: int | None) -> None:
        """A pass of a lane has ended; `done` None: it failed."""
        if done:
            self.totals[f"lane_{lane}"] += done
        is_slow = seconds > interval
        begins, self._overrun = is_slow and lane not in self._overrun, self._overrun - {lane}
        if is_slow:
            self._overrun.add(lane)
        if (into := self.instruments) is None:
            return
        of_lane: m.Attributes = {m.BRANCH: lane}
        into.record("awa.maintenance.branch.duration", seconds, of_lane)
        if begins:
            into.add("awa.maintenance.branch.overrun", 1, of_lane)
        if done is None:
            into.add("awa.maintenance.branch.failures", 1, of_lane)
        elif lane == "promote" and done:
            into.add("awa.maintenance.promote_batches", 1)
            into.record("awa.maintenance.promote_batch_size", done)
            into.record("awa.maintenance.promote_duration", seconds)

    def turned(self, ring: Ring, slot: int | None) -> None:
        """A ring was to turn; `slot` None: it stays, since no slot is empty or somebody else was first."""
        if self.instruments is not None:
            outcome = "stayed" if slot is None else "turned"
            self.instruments.add("awa.maintenance.rotate.attempts", 1, {m.RING: ring.name, m.RING_OUTCOME: outcome})

    def pruned(self, ring: str, outcome: str, seconds: float) -> None:
        """A slot was looked at for truncation."""
        if self.instruments is not None:
            self.instruments.add("awa.maintenance.prune.attempts", 1, {m.RING: ring, m.RING_OUTCOME: outcome})
            self.instruments.record("awa.maintenance.prune.duration", seconds, {m.RING: ring})

    def rings(self, rings: Iterable[Ring]) -> None:
        """Where the rings stand."""
        if self.instruments is not None:
            found = list(rings)
            self.instruments.show("awa.ring.current_slot", [({m.RING: ring.name}, ring.slot) for ring in found])
            self.instruments.show("awa.ring.generation", [({m.RING: ring.name}, ring.generation) for ring in found])

    def counted(self, counted: Counted) -> None:
        """The leader has counted the jobs."""
        if self.instruments is None:
            return
        depth = [({m.QUEUE: queue, m.STATE: state}, n) for queue, state, n in counted.depth]
        self.instruments.show("awa.queue.depth", depth)
        self.instruments.show("awa.queue.lag", [({m.QUEUE: queue}, lag) for queue, lag in counted.lag])
        self.instruments.show("awa.job.dlq_depth", [({m.QUEUE: queue}, n) for queue, n in counted.dead_letters])
        storage = {"awa.storage.state": counted.storage_state, "awa.storage.current_engine": counted.engine}
        self.instruments.show("awa.storage.state", [(storage, 1)])
        backlog = [] if counted.canonical_backlog is None else [(m.NO_ATTRIBUTES, counted.canonical_backlog)]
        self.instruments.show("awa.storage.canonical_live_backlog", backlog)
        ready = [({m.STORAGE_ACTION: step}, int(is_ready)) for step, is_ready in counted.ready]
        self.instruments.show("awa.storage.transition_ready", ready)
        runtimes = [({m.STORAGE_CAPABILITY: name}, number) for name, number in counted.runtimes]
        self.instruments.show("awa.storage.live_runtime_capability", runtimes)

    def described(self, described: Iterable[Described]) -> None:
        """What live processes say about queues and kinds, as the leader read it."""
        if self.instruments is None:
            return
        said = [one for one in described if not one.stale]
        for subject, name, key in (("queue", "awa.queue.info", m.QUEUE), ("kind", "awa.job_kind.info", m.KIND)):
            self.instruments.show(name, [(_label(key, one), 1) for one in said if one.subject == subject])

    def term_ended(self) -> None:
        """What the leader counted is another one's to show now."""
        if self.instruments is not None:
            for name in _OF_THE_LEADER:
                self.instruments.show(name, [])

    def answered(self, action: str, status: int, seconds: float) -> None:
        """A request to the callback ingress has its answer."""
        self.totals["callbacks"] += 1
        if self.instruments is not None:
            self.instruments.add(
                "awa.callback.requests", 1, {m.CALLBACK_ACTION: action, m.CALLBACK_STATUS: str(status)}
            )
            self.instruments.record("awa.callback.duration", seconds, {m.CALLBACK_ACTION: action})

    def inserted(self, jobs: Sequence[tuple[str, str]], seconds: float) -> None:
        """Jobs, as (kind, queue), were inserted by one call."""
        if (into := self.instruments) is not None:
            for (kind, queue), number in Counter(jobs).items():
                into.add("awa.job.inserted", number, {m.KIND: kind, m.QUEUE: queue})
            into.record("awa.enqueue.batch_size", len(jobs))
            into.record("awa.enqueue.duration", seconds)


_OF_THE_LEADER = (
    *("awa.queue.depth", "awa.queue.lag", "awa.job.dlq_depth", "awa.storage.state"),
    *("awa.queue.info", "awa.job_kind.info"),
    *("awa.storage.transition_ready", "awa.storage.live_runtime_capability"),
    *("awa.storage.canonical_live_backlog", "awa.ring.current_slot", "awa.ring.generation"),
)
_COUNTED = frozenset(
    ("completed", "failed", "retried", "cancelled", "snoozed", "waiting_external", "interrupted", "stale")
)
_RAN = _COUNTED - {"stale"}


def _label(key: str, one: Described) -> dict[str, str | bool]:
    told = one.descriptor
    return {key: one.name, m.DISPLAY_NAME: told.get("display_name", ""), m.OWNER: told.get("owner", "")}


def vital_gauges(liveness: LivenessActor, follow_ups: FollowUps) -> dict[str, Read]:
    """What can be read of a process at any time."""
    return {
        "awa.heartbeat.age": lambda: [(m.NO_ATTRIBUTES, time.monotonic() - liveness.pulse.last_good)],
        "awa.follow_ups.dropped": lambda: [(m.NO_ATTRIBUTES, follow_ups.dropped)],
    }


def _measure(into: Instruments, recorder: str, batch: Sequence[Any], landed: Landed, seconds: float) -> None:
    of_recorder: m.Attributes = {m.RECORDER: recorder}
    into.add("awa.completion.flushes", 1, of_recorder)
    into.record("awa.completion.flush_batch_size", len(batch), of_recorder)
    into.record("awa.completion.flush_duration", seconds, of_recorder)
    counted = Counter[tuple[str, str, str, bool | None]]()
    for ended in batch:
        end, kind, queue = _end(ended, landed), ended.attempt.claimed.kind, ended.attempt.queue
        counted[end, kind, queue, _is_terminal(ended) if end == "failed" else None] += 1
        if end in _RAN:
            into.record("awa.job.duration", ended.duration, {m.KIND: kind, m.QUEUE: queue})
    for (end, kind, queue, terminal), number in counted.items():
        if end in _COUNTED:
            of_job: dict[str, str | bool] = {m.KIND: kind, m.QUEUE: queue}
            into.add(f"awa.job.{end}", number, of_job if terminal is None else of_job | {m.TERMINAL: terminal})


def _end(ended: Any, landed: dict[int, Any]) -> str:
    """What became of one attempt, by the row it became rather than by what was asked for."""
    row = landed.get(ended.attempt.claimed.job_id)
    if row is None:
        return "stale"
    if not isinstance(row, JobRow):
        return "completed"
    if row.state is JobState.AVAILABLE:
        return "given_back" if ended.decision.outcome is Outcome.GIVEN_BACK else "interrupted"
    return _BY_STATE[row.state]


def _is_terminal(ended: Any) -> bool:
    return bool(ended.decision.fields.get("reason") == "terminal_error")
