"""Breadth-first search through all states of a machine.

The shortest script to whatever breaks, or the proof that nothing does.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import attrs

from model.liveness import Edge, stays_for_ever
from model.machine import Args, Machine

S = TypeVar("S")

STUCK = "may_rest"
"""The property that breaks when nothing can happen in a state where something must."""


@attrs.frozen
class Violation(Generic[S]):
    """A property that broke, and the shortest run that breaks it.

    Args:
        name, sentence: of the property.
        start: the first state.
        script: action, arguments and next state of every step.
        for_ever: what goes on happening after the script, of a run that never leaves a state it must leave.
    """

    name: str
    sentence: str
    start: S
    script: list[tuple[str, Args, S]]
    for_ever: list[str] = attrs.field(factory=list)

    def __str__(self) -> str:
        """Tell the run, each step with what it changed."""
        lines = [f"broken: {self.name} -- {self.sentence}", f"   start: {self.start}"]
        before: Any = self.start
        for number, (name, args, after) in enumerate(self.script, 1):
            lines.append(f"{number:4}. {name}({', '.join(map(str, args))})  ->  {changes(before, after)}")
            before = after
        if self.name == STUCK:
            lines.append("      and then nothing can happen any more")
        elif self.for_ever:
            lines.append(f"      and then for ever: {', '.join(self.for_ever)}")
        return "\n".join(lines)


@attrs.frozen
class Report(Generic[S]):
    """What a search found.

    Args:
        states, steps, depth: how much there is.
        seconds: how long it took.
        complete: every reachable state was seen; False when the search gave up at its limit.
        taken: how often each action was possible.
        asked: guards that were consulted.
        violation: what broke, if something did.
    """

    states: int
    steps: int
    depth: int
    seconds: float
    complete: bool
    taken: Counter[str]
    asked: frozenset[str]
    violation: Violation[S] | None

    @property
    def states_per_second(self) -> int:
        """How fast that was."""
        return round(self.states / max(self.seconds, 1e-6))


def changes(before: Any, after: Any) -> str:
    """What differs between two states, down to the field."""
    return ", ".join(f"{path.lstrip('.')} = {value}" for path, value in _differences("", before, after))


def _differences(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any]]:
    if before == after:
        return
    if hasattr(after, "_fields") and type(before) is type(after):
        for name in after._fields:
            yield from _differences(f"{path}.{name}", getattr(before, name), getattr(after, name))
    elif isinstance(after, tuple) and isinstance(before, tuple) and len(before) == len(after) and path:
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from _differences(f"{path}[{number}]", old, new)
    else:
        yield path, set(after) if isinstance(after, frozenset) else after


class Search(Generic[S]):
    """One search. States are numbered as they are found; `parents` tells how each was reached first."""

    def __init__(self, machine: Machine[S], limit: int) -> None:
        self.machine = machine
        self.limit = limit
        self.numbers: dict[S, int] = {}
        self.found: list[S] = []
        self.parents: list[tuple[int, str, Args] | None] = []
        self.depths: list[int] = []
        self.edges: list[list[Edge]] = []
        self.taken: Counter[str] = Counter()
        self.steps = 0

    def run(self) -> Report[S]:
        """Search until everything was seen, something broke, or the limit is reached."""
        began = time.perf_counter()
        for state in self.machine.initial():
            self._number(state, None)
        violation, at = None, 0
        keep_edges = bool(self.machine.by_role["leaves"])
        queue = deque(range(len(self.found)))
        while queue and violation is None and len(self.found) < self.limit:
            at = queue.popleft()
            violation = self._expand(at, queue, keep_edges)
        complete = violation is None and not queue
        if complete and keep_edges:
            violation = self._broken_liveness()
        return Report(
            len(self.found),
            self.steps,
            max(self.depths, default=0),
            time.perf_counter() - began,
            complete,
            self.taken,
            frozenset(self.machine.asked),
            violation,
        )

    def _number(self, state: S, parent: tuple[int, str, Args] | None) -> int | None:
        """Number a new state; None when it is known."""
        if state in self.numbers:
            return None
        number = self.numbers[state] = len(self.found)
        self.found.append(state)
        self.parents.append(parent)
        self.depths.append(0 if parent is None else self.depths[parent[0]] + 1)
        self.edges.append([])
        return number

    def _expand(self, at: int, queue: deque[int], keep_edges: bool) -> Violation[S] | None:
        machine, state = self.machine, self.found[at]
        name = machine.broken_invariant(state)
        if name is not None:
            return self._violation(name, at)
        stuck = True
        for act, args, after in machine.steps(state):
            stuck = False
            self.steps += 1
            self.taken[act] += 1
            rule = machine.broken_step_rule(state, act, args, after)
            if rule is not None:
                return self._violation(rule, at, (act, args, after))
            number = self._number(after, (at, act, args))
            if number is not None:
                queue.append(number)
            if keep_edges:
                self.edges[at].append((act, args, self.numbers[after]))
        if stuck and not machine.may_rest(state):
            return self._violation(STUCK, at)
        return None

    def _violation(self, name: str, at: int, last: tuple[str, Args, S] | None = None) -> Violation[S]:
        script: list[tuple[str, Args, S]] = [] if last is None else [last]
        while (parent := self.parents[at]) is not None:
            script.insert(0, (parent[1], parent[2], self.found[at]))
            at = parent[0]
        return Violation(name, self.machine.sentence(name), self.found[at], script)

    def _broken_liveness(self) -> Violation[S] | None:
        for name, bad in self.machine.by_role["leaves"].items():
            trap = stays_for_ever([bad(s) for s in self.found], self.edges, set(self.machine.by_role["fair"]))
            if trap is not None:
                violation = self._violation(name, trap.entry)
                return attrs.evolve(violation, for_ever=trap.actions or ["nothing that must happen is possible"])
        return None


def explore(machine: Machine[S], limit: int = 2_000_000) -> Report[S]:
    """Visit every reachable state of a machine, at most `limit` of them."""
    return Search(machine, limit).run()
