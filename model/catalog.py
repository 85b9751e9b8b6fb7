"""Every machine, and the table of what they are and what was found in them: ``python -m model``."""

from __future__ import annotations

from typing import Any

import attrs

from model.explorer import Report, explore
from model.machine import Machine
from model.machines.batcher import CompletionBatcher
from model.machines.batches import Batches
from model.machines.callbacks import Callbacks
from model.machines.carry import Carry
from model.machines.claims import Claims
from model.machines.cron import Cron
from model.machines.follow_ups import FollowUps
from model.machines.guarded_move import GuardedMove
from model.machines.leadership import Leadership
from model.machines.lifecycle import Lifecycle
from model.machines.lock_order import LockOrder
from model.machines.maintenance import MaintenanceWrites
from model.machines.protocol import Protocol
from model.machines.queue import Queue
from model.machines.shutdown import Shutdown
from model.machines.storage_transition import StorageTransition
from model.machines.truncate import Truncation
from model.machines.unique_move import UniqueMove
from model.machines.wakeups import Wakeups

MACHINES: tuple[type[Machine[Any]], ...] = (
    Lifecycle,
    CompletionBatcher,
    Protocol,
    Shutdown,
    Leadership,
    MaintenanceWrites,
    Cron,
    Callbacks,
    FollowUps,
    Queue,
    Claims,
    Carry,
    Truncation,
    Wakeups,
    UniqueMove,
    Batches,
    GuardedMove,
    LockOrder,
    StorageTransition,
)


@attrs.frozen
class Twin:
    """A machine without one guard: what broke first, or that nothing did."""

    guard: str
    report: Report[Any]
    expected: tuple[str, ...]

    @property
    def is_killed(self) -> bool:
        """Whether one of the properties that its machine declares for this guard broke."""
        return self.report.violation is not None and self.report.violation.name in self.expected


def sizes(machine: type[Machine[Any]], profile: str) -> dict[str, int]:
    """The bounds of a machine in a profile."""
    return {**machine.sizes["dev"], **machine.sizes.get(profile, {})}


def explored(machine: type[Machine[Any]], profile: str, limit: int) -> Report[Any]:
    """Explore a machine in the bounds of a profile."""
    return explore(machine(**sizes(machine, profile)), limit)


def twin(machine: type[Machine[Any]], guard: str, limit: int) -> Twin:
    """Explore a machine without one of its guards."""
    return Twin(guard, explore(machine(guard), limit), machine.twins[guard])


def described(machine: type[Machine[Any]]) -> str:
    """What a machine is, as the first columns of its row."""
    roles = machine().by_role
    properties = sum(len(roles[role]) for role in ("invariant", "step_rule", "leaves"))
    module = machine.__module__.removeprefix("model.").replace(".", "/")
    return (
        f"| [{machine.__name__}]({module}.py) | {machine.facts} | {machine.code} "
        f"| {len(machine().actions)} | {properties} |"
    )


def table(profile: str, limit: int) -> list[str]:
    """The machines as the lines of a Markdown table."""
    lines = [
        "| machine | facts | code | actions | properties | twins killed | states | steps |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    killed = states = steps = 0
    for machine in MACHINES:
        report = explored(machine, profile, limit)
        kills = [twin(machine, guard, limit).is_killed for guard in machine.twins]
        killed, states, steps = killed + sum(kills), states + report.states, steps + report.steps
        lines.append(f"{described(machine)} {sum(kills)} of {len(kills)} | {report.states:,} | {report.steps:,} |")
    count = sum(len(machine.twins) for machine in MACHINES)
    lines.append(f"| {len(MACHINES)} machines | | | | | {killed} of {count} | {states:,} | {steps:,} |")
    return lines
