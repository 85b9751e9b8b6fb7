"""Moving a running system from the older storage to the queue plane and finishing, or going back: the gates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from model.machine import Args, Bounds, Machine, Sizes, Steps, Twins, action, fair, invariant, leaves, step_rule

RUNTIMES = ("old", "auto", "target", "drain")
"""Kinds of runtime.

An older one that knows the canonical plane only; one that decided at its start; one that is told to run the queue
plane; one that is told to drain the canonical plane.
"""


class Storage(NamedTuple):
    """The state row, whether the queue plane's schema is there, work on both planes, and live runtimes by kind.

    `auto_before` counts auto runtimes that started before the flip and so execute canonical jobs for good. `snoozing`
    is a canonical job whose handler always snoozes; it is part of the backlog.
    """

    state: str = "canonical"
    engine: str = "canonical"
    prepared: bool = False
    schema: bool = False
    backlog: int = 0
    snoozing: bool = False
    queued: int = 0
    old: bool = False
    auto_before: bool = False
    auto_after: bool = False
    target: bool = False
    drain: bool = False
    upgraded: bool = False


class StorageTransition(Machine[Storage]):
    """Operators, producers and runtimes in any order."""

    facts = "X20 X21 X22, S1 to S36"
    code = "store/migrations/0014, 0015, 0018, 0019; store/planes.py, store/reschedule.py; actors/mover.py"
    sizes: ClassVar[Sizes] = {
        "dev": {"backlog": 1, "queued": 1},
        "ci": {"backlog": 2, "queued": 2},
        "nightly": {"backlog": 3, "queued": 3},
    }
    walk_sizes: ClassVar[Bounds] = {"backlog": 4, "queued": 4}
    twins: ClassVar[Twins] = {
        "entering needs a runtime that will run the queue plane": ("mixed_has_an_executor_at_entry",),
        "entering needs every canonical-only runtime gone": ("nobody_is_canonical_only_at_entry",),
        "entering needs a prepared engine": ("prepared_has_an_engine",),
        "finishing needs an empty backlog": ("active_has_no_backlog",),
        "finishing needs no canonical-only runtime": ("active_has_no_canonical_only_runtime",),
        "going back needs an unused queue plane": ("canonical_routing_leaves_no_queue_jobs",),
        "going back needs no queue runtime": ("canonical_routing_leaves_no_queue_runtime",),
        "producers follow the state row": ("canonical_routing_leaves_no_queue_jobs", "the_backlog_falls"),
        "a canonical job that is rescheduled moves to the queue plane": ("the_backlog_falls",),
        "a move keeps the work": ("moving_keeps_the_work",),
        "a later upgrade needs the move to be over": ("upgrades_find_it_finished",),
        "what is active stays active": ("active_runs_the_queue_plane",),
    }
    backlog: int
    queued: int

    def initial(self) -> Iterator[Storage]:
        """An older installation with one of its runtimes."""
        yield Storage(old=True)

    def _routes_to_queue(self, s: Storage) -> bool:
        return s.state in ("mixed", "active")

    def _canonical_executor(self, s: Storage) -> bool:
        return s.old or s.auto_before or s.drain

    def _queue_runtime(self, s: Storage) -> bool:
        return s.target or s.auto_after

    @action
    def prepare(self, s: Storage) -> Steps[Storage]:
        """An operator prepares the queue plane: its name, then its schema."""
        if s.state == "canonical":
            yield ("engine",), s._replace(state="prepared", prepared=True)
        if not s.schema:
            yield ("schema",), s._replace(schema=True)

    @action
    def enter(self, s: Storage) -> Steps[Storage]:
        """An operator lets producers switch."""
        if (
            s.state in ("canonical", "prepared")
            and self.guard("entering needs a prepared engine", s.prepared)
            and s.schema
            and self.guard("entering needs every canonical-only runtime gone", not s.old)
            and self.guard("entering needs a runtime that will run the queue plane", s.target)
        ):
            yield (), s._replace(state="mixed")

    @action
    def finish(self, s: Storage) -> Steps[Storage]:
        """An operator says that it is done."""
        if (
            s.state == "mixed"
            and self.guard("finishing needs an empty backlog", s.backlog == 0 and not s.snoozing)
            and self.guard("finishing needs no canonical-only runtime", not s.old)
        ):
            yield (), s._replace(state="active", engine="queue", prepared=False)

    @action
    def go_back(self, s: Storage) -> Steps[Storage]:
        """An operator gives up; while the queue plane holds nothing that is possible."""
        if s.state == "prepared":
            yield (), s._replace(state="canonical", prepared=False)
        elif s.state == "mixed":
            if self.guard("going back needs an unused queue plane", s.queued == 0) and self.guard(
                "going back needs no queue runtime", not self._queue_runtime(s)
            ):
                yield (), s._replace(state="canonical", prepared=False)
        elif s.state == "active" and not self.keeps("what is active stays active"):
            yield (), s._replace(prepared=False, engine="canonical")

    @action
    def start(self, s: Storage) -> Steps[Storage]:
        """A runtime starts. One that knows only the canonical plane may come in the middle of the move; it drains."""
        if s.state != "active":
            yield ("old",), s._replace(old=True)
        if not self._routes_to_queue(s):
            yield ("auto",), s._replace(auto_before=True)
        else:
            yield ("auto",), s._replace(auto_after=True)
        if s.schema and s.state != "canonical":
            yield ("target",), s._replace(target=True)
        yield ("drain",), s._replace(drain=True)

    @action
    def stop(self, s: Storage) -> Steps[Storage]:
        """A runtime ends; in mixed state somebody keeps draining, and somebody runs the queue plane."""
        for kind in ("old", "auto_before", "auto_after", "target", "drain"):
            off: dict[str, Any] = {kind: False}
            after = s._replace(**off)
            kept = self._canonical_executor(after) or s.state != "mixed" or not self._canonical_executor(s)
            if getattr(s, kind) and kept:
                yield (kind,), after

    @action
    def enqueue(self, s: Storage) -> Steps[Storage]:
        """A producer enqueues where the state row says."""
        canonical = not self._routes_to_queue(s)
        for to_canonical in (True, False):
            if not self.guard("producers follow the state row", to_canonical == canonical):
                continue
            if to_canonical and s.backlog < self.backlog:
                yield ("canonical",), s._replace(backlog=s.backlog + 1)
            if to_canonical and not s.snoozing:
                yield ("canonical, always snoozes",), s._replace(snoozing=True)
            if not to_canonical and s.queued < self.queued:
                yield ("queue",), s._replace(queued=s.queued + 1)

    @fair
    def run_canonical(self, s: Storage) -> Steps[Storage]:
        """A runtime that executes canonical jobs ends one."""
        if self._canonical_executor(s) and s.backlog:
            yield (), s._replace(backlog=s.backlog - 1)

    @fair
    def reschedule(self, s: Storage) -> Steps[Storage]:
        """The job that always snoozes does so again: after the switch it goes to the queue plane, under the same id."""
        if not (s.snoozing and self._canonical_executor(s) and self._routes_to_queue(s)):
            return
        if self.keeps("a canonical job that is rescheduled moves to the queue plane"):
            added = 1 if self.keeps("a move keeps the work") else 0
            yield (), s._replace(snoozing=False, queued=s.queued + added)

    @action
    def run_queued(self, s: Storage) -> Steps[Storage]:
        """A runtime of the queue plane ends a job."""
        if self._queue_runtime(s) and s.queued:
            yield (), s._replace(queued=s.queued - 1)

    @action
    def upgrade(self, s: Storage) -> Steps[Storage]:
        """The schema of the release after is installed; it has no canonical plane."""
        if not s.upgraded and self.guard("a later upgrade needs the move to be over", s.state == "active"):
            yield (), s._replace(upgraded=True)

    @invariant
    def prepared_has_an_engine(self, s: Storage) -> bool:
        """In prepared and mixed state it is known which engine is meant."""
        return s.state not in ("prepared", "mixed") or s.prepared

    @invariant
    def active_runs_the_queue_plane(self, s: Storage) -> bool:
        """Active means that the queue plane is the engine, and nothing else means that."""
        return (s.state == "active") == (s.engine == "queue")

    @invariant
    def mixed_has_its_schema(self, s: Storage) -> bool:
        """Producers are never sent to a schema that is not there."""
        return not self._routes_to_queue(s) or s.schema

    @invariant
    def active_has_no_canonical_only_runtime(self, s: Storage) -> bool:
        """When the canonical plane is given up, no runtime is left that knows only that."""
        return not (s.state == "active" and s.old)

    @invariant
    def active_has_no_backlog(self, s: Storage) -> bool:
        """Nobody is left behind on the canonical plane."""
        return s.state != "active" or (s.backlog == 0 and not s.snoozing)

    @invariant
    def canonical_routing_leaves_no_queue_jobs(self, s: Storage) -> bool:
        """While producers go to the canonical plane, the queue plane is empty: its jobs would be stranded."""
        return self._routes_to_queue(s) or s.queued == 0

    @step_rule
    def canonical_routing_leaves_no_queue_runtime(self, s: Storage, name: str, args: Args, after: Storage) -> bool:
        """Going back leaves no runtime that works on the plane which was given up."""
        return name != "go_back" or s.state != "mixed" or not self._queue_runtime(s)

    @invariant
    def upgrades_find_it_finished(self, s: Storage) -> bool:
        """A release without the canonical plane finds nothing on it."""
        return not s.upgraded or s.state == "active"

    @step_rule
    def mixed_has_an_executor_at_entry(self, s: Storage, name: str, args: Args, after: Storage) -> bool:
        """When producers switch, somebody runs what they enqueue."""
        return name != "enter" or s.target

    @step_rule
    def nobody_is_canonical_only_at_entry(self, s: Storage, name: str, args: Args, after: Storage) -> bool:
        """When producers switch, no runtime is left that would not see what they enqueue."""
        return name != "enter" or not s.old

    @step_rule
    def moving_keeps_the_work(self, s: Storage, name: str, args: Args, after: Storage) -> bool:
        """A job that moves between planes is neither lost nor doubled."""
        if name != "reschedule":
            return True
        return s.backlog + s.snoozing + s.queued == after.backlog + after.snoozing + after.queued

    @leaves
    def the_backlog_falls(self, s: Storage) -> bool:
        """In mixed state, while somebody drains, the canonical backlog comes to its end, whatever its handlers do."""
        return s.state == "mixed" and self._canonical_executor(s) and (s.backlog > 0 or s.snoozing)
