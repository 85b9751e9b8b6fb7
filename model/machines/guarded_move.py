"""Scan, delete, insert: a caller that moves a row it has read must find the version that it read, or move nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from model.machine import (
    Args,
    Bounds,
    Machine,
    Sizes,
    Steps,
    Twins,
    action,
    fair,
    invariant,
    leaves,
    replaced,
    step_rule,
)


class Caller(NamedTuple):
    """Where a caller is: idle, scanned (with the version it read), deleted (its row is out, not in again yet), done."""

    at: str = "idle"
    version: int = -1
    lock: bool = False


class Row(NamedTuple):
    """One job in the older layout, where a change of state is a delete here and an insert there in one transaction."""

    callers: tuple[Caller, ...]
    version: int = 0
    present: bool = True
    changes: tuple[int, ...] = ()


class GuardedMove(Machine[Row]):
    """Several callers change one job through a view at once; each has read it before."""

    facts = "X12, J7"
    code = "store/migrations/0008 (pull); the older contract's view and its triggers"
    sizes: ClassVar[Sizes] = {"dev": {"n_callers": 2}, "ci": {"n_callers": 3}, "nightly": {"n_callers": 4}}
    walk_sizes: ClassVar[Bounds] = {"n_callers": 5}
    twins: ClassVar[Twins] = {
        "a delete names the version that was read": ("a_version_changes_once",),
        "who deleted nothing inserts nothing": ("a_version_changes_once",),
        "delete and insert are one transaction": ("the_row_is_never_lost",),
        "a deleter holds the row": ("one_deletes_at_a_time",),
    }
    n_callers: int

    def initial(self) -> Iterator[Row]:
        """One row, nobody has read it."""
        yield Row((Caller(),) * self.n_callers, changes=(0,) * (self.n_callers + 1))

    def _caller(self, s: Row, c: int, **fields: Any) -> Row:
        return s._replace(callers=replaced(s.callers, c, s.callers[c]._replace(**fields)))

    def _held(self, s: Row) -> bool:
        return any(caller.lock for caller in s.callers)

    @action
    def scan(self, s: Row) -> Steps[Row]:
        """A caller reads the committed row."""
        for c, caller in enumerate(s.callers):
            if caller.at == "idle":
                yield (c,), self._caller(s, c, at="scanned", version=s.version)

    @fair
    def delete(self, s: Row) -> Steps[Row]:
        """It waits for whoever holds the row, and deletes the version it read.

        Zero rows means that somebody was faster.
        """
        for c, caller in enumerate(s.callers):
            if caller.at != "scanned" or not self.guard("a deleter holds the row", not self._held(s)):
                continue
            found = self.guard("a delete names the version that was read", s.version == caller.version) and s.present
            if found:
                gone = s if self.keeps("delete and insert are one transaction") else s._replace(present=False)
                yield (c,), self._caller(gone, c, at="deleted", lock=True)
            elif self.keeps("who deleted nothing inserts nothing"):
                yield (c, "nothing"), self._caller(s, c, at="done")
            else:
                yield (c, "nothing"), self._caller(s, c, at="deleted")

    @fair
    def insert(self, s: Row) -> Steps[Row]:
        """It inserts the row as it wants it, and commits."""
        for c, caller in enumerate(s.callers):
            if caller.at == "deleted":
                after = self._caller(s, c, at="done", lock=False)
                changes = replaced(s.changes, caller.version, min(2, s.changes[caller.version] + 1))
                yield (c,), after._replace(version=min(s.version + 1, self.n_callers), present=True, changes=changes)

    @action
    def crash(self, s: Row) -> Steps[Row]:
        """A caller's connection breaks before it commits: its transaction is undone."""
        for c, caller in enumerate(s.callers):
            if caller.at in ("scanned", "deleted"):
                yield (c,), self._caller(s, c, at="done", lock=False)

    @invariant
    def a_version_changes_once(self, s: Row) -> bool:
        """No two callers both change the version that they read."""
        return all(count <= 1 for count in s.changes)

    @invariant
    def the_row_is_never_lost(self, s: Row) -> bool:
        """The row is there for everybody else until its successor is."""
        return s.present

    @step_rule
    def one_deletes_at_a_time(self, s: Row, name: str, args: Args, after: Row) -> bool:
        """While one transaction has deleted the row, another does not."""
        return name != "delete" or len(args) > 1 or not self._held(s)

    @leaves
    def every_caller_ends(self, s: Row) -> bool:
        """Nobody waits for ever."""
        return any(caller.at in ("scanned", "deleted") for caller in s.callers)
