"""Follow a script of steps through a machine: what a run did, or what a story tells, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from model.machine import Args, Machine

S = TypeVar("S")


class CannotHappen(Exception):
    """A step of a script that the machine cannot take; the text names it and what could be done instead."""


def follow(machine: Machine[S], script: Iterable[tuple[str, Args]]) -> S:
    """Follow a script from the first initial state.

    Args:
        machine: which.
        script: actions and arguments; fewer arguments than an action has mean the first step that begins with them.

    Returns:
        The state at the end.

    Raises:
        CannotHappen: naming the first step that is not possible.
        AssertionError: a property breaks on the way.
    """
    state = next(machine.initial())
    for number, (name, args) in enumerate(script, 1):
        steps = list(machine.steps(state))
        found = next((s for s in steps if s[0] == name and s[1][: len(args)] == args), None)
        if found is None:
            possible = sorted({f"{action}{given}" for action, given, _ in steps})
            raise CannotHappen(f"step {number}, {name}{args}, is not possible; these are: {', '.join(possible)}")
        broken = machine.broken_step_rule(state, *found) or machine.broken_invariant(found[2])
        assert broken is None, f"step {number}, {name}{args}: {machine.sentence(broken or '')}"
        state = found[2]
    return state
