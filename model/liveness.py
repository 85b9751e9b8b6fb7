"""Whether a run can stay in bad states for ever although everything that must happen sooner or later does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from model.machine import Args

Edge = tuple[str, Args, int]
"""A step: action, arguments, number of the state it leads to."""


@attrs.frozen
class Trap:
    """States that a fair run never leaves: the first of them, and what goes on happening there."""

    entry: int
    actions: list[str]


def stays_for_ever(bad: Sequence[bool], edges: Sequence[Sequence[Edge]], fair: set[str]) -> Trap | None:
    """Find bad states in which a fair run can stay.

    Fairness is weak and per arguments: a fair step that is possible in every state of the rest of the run is taken in
    it. A run that comes to rest counts as staying where it rests. It is enough to look at strongly connected parts as
    a whole: a smaller cycle that is fair makes the part around it fair too.

    Args:
        bad: for each state, whether it must be left.
        edges: for each state, its steps.
        fair: names of fair actions.
    """
    for part in connected_parts(bad, edges):
        inside = set(part)
        taken = {edge[:2] for state in part for edge in edges[state] if edge[2] in inside}
        always = set.intersection(*({edge[:2] for edge in edges[state] if edge[0] in fair} for state in part))
        if always <= taken:
            return Trap(min(part), sorted({f"{name}({', '.join(map(str, args))})" for name, args in taken}))
    return None


def connected_parts(inside: Sequence[bool], edges: Sequence[Sequence[Edge]]) -> Iterator[list[int]]:
    """Tarjan's strongly connected components of the states that are `inside`, without recursion."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    for root in range(len(inside)):
        if not inside[root] or root in order:
            continue
        work: list[tuple[int, Iterator[Edge]]] = [(root, iter(edges[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            state, rest = work[-1]
            for _, _, target in rest:
                if not inside[target]:
                    continue
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(edges[target])))
                    break
                if target in on_stack:
                    low[state] = min(low[state], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[state])
                if low[state] == order[state]:
                    part = [stack.pop()]
                    while part[-1] != state:
                        part.append(stack.pop())
                    on_stack.difference_update(part)
                    yield part
