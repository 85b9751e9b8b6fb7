"""What a machine is: a hashable state, named actions, properties that are sentences, and guards that can be taken away.

A machine is declared once. The explorer walks all of its states within small bounds, Hypothesis walks some of them
within larger ones, and a recorded run is replayed against it. Each guard has a name; the machine without that guard is
its broken twin, and a twin in which nothing goes wrong means that the guard, or the property it serves, is not
specified at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., Any])

Args = tuple[Any, ...]
"""What distinguishes the steps of one action: which job, which session."""
Steps = Iterator[tuple[Args, S]]
"""What an action yields for a state: its arguments, and the state they lead to. Nothing: it is not enabled."""

Bounds = Mapping[str, int]
Sizes = Mapping[str, Bounds]
Twins = Mapping[str, tuple[str, ...]]

ROLES = ("action", "fair", "invariant", "step_rule", "leaves")


def _marked(role: str) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, "role", role)  # noqa: B010 - a function has no such attribute that a type checker knows
        return function

    return mark


action = _marked("action")
"""Something that may happen: ``(state) -> Steps``."""
fair = _marked("fair")
"""An action that happens sooner or later if it stays possible.

What the runtime does, as opposed to what is done to it.
"""
invariant = _marked("invariant")
"""``(state) -> bool``: true in every state. The docstring is the sentence."""
step_rule = _marked("step_rule")
"""``(before, action, args, after) -> bool``: true of every step."""
leaves = _marked("leaves")
"""``(state) -> bool``: true in states that every fair run leaves again. The docstring says which and why."""


class Machine(Generic[S]):
    """One specification.

    Args:
        without: the guard to take away, for a broken twin.
        bounds: sizes that replace those of the class.

    Attributes:
        facts: ids of the facts and decisions it specifies.
        code: what it is a specification of.
        sizes: the bounds to explore, by profile; those of `dev` count where another names none. The name of a guard may
            stand for a profile: its twin is explored in those bounds, since some guards need more room to be missed.
        walk_sizes: the bounds for random walks, larger than any that can be explored.
        twins: for each guard, the properties of which at least one breaks without it.
    """

    facts: ClassVar[str] = ""
    code: ClassVar[str] = ""
    sizes: ClassVar[Sizes] = {"dev": {}}
    walk_sizes: ClassVar[Bounds] = {}
    twins: ClassVar[Twins] = {}

    def __init__(self, without: str | None = None, /, **bounds: int) -> None:
        if without is not None and without not in self.twins:
            raise LookupError(f"{type(self).__name__} declares no guard {without!r}")
        self.without = without
        self.asked: set[str] = set()
        for name, value in {**self.sizes["dev"], **self.sizes.get(without or "", {}), **bounds}.items():
            setattr(self, name, value)
        members = [getattr(self, name) for name in dir(type(self)) if not name.startswith("__")]
        self.by_role: dict[str, dict[str, Callable[..., Any]]] = {
            role: {m.__name__: m for m in members if getattr(m, "role", None) == role} for role in ROLES
        }
        self.actions = self.by_role["action"] | self.by_role["fair"]

    def initial(self) -> Iterator[S]:
        """Yield the states in which a run can start."""
        raise TypeError(f"{type(self).__name__} has no initial state")

    def may_rest(self, state: S) -> bool:
        """Whether it is all right that nothing can happen in this state; a machine that must not get stuck says no."""
        return True

    def guard(self, name: str, holds: bool) -> bool:
        """Whether a step is let through: `holds`, or always in the twin without this guard."""
        self.asked.add(name)
        return holds or name == self.without

    def keeps(self, name: str) -> bool:
        """Whether a rule that is more than a condition is in force; not so in the twin without it."""
        self.asked.add(name)
        return name != self.without

    def steps(self, state: S) -> Iterator[tuple[str, Args, S]]:
        """Yield every step from a state, except those that change nothing."""
        for name, act in self.actions.items():
            for args, after in act(state):
                if after != state:
                    yield name, args, after

    def broken_invariant(self, state: S) -> str | None:
        """Name the first invariant that a state breaks."""
        return next((name for name, holds in self.by_role["invariant"].items() if not holds(state)), None)

    def broken_step_rule(self, before: S, name: str, args: Args, after: S) -> str | None:
        """Name the first rule that a step breaks."""
        rules = self.by_role["step_rule"].items()
        return next((rule for rule, holds in rules if not holds(before, name, args, after)), None)

    def sentence(self, name: str) -> str:
        """The docstring of a property, on one line."""
        return " ".join((getattr(self, name).__doc__ or name).split())


def replaced(row: tuple[Any, ...], at: int, value: Any) -> Any:
    """A tuple with one of its items replaced."""
    return (*row[:at], value, *row[at + 1 :])
