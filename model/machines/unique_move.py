"""A job that is rescheduled into a state whose unique key a newer job holds.

The newer wins, and nothing unclaimed ever runs.
"""

from __future__ import annotations

from collections.abc import Iterator
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


class Job(NamedTuple):
    """A job with the key. `late` has a mask without running.

    It gives the key up when it runs and needs it again after.
    """

    state: str = "none"
    late: bool = False


class Key(NamedTuple):
    """The jobs that want the key, and which of them holds it."""

    jobs: tuple[Job, ...]
    holder: int | None = None


HOLDS = {False: ("available", "running", "deferred", "completed"), True: ("available", "deferred")}
"""States in which a job holds its key, for the usual mask and for one of pending states only."""


class UniqueMove(Machine[Key]):
    """Two jobs with one key, each with either mask."""

    facts = "X23, S27 to S30, S37"
    code = "store/migrations/0003 (take_claim), 0004 (shift_claims), 0005 (land, end_as_duplicate), 0006 (promote_one)"
    sizes: ClassVar[Sizes] = {"dev": {"n_jobs": 2}, "ci": {"n_jobs": 3}, "nightly": {"n_jobs": 4}}
    walk_sizes: ClassVar[Bounds] = {"n_jobs": 5}
    twins: ClassVar[Twins] = {
        "a job that needs a key which another holds ends as a duplicate": ("nothing_unclaimed_waits",),
        "the newer holder keeps the key": ("only_its_holder_gives_a_key_up",),
        "a key is taken by who inserts first": ("only_its_holder_gives_a_key_up",),
        "a job that stops needing its key gives it back": ("the_holder_needs_its_key",),
    }
    n_jobs: int

    def initial(self) -> Iterator[Key]:
        """Nothing is enqueued; the first job may have either mask."""
        for late in (False, True):
            yield Key((Job(late=late), *(Job(late=True) for _ in range(self.n_jobs - 1))))

    def _holds(self, job: Job, state: str | None = None) -> bool:
        return (state or job.state) in HOLDS[job.late]

    def _moved(self, s: Key, j: int, to: str) -> Key:
        """Every move goes through here, as every move of the store goes through land()."""
        job = s.jobs[j]
        had, wants, holder = self._holds(job), self._holds(job, to), s.holder
        if wants and not had and holder is not None:
            if self.keeps("a job that needs a key which another holds ends as a duplicate"):
                if not self.keeps("the newer holder keeps the key"):
                    holder = j
                to = "cancelled"
        elif wants:
            holder = j
        elif had and holder == j and self.keeps("a job that stops needing its key gives it back"):
            holder = None
        return Key(replaced(s.jobs, j, job._replace(state=to)), holder)

    @action
    def insert(self, s: Key) -> Steps[Key]:
        """A producer enqueues; the key is free, or the job is not inserted."""
        for j, job in enumerate(s.jobs):
            if job.state == "none" and self.guard("a key is taken by who inserts first", s.holder is None):
                yield (j,), Key(replaced(s.jobs, j, job._replace(state="available")), j)

    @fair
    def claim(self, s: Key) -> Steps[Key]:
        """A job starts to run."""
        for j, job in enumerate(s.jobs):
            if job.state == "available":
                yield (j,), self._moved(s, j, "running")

    @fair
    def complete(self, s: Key) -> Steps[Key]:
        """It completes."""
        for j, job in enumerate(s.jobs):
            if job.state == "running":
                yield (j,), self._moved(s, j, "completed")

    @action
    def reschedule(self, s: Key) -> Steps[Key]:
        """It is retried, snoozed or rescued."""
        for j, job in enumerate(s.jobs):
            if job.state == "running":
                yield (j,), self._moved(s, j, "deferred")

    @fair
    def promote(self, s: Key) -> Steps[Key]:
        """It is due."""
        for j, job in enumerate(s.jobs):
            if job.state == "deferred":
                yield (j,), self._moved(s, j, "available")

    @action
    def cancel(self, s: Key) -> Steps[Key]:
        """An operator cancels it."""
        for j, job in enumerate(s.jobs):
            if job.state in ("available", "running", "deferred"):
                yield (j,), self._moved(s, j, "cancelled")

    @action
    def forget(self, s: Key) -> Steps[Key]:
        """Its history goes, and with it the key that only history held."""
        for j, job in enumerate(s.jobs):
            if job.state == "completed":
                yield (j,), Key(replaced(s.jobs, j, job._replace(state="gone")), None if s.holder == j else s.holder)

    @invariant
    def nothing_unclaimed_waits(self, s: Key) -> bool:
        """A job in a state of its mask holds the key."""
        return all(s.holder == j for j, job in enumerate(s.jobs) if self._holds(job))

    @invariant
    def one_job_holds_the_key(self, s: Key) -> bool:
        """No two jobs are in states of their masks."""
        return sum(self._holds(job) for job in s.jobs) <= 1

    @invariant
    def the_holder_needs_its_key(self, s: Key) -> bool:
        """Who holds the key is in a state of its mask; no other keeps it from newer jobs."""
        return s.holder is None or self._holds(s.jobs[s.holder])

    @step_rule
    def only_its_holder_gives_a_key_up(self, s: Key, name: str, args: Args, after: Key) -> bool:
        """A key leaves its holder by the holder's own move; no other job takes it away."""
        return s.holder in (None, after.holder) or args[0] == s.holder

    @leaves
    def every_run_ends(self, s: Key) -> bool:
        """A job that is due is promoted, or ends as a duplicate; it does not stay deferred."""
        return any(job.state == "deferred" for job in s.jobs)
