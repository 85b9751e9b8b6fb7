"""What health knows of a deployment, and what it concludes. The facts come from one look at the database."""

from __future__ import annotations

from typing import Any

import attrs

CROWDED = 0.9
"""Share of the server's connections above which health warns."""


@attrs.frozen
class Server:
    """The database server; `sessions` are ours, `all_sessions` everybody's."""

    version: str
    read_only: bool
    sessions: int
    all_sessions: int
    max_connections: int


@attrs.frozen
class Leader:
    """Who leads; ages in seconds by the database's clock."""

    instance: str
    term: int
    led_for: float
    lease_age: float
    lease_left: float


@attrs.frozen
class Lane:
    """One lane of the leader, as it published it a few seconds ago; ages in seconds."""

    name: str
    healthy: bool
    last_success_age: float | None
    last_error: str | None
    blocked: str | None


@attrs.frozen
class Process:
    """One registered process; `alive` means that its beat is fresh, `totals` is what it has counted since its start."""

    id: str
    role: str
    hostname: str
    pid: int
    version: str
    state: str
    alive: bool
    beat_age: float
    queues: tuple[str, ...]
    totals: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen
class QueueNumbers:
    """Jobs of one queue as the leader last counted them, `counted_age` seconds ago."""

    queue: str
    available: int
    running: int
    scheduled: int
    retryable: int
    waiting_external: int
    failed: int
    dead_letters: int
    oldest_available_age: float | None
    counted_age: float


@attrs.frozen
class Deployment:
    """What a migrated database knows. `jobs_wait`: something is there that only a leader moves on or watches over."""

    leader: Leader | None
    lanes: tuple[Lane, ...]
    processes: tuple[Process, ...]
    queues: tuple[QueueNumbers, ...]
    jobs_wait: bool


@attrs.frozen
class Health:
    """One look. `deployment` is None when the schema is not the one that this release reads."""

    server: Server
    schema_version: int
    expected_version: int
    deployment: Deployment | None

    @property
    def reasons(self) -> list[str]:
        """Why the deployment is not ready; each says what to do, as far as that is known."""
        found: list[str] = []
        if self.schema_version != self.expected_version:
            found.append(schema_reason(self.schema_version, self.expected_version))
        if self.server.read_only:
            found.append("the database is read-only: name the primary")
        if (deployment := self.deployment) is not None:
            if deployment.leader is None and deployment.jobs_wait:
                found.append("jobs wait and nobody leads: run 'awa-actors --role maintenance', or a worker")
            found.extend(
                f"lane {lane.name} is unhealthy: {lane.last_error or 'its pass does not end'}"
                for lane in deployment.lanes
                if not lane.healthy
            )
        return found

    @property
    def warnings(self) -> list[str]:
        """What should be looked at although the deployment is ready."""
        found: list[str] = []
        if self.server.all_sessions >= CROWDED * self.server.max_connections:
            found.append(f"{self.server.all_sessions} of {self.server.max_connections} connections are in use")
        if (deployment := self.deployment) is not None:
            if deployment.leader is None and not deployment.jobs_wait:
                found.append("nobody leads; no job needs it yet")
            found.extend(f"lane {lane.name}: {lane.blocked}" for lane in deployment.lanes if lane.blocked)
            found.extend(
                f"{process.role} {process.pid} on {process.hostname} has not beaten for {process.beat_age:.0f} s"
                for process in deployment.processes
                if not process.alive
            )
            served = {name for process in deployment.processes if process.alive for name in process.queues}
            found.extend(
                f"queue {numbers.queue} has {numbers.available} available jobs and no live worker"
                for numbers in deployment.queues
                if numbers.available and numbers.queue not in served
            )
        return found

    def as_json(self) -> dict[str, Any]:
        """Give everything under names that stay."""
        reasons, deployment = self.reasons, self.deployment
        whole: dict[str, Any] = {
            "ready": not reasons,
            "reasons": reasons,
            "warnings": self.warnings,
            "database": {"reachable": True, **attrs.asdict(self.server)},
            "schema": {"version": self.schema_version, "expected": self.expected_version},
        }
        known = {} if deployment is None else attrs.asdict(deployment)
        return whole | {name: known.get(name) for name in ("leader", "lanes", "processes", "queues")}


def schema_reason(found: int, expected: int) -> str:
    """Say what is wrong with a schema of another version."""
    if found > expected:
        return f"the schema is at version {found}, this release knows {expected}: upgrade awa-actors"
    if found == 0:
        return "the database has no awa schema: run 'awa-actors migrate'"
    return f"the schema is at version {found}, this release needs {expected}: run 'awa-actors migrate'"
