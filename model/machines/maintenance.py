"""Two leaders at once: every maintenance write is its own guard, so a term that is over changes nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from model.machine import Bounds, Machine, Sizes, Steps, Twins, action, fair, invariant, leaves, replaced

KINDS = {
    "fire a schedule": "cron moves its mark from where it was read",
    "turn a ring": "a turn appends the next generation or nothing",
    "promote a job": "promotion deletes the deferred row that it moves",
    "rescue an attempt": "a rescue names the run_lease that it ends",
    "truncate a slot": "a slot is verified to be empty under the lock",
    "follow up a rescue": "who deletes the outbox row inserts the job",
}
"""What a leader writes, and the guard of each."""


class Work(NamedTuple):
    """For each kind of write: what is due by version, how often each version was done, and what each writer has read.

    A write is due at version v; doing it makes version v + 1. `seen` is None for a writer that has not looked.
    """

    version: tuple[int, ...]
    done: tuple[tuple[int, ...], ...]
    seen: tuple[tuple[int | None, ...], ...]


class MaintenanceWrites(Machine[Work]):
    """Several processes that all believe to lead, or run a tick, each free to stop between looking and writing."""

    facts = "architecture 2, X10; ADR-028"
    code = "store/migrations/0006, 0007, 0010, 0012; store/outbox.py; actors/tick.py"
    sizes: ClassVar[Sizes] = {
        "dev": {"writers": 2, "kinds": 2, "versions": 1},
        "ci": {"writers": 2, "kinds": 3, "versions": 1},
        "nightly": {"writers": 3, "kinds": 3, "versions": 1},
        **{guard: {"kinds": len(KINDS)} for guard in KINDS.values()},
    }
    walk_sizes: ClassVar[Bounds] = {"writers": 3, "kinds": len(KINDS), "versions": 2}
    twins: ClassVar[Twins] = {guard: ("nothing_is_done_twice",) for guard in KINDS.values()}
    writers: int
    kinds: int
    versions: int

    def initial(self) -> Iterator[Work]:
        """Every kind of work is due once."""
        yield Work((0,) * self.kinds, ((0,) * self.versions,) * self.kinds, ((None,) * self.kinds,) * self.writers)

    def _saw(self, s: Work, w: int, k: int, what: int | None) -> Work:
        return s._replace(seen=replaced(s.seen, w, replaced(s.seen[w], k, what)))

    @fair
    def look(self, s: Work) -> Steps[Work]:
        """A writer reads what is due."""
        for w in range(self.writers):
            for k, version in enumerate(s.version):
                if version < self.versions and s.seen[w][k] is None:
                    yield (w, list(KINDS)[k]), self._saw(s, w, k, version)

    @fair
    def write(self, s: Work) -> Steps[Work]:
        """A writer does what it saw, whoever leads by now; the database sees what it read before."""
        for w in range(self.writers):
            for k, (kind, guard) in enumerate(list(KINDS.items())[: self.kinds]):
                seen = s.seen[w][k]
                if seen is None:
                    continue
                after = self._saw(s, w, k, None)
                if self.guard(guard, seen == s.version[k]):
                    counts = replaced(s.done[k], seen, min(2, s.done[k][seen] + 1))
                    after = after._replace(version=replaced(s.version, k, seen + 1), done=replaced(s.done, k, counts))
                yield (w, kind), after

    @action
    def forget(self, s: Work) -> Steps[Work]:
        """A writer ends between looking and writing: its term is over, or it was killed. The last one goes on."""
        for w in range(self.writers - 1):
            for k in range(self.kinds):
                if s.seen[w][k] is not None:
                    yield (w, list(KINDS)[k]), self._saw(s, w, k, None)

    @invariant
    def nothing_is_done_twice(self, s: Work) -> bool:
        """What is due is done once, whatever number of processes do it at once."""
        return all(count <= 1 for counts in s.done for count in counts)

    @leaves
    def everything_is_done(self, s: Work) -> bool:
        """What is due is done sooner or later."""
        return any(version < self.versions for version in s.version)
