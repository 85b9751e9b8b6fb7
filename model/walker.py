"""Random walks through a machine that is too large to explore, chosen and shrunk by Hypothesis."""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import strategies as st

from model.explorer import Violation
from model.machine import Args, Machine

S = TypeVar("S")


def walk(machine: Machine[S], data: st.DataObject, length: int) -> list[tuple[str, Args, S]]:
    """Take up to `length` steps and check every property of states and steps on the way.

    Returns:
        The steps.

    Raises:
        AssertionError: a property broke; the text is the script.
    """
    state: Any = data.draw(st.sampled_from(list(machine.initial())), label="start")
    start, script = state, []
    for _ in range(length):
        options = list(machine.steps(state))
        if not options:
            break
        name, args, after = options[data.draw(st.integers(0, len(options) - 1))]
        script.append((name, args, after))
        broken = machine.broken_step_rule(state, name, args, after) or machine.broken_invariant(after)
        if broken is not None:
            raise AssertionError(str(Violation(broken, machine.sentence(broken), start, script)))
        state = after
    return script
