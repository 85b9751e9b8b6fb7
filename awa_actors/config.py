"""Frozen settings per role; every duration is in seconds. What cannot work together is refused here, at start."""

from __future__ import annotations

from typing import Any

import attrs

from awa_actors.core.leadership import LeaseTiming
from awa_actors.core.liveness import Liveness
from awa_actors.core.storage import ROLES as STORAGE_ROLES
from awa_actors.errors import UsageError


def _positive(instance: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value > 0:
        raise UsageError(f"{attribute.name} must be greater than 0, got {value!r}")


def _positive_or_none(instance: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not value > 0:
        raise UsageError(f"{attribute.name} must be greater than 0 or None, got {value!r}")


def _storage_role(instance: object, attribute: attrs.Attribute[Any], value: str) -> None:
    if value not in STORAGE_ROLES:
        raise UsageError(f"{attribute.name} is {' or '.join(STORAGE_ROLES)}, not {value!r}")


@attrs.frozen
class DatabaseSettings:
    """How a runtime talks to its database.

    Args:
        pool_size: connections for work; control connections (liveness, listener, leadership, completion) come on top.
        pooler: behind a transaction pooler: no prepared statements, no session state, no LISTEN.
        notify: LISTEN for wake-ups; off means polling only.
        connect_timeout: how long to wait for the database at start.
        statement_timeout: longest any statement of the runtime may take.
        lock_timeout: longest it may wait for a lock.
        idle_in_transaction_timeout: longest a transaction may sit idle.
        max_args_bytes: largest args of one job.
    """

    pool_size: int = attrs.field(default=10, validator=_positive)
    pooler: bool = False
    notify: bool = True
    connect_timeout: float = attrs.field(default=30.0, validator=_positive)
    statement_timeout: float = attrs.field(default=30.0, validator=_positive)
    lock_timeout: float = attrs.field(default=10.0, validator=_positive)
    idle_in_transaction_timeout: float = attrs.field(default=60.0, validator=_positive)
    max_args_bytes: int = attrs.field(default=1_048_576, validator=_positive)

    @property
    def listens(self) -> bool:
        """Whether LISTEN is used at all."""
        return self.notify and not self.pooler


@attrs.frozen
class RateLimit:
    """Starts per second in one process, with a burst (default: one second's worth)."""

    per_second: float = attrs.field(validator=_positive)
    burst: int | None = attrs.field(default=None, validator=_positive_or_none)


@attrs.frozen
class QueueConfig:
    """How one process works one queue.

    Args:
        name: the queue.
        max_workers: attempts running at once in this process.
        poll_interval: longest wait between looks when nothing wakes the dispatcher.
        deadline: seconds an attempt may run unless its job says otherwise; None for no limit.
        priority_aging: waiting this long makes a job one priority more urgent at claim time; 0 turns it off.
        rate_limit: starts per second, or None.
        claim_batch: most jobs taken in one claim.
        claim_bytes: most bytes of args taken in one claim (one job is always taken).
    """

    name: str
    max_workers: int = attrs.field(default=50, validator=_positive)
    poll_interval: float = attrs.field(default=1.0, validator=_positive, kw_only=True)
    deadline: float | None = attrs.field(default=None, validator=_positive_or_none, kw_only=True)
    priority_aging: float = attrs.field(default=60.0, kw_only=True)
    rate_limit: RateLimit | None = attrs.field(default=None, kw_only=True)
    claim_batch: int = attrs.field(default=512, validator=_positive, kw_only=True)
    claim_bytes: int = attrs.field(default=8_388_608, validator=_positive, kw_only=True)


@attrs.frozen
class WorkerSettings:
    """How a worker process lives.

    Args:
        liveness: beats and staleness.
        loop_stall_limit: the beat stops when the event loop has not turned for this long.
        shutdown_write: bound of the one step that records cancelled attempts when the worker is stopped at once.
        cancel_poll: how often running attempts are checked against the database when nothing is notified.
        interrupted_bound: times a job may be interrupted by stops before they count as attempts.
        follow_up_failures: failures of a follow-up spec after which the outcome commits without it.
        storage: `canonical` makes this process one that knew only the canonical plane when it started: it claims
            nothing else. Only for rehearsals of a storage transition.
    """

    liveness: Liveness = attrs.field(factory=Liveness)
    loop_stall_limit: float = attrs.field(default=60.0, validator=_positive)
    shutdown_write: float = attrs.field(default=5.0, validator=_positive)
    cancel_poll: float = attrs.field(default=1.0, validator=_positive)
    interrupted_bound: int = attrs.field(default=20, validator=_positive)
    follow_up_failures: int = attrs.field(default=3, validator=_positive)
    storage: str = attrs.field(default="auto", validator=_storage_role)


@attrs.frozen
class MaintenanceSettings:
    """What the lanes do, and how often.

    Args:
        lease: timing of the leadership lease.
        lead: whether this process stands for election at all.
        promote_interval: longest wait of the promote lane while nothing is due.
        rescue_interval: between sweeps for dead instances, passed deadlines and expired callbacks.
        hygiene_interval: between looks at the rings.
        ring_turn: seconds after which a fast ring turns when it holds rows.
        refresh_interval: between refreshes of the numbers that dashboards read.
        batch_interval: between looks for batch operations that operators submitted.
        cron_interval: longest wait between looks at the schedules; a fire wakes their lane earlier.
        rescue_bound: rescues after which a job fails visibly.
        deadline_margin: how long after its deadline an attempt is taken from a live worker.
        completed_retention: how long completed jobs stay visible (or until the ring is full).
        failed_retention: how long failed and cancelled jobs stay.
        dlq_retention: how long dead letters stay.
        descriptor_retention: how long descriptors stay that nobody publishes any more.
        segment_rows: a segment turns early when it holds about this many bodies.
        batch: rows per statement of promote and rescue.
        lane_failures: failures in a row after which promote or rescue make the leader give up its term.
        stuck_session: seconds after which a session that stopped reading is ended.
    """

    lease: LeaseTiming = attrs.field(factory=LeaseTiming)
    lead: bool = True
    promote_interval: float = attrs.field(default=1.5, validator=_positive)
    rescue_interval: float = attrs.field(default=5.0, validator=_positive)
    hygiene_interval: float = attrs.field(default=5.0, validator=_positive)
    ring_turn: float = attrs.field(default=5.0, validator=_positive)
    refresh_interval: float = attrs.field(default=10.0, validator=_positive)
    batch_interval: float = attrs.field(default=2.0, validator=_positive)
    cron_interval: float = attrs.field(default=5.0, validator=_positive)
    rescue_bound: int = attrs.field(default=5, validator=_positive)
    deadline_margin: float = attrs.field(default=5.0, validator=_positive)
    completed_retention: float = attrs.field(default=86_400.0, validator=_positive)
    failed_retention: float = attrs.field(default=259_200.0, validator=_positive)
    dlq_retention: float = attrs.field(default=2_592_000.0, validator=_positive)
    descriptor_retention: float = attrs.field(default=2_592_000.0, validator=_positive)
    segment_rows: int = attrs.field(default=5_000_000, validator=_positive)
    batch: int = attrs.field(default=2_000, validator=_positive)
    lane_failures: int = attrs.field(default=5, validator=_positive)
    stuck_session: float = attrs.field(default=30.0, validator=_positive)


@attrs.frozen
class Budget:
    """Bounds of one tick: it stops at whichever comes first."""

    seconds: float = attrs.field(default=20.0, validator=_positive)
    rows: int = attrs.field(default=5_000, validator=_positive)
