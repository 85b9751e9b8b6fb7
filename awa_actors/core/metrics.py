"""Every metric by name: what is measured, in which unit, with which attributes. Exporters and dashboards read it.

Names and attributes are those of the field's older implementation where they mean the same thing, so that its
dashboards go on working; each attribute key is written with the prefix ``awa.``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs

from awa_actors.core.trace_context import Tracing

Attributes = Mapping[str, str | bool]
"""Attributes of one measurement; keys as in :attr:`Metric.attributes`."""
NO_ATTRIBUTES: Attributes = {}


class MetricKind(enum.Enum):
    """How values of a metric add up."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"
    UP_DOWN = "up_down_counter"


@attrs.frozen
class Metric:
    """One metric.

    Args:
        name: as exported.
        kind: how its values add up.
        unit: in UCUM notation.
        description: one line.
        attributes: keys that its measurements carry.
    """

    name: str
    kind: MetricKind
    unit: str
    description: str
    attributes: tuple[str, ...] = ()


KIND, QUEUE, STATE = "awa.job.kind", "awa.job.queue", "awa.job.state"
TERMINAL = "awa.job.terminal"
REASON = "awa.dispatch.reason"
RECORDER = "awa.completion.shard"
RESCUE = "awa.rescue.kind"
DLQ_REASON = "awa.dlq.reason"
STORAGE_ACTION, STORAGE_CAPABILITY = "awa.storage.action", "awa.storage.capability"
BRANCH = "awa.maintenance.branch"
RING, RING_OUTCOME, RING_BLOCKER = "awa.ring", "awa.ring.outcome", "awa.ring.blocker"
DISPLAY_NAME, OWNER = "awa.descriptor.display_name", "awa.descriptor.owner"
CALLBACK_ACTION, CALLBACK_STATUS = "awa.callback.action", "awa.callback.status"

SECONDS_BOUNDARIES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of every duration."""
SIZE_BOUNDARIES = (1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0)
"""Upper bounds of the buckets of every size of a batch."""

_C, _H, _G, _U = MetricKind.COUNTER, MetricKind.HISTOGRAM, MetricKind.GAUGE, MetricKind.UP_DOWN
_JOB = (KIND, QUEUE)

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        # Enqueue, by clients of this process.
        Metric("awa.job.inserted", _C, "{job}", "Jobs inserted by this client", _JOB),
        Metric("awa.enqueue.batch_size", _H, "{job}", "Jobs of one insert call"),
        Metric("awa.enqueue.duration", _H, "s", "How long an insert call took"),
        # Dispatch.
        Metric("awa.job.claimed", _C, "{job}", "Attempts claimed", (QUEUE,)),
        Metric("awa.job.in_flight", _U, "{job}", "Attempts that hold a permit now", (QUEUE,)),
        Metric("awa.job.wait_duration", _H, "s", "From insertion to the claim of the first attempt", _JOB),
        Metric("awa.dispatch.claim_batches", _C, "{claim}", "Claims that brought something", (QUEUE,)),
        Metric("awa.dispatch.empty_claims", _C, "{claim}", "Claims that brought nothing", (QUEUE,)),
        Metric(
            "awa.dispatch.unused_permits", _C, "{permit}", "Permits asked for beyond what a claim brought", (QUEUE,)
        ),
        Metric("awa.dispatch.rate_limited", _C, "{claim}", "Turns that a rate limit put off", (QUEUE,)),
        Metric("awa.dispatch.wakeups", _C, "{wakeup}", "Ends of a sleep: notified, permit or poll", (QUEUE, REASON)),
        Metric("awa.dispatch.capacity_available", _H, "{permit}", "Attempts a claim asked for", (QUEUE,)),
        Metric("awa.dispatch.claim_batch_size", _H, "{job}", "Attempts a claim brought", (QUEUE,)),
        Metric("awa.dispatch.claim_duration", _H, "s", "How long a claim took", (QUEUE,)),
        Metric("awa.dispatch.wake_to_claim_duration", _H, "s", "From a notification to the end of its claim", (QUEUE,)),
        # Ends of attempts, as the database took them.
        Metric("awa.job.completed", _C, "{job}", "Jobs completed", _JOB),
        Metric(
            "awa.job.failed",
            _C,
            "{job}",
            "Jobs failed for good; terminal: without using up attempts",
            (*_JOB, TERMINAL),
        ),
        Metric("awa.job.retried", _C, "{job}", "Attempts that failed and will be retried", _JOB),
        Metric("awa.job.cancelled", _C, "{job}", "Jobs cancelled by their handler", _JOB),
        Metric("awa.job.snoozed", _C, "{job}", "Attempts that asked to run later", _JOB),
        Metric("awa.job.waiting_external", _C, "{job}", "Jobs parked for a callback", _JOB),
        Metric("awa.job.interrupted", _C, "{job}", "Attempts given back because their worker stopped", _JOB),
        Metric("awa.job.stale", _C, "{job}", "Ends that were dropped: the attempt had been taken away", _JOB),
        Metric("awa.job.dlq_moved", _C, "{job}", "Jobs that became dead letters", (*_JOB, DLQ_REASON)),
        Metric("awa.job.dlq_retried", _C, "{job}", "Dead letters that run again", (QUEUE,)),
        Metric("awa.job.dlq_purged", _C, "{job}", "Dead letters that operators deleted", (QUEUE,)),
        Metric("awa.job.duration", _H, "s", "How long handlers ran", _JOB),
        Metric("awa.completion.flushes", _C, "{flush}", "Batches of ends written", (RECORDER,)),
        Metric("awa.completion.flush_batch_size", _H, "{job}", "Ends in one batch", (RECORDER,)),
        Metric("awa.completion.flush_duration", _H, "s", "How long writing a batch took", (RECORDER,)),
        # Liveness and follow-ups.
        Metric("awa.heartbeat.batches", _C, "{beat}", "Beats that were stored"),
        Metric("awa.heartbeat.age", _G, "s", "Age of the last beat that was stored"),
        Metric("awa.follow_ups.dropped", _U, "{job}", "Best-effort follow-ups of rescues that were lost"),
        # Maintenance: only the leader moves these.
        Metric("awa.maintenance.leader", _G, "{leader}", "1 while this process leads, else 0"),
        Metric("awa.maintenance.term", _G, "{term}", "The term of leadership while this process leads, else 0"),
        Metric("awa.maintenance.rescues", _C, "{job}", "Attempts taken back", (RESCUE,)),
        Metric("awa.maintenance.promote_batches", _C, "{batch}", "Batches of due jobs made available"),
        Metric("awa.maintenance.promote_batch_size", _H, "{job}", "Jobs in one such batch"),
        Metric("awa.maintenance.promote_duration", _H, "s", "How long one such batch took"),
        Metric("awa.maintenance.branch.duration", _H, "s", "How long one pass of a lane took", (BRANCH,)),
        Metric(
            "awa.maintenance.branch.overrun",
            _C,
            "{episode}",
            "Times a lane's passes began to take longer than its interval",
            (BRANCH,),
        ),
        Metric("awa.maintenance.branch.failures", _C, "{pass}", "Passes of a lane that failed", (BRANCH,)),
        Metric("awa.maintenance.rotate.attempts", _C, "{attempt}", "Attempts to turn a ring", (RING, RING_OUTCOME)),
        Metric(
            "awa.maintenance.prune.attempts",
            _C,
            "{attempt}",
            "Attempts to truncate a slot that holds something",
            (RING, RING_OUTCOME),
        ),
        Metric("awa.maintenance.prune.duration", _H, "s", "How long one such attempt took", (RING,)),
        # What the leader counted last.
        Metric("awa.queue.depth", _G, "{job}", "Jobs by state", (QUEUE, STATE)),
        Metric("awa.queue.lag", _G, "s", "Age of the oldest available job when it was counted", (QUEUE,)),
        Metric("awa.queue.info", _G, "{queue}", "Always 1: what is said about a queue", (QUEUE, DISPLAY_NAME, OWNER)),
        Metric("awa.job_kind.info", _G, "{kind}", "Always 1: what is said about a kind", (KIND, DISPLAY_NAME, OWNER)),
        Metric("awa.job.dlq_depth", _G, "{job}", "Dead letters", (QUEUE,)),
        Metric("awa.ring.current_slot", _G, "{slot}", "The slot that a ring writes to", (RING,)),
        Metric("awa.ring.generation", _G, "{turn}", "How often a ring has turned", (RING,)),
        Metric(
            "awa.storage.state",
            _G,
            "{state}",
            "1 for the state of the storage, by engine",
            ("awa.storage.state", "awa.storage.current_engine"),
        ),
        Metric(
            "awa.storage.canonical_live_backlog",
            _G,
            "{job}",
            "Jobs that have not ended and still are in the canonical plane",
        ),
        Metric(
            "awa.storage.transition_ready",
            _G,
            "{step}",
            "1 while nothing stands in the way of a step of the transition, else 0",
            (STORAGE_ACTION,),
        ),
        Metric(
            "awa.storage.live_runtime_capability",
            _G,
            "{process}",
            "Live processes by what they can do with the storage planes",
            (STORAGE_CAPABILITY,),
        ),
        # Callbacks.
        Metric(
            "awa.callback.requests",
            _C,
            "{request}",
            "Callbacks answered, by action and status",
            (CALLBACK_ACTION, CALLBACK_STATUS),
        ),
        Metric("awa.callback.duration", _H, "s", "How long answering a callback took", (CALLBACK_ACTION,)),
    )
}


def prometheus_names(metric: Metric) -> tuple[str, ...]:
    """What a metric's series are called in Prometheus: by the usual translation, with suffixes for units and kinds."""
    base = metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "")
    match metric.kind:
        case MetricKind.COUNTER:
            return (f"{base}_total",)
        case MetricKind.HISTOGRAM:
            return (f"{base}_bucket", f"{base}_sum", f"{base}_count")
    return (base,)


class Instruments(Protocol):
    """Where measurements go; made by :mod:`awa_actors.telemetry`. Nothing here raises or waits."""

    def add(self, name: str, amount: float, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Add to a counter."""

    def record(self, name: str, value: float, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Record one value of a histogram."""

    def show(self, name: str, series: Iterable[tuple[Attributes, float]]) -> None:
        """Replace all values of a gauge."""

    def watch(self, name: str, read: Callable[[], Iterable[tuple[Attributes, float]]]) -> Callable[[], None]:
        """Ask for values of a gauge whenever somebody collects; the returned function ends that."""


class Telemetry(Protocol):
    """What a client is given: where its metrics and its spans go, or None for those that are not wanted."""

    @property
    def instruments(self) -> Instruments | None: ...  # noqa: D102 - the class says it
    @property
    def tracing(self) -> Tracing | None: ...  # noqa: D102
