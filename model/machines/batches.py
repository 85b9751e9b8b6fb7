"""One bad row never stops a batch: sweeps fall back to one row at a time, and record the row that cannot be moved."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import ClassVar, NamedTuple

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

FLAWS = ("sound", "conflict", "unstorable", "bodiless")
"""What can be wrong with a row: nothing; a newer job holds its key; the value to write is refused; its body is gone."""

SWEEPS = ("claim", "promote", "rescue", "settle")


class Batch(NamedTuple):
    """The rows that a sweep is to move.

    (flaw, state), where state is stuck, moved, cancelled (as a duplicate) or failed.
    """

    sweep: str
    rows: tuple[tuple[str, str], ...]
    crashes: int = 0
    mode: str = "together"


class Batches(Machine[Batch]):
    """A sweep of each kind over rows with any flaws, in one statement first; it may be interrupted."""

    facts = "X24, trap T5, architecture 2"
    code = (
        "store/migrations/0004 (take_carefully), 0005 (settle), 0006 (promote_carefully, rescue_one, abandon), "
        "0018, 0019 (move_canonical)"
    )
    sizes: ClassVar[Sizes] = {
        "dev": {"n_rows": 2, "crashes": 1},
        "ci": {"n_rows": 3, "crashes": 2},
        "nightly": {"n_rows": 4, "crashes": 2},
    }
    walk_sizes: ClassVar[Bounds] = {"n_rows": 4, "crashes": 3}
    twins: ClassVar[Twins] = {
        "a batch that raises is done one by one": ("every_row_leaves",),
        "a row that raises alone is recorded as failed": ("every_row_leaves",),
        "each row has a subtransaction of its own": ("every_row_leaves", "the_innocent_move"),
        "a conflict ends the job as a duplicate": ("every_row_leaves",),
        "the newer holder keeps the key": ("claims_are_consistent",),
        "only a row with a flaw is failed": ("the_innocent_move",),
    }
    n_rows: int
    crashes: int

    def initial(self) -> Iterator[Batch]:
        """Every sweep over every mix of flaws."""
        for sweep in SWEEPS:
            for flaws in product(FLAWS, repeat=self.n_rows):
                yield Batch(sweep, tuple((flaw, "stuck") for flaw in flaws), crashes=self.crashes)

    def _set(self, s: Batch, r: int, state: str) -> Batch:
        return s._replace(rows=replaced(s.rows, r, (s.rows[r][0], state)))

    @fair
    def move_together(self, s: Batch) -> Steps[Batch]:
        """All stuck rows in one statement: it moves what is sound, or raises as a whole and changes nothing."""
        stuck = [r for r, (_, state) in enumerate(s.rows) if state == "stuck"]
        if s.mode != "together" or not stuck:
            return
        # Rows whose key changes hands are left for the second pass by the statement itself; the others make it raise.
        if any(s.rows[r][0] in ("unstorable", "bodiless") for r in stuck):
            if self.keeps("a batch that raises is done one by one"):
                yield ("raised",), s._replace(mode="one by one")
            return
        after = s
        for r in stuck:
            after = self._set(after, r, "moved") if s.rows[r][0] == "sound" else after
        yield (), after._replace(mode="one by one")

    @fair
    def move_one(self, s: Batch) -> Steps[Batch]:
        """One row alone; whatever it raises undoes only itself."""
        if s.mode != "one by one":
            return
        for r, (flaw, state) in enumerate(s.rows):
            if state != "stuck":
                continue
            if (flaw == "sound" and self.keeps("only a row with a flaw is failed")) or (
                flaw == "conflict" and not self.keeps("the newer holder keeps the key")
            ):
                yield (r,), self._set(s, r, "moved")
            elif flaw == "conflict" and self.keeps("a conflict ends the job as a duplicate"):
                yield (r,), self._set(s, r, "cancelled")
            elif self.keeps("a row that raises alone is recorded as failed") and flaw != "conflict":
                after = self._set(s, r, "failed")
                if not self.keeps("each row has a subtransaction of its own"):
                    rows = tuple((f, "stuck" if st == "moved" else st) for f, st in after.rows)
                    after = s._replace(rows=rows)
                yield (r,), after
            return

    @action
    def crash(self, s: Batch) -> Steps[Batch]:
        """The process dies in the middle; another sweep begins with what is still stuck."""
        if s.crashes and s.mode == "one by one":
            yield (), s._replace(mode="together", crashes=s.crashes - 1)

    @invariant
    def claims_are_consistent(self, s: Batch) -> bool:
        """A job whose key a newer one holds never gets into a state in which it would need it."""
        return all(state in ("stuck", "cancelled") for flaw, state in s.rows if flaw == "conflict")

    @step_rule
    def the_innocent_move(self, s: Batch, name: str, args: Args, after: Batch) -> bool:
        """A sound row is moved, and stays so, whatever its neighbours are like."""
        pairs = zip(s.rows, after.rows, strict=True)
        return all(new in ("moved", old) for (flaw, old), (_, new) in pairs if flaw == "sound")

    @leaves
    def every_row_leaves(self, s: Batch) -> bool:
        """No row stays where it is for ever: it is moved, ends as a duplicate, or fails visibly."""
        return any(state == "stuck" for _, state in s.rows)
