"""Follow-up jobs commit with the outcome they follow from; broken specs are bounded; rescues leave a row for theirs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
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

SPECS = ("fine", "broken")
"""What a kind's spec does: it always gives a job, or always raises (or gives one that cannot be inserted)."""


class Job(NamedTuple):
    """A job whose attempt has come to its end in this worker.

    `row` is running, ended, taken (another ended it; ours is stale) or rescued. `follows` counts its follow-up jobs,
    `failed` the recorded failures, `tries` how often its spec has failed. `outbox` is waiting, tried or gone, for a
    rescued one.
    """

    spec: str
    row: str = "running"
    follows: int = 0
    failed: int = 0
    tries: int = 0
    outbox: str = "none"
    owed: bool = True


class Batch(NamedTuple):
    """The jobs of one batch, which of them the open transaction has written, and which follow-ups it has inserted."""

    jobs: tuple[Job, ...]
    written: tuple[int, ...] = ()
    inserted: tuple[int, ...] = ()
    without: tuple[int, ...] = ()
    mishaps: int = 0


class FollowUps(Machine[Batch]):
    """A recorder, its dispatcher, a rescue that may be faster, connections that break, and the outbox."""

    facts = "F1 to F30; ADR-029"
    code = "actors/recorder.py, actors/follow_ups.py, store/follow_ups.py, store/outbox.py, store/migrations/0009, 0012"
    sizes: ClassVar[Sizes] = {
        "dev": {"n_jobs": 2, "allowed": 1, "mishaps": 1},
        "ci": {"n_jobs": 2, "allowed": 2, "mishaps": 3},
        "nightly": {"n_jobs": 3, "allowed": 2, "mishaps": 2},
    }
    walk_sizes: ClassVar[Bounds] = {"n_jobs": 5, "allowed": 3, "mishaps": 5}
    twins: ClassVar[Twins] = {
        "outcome and follow-up are one transaction": ("an_outcome_has_its_follow_up",),
        "a stale end has no follow-up": ("an_outcome_has_its_follow_up", "a_follow_up_has_its_outcome"),
        "a batch is redone without the job whose spec failed": ("every_end_is_recorded",),
        "after enough failures the outcome stands without": ("every_end_is_recorded",),
        "a missing follow-up is recorded": ("an_outcome_has_its_follow_up",),
        "a rescue asks no spec": ("every_end_is_recorded",),
        "a rescue writes its outbox row": ("a_rescue_leaves_its_row",),
        "who deletes the outbox row inserts the job": ("one_follow_up_each", "an_outcome_has_its_follow_up"),
        "an outbox row that failed lets others pass": ("every_rescue_is_followed",),
        "an unheard commit is looked at again": ("every_end_is_recorded",),
    }
    n_jobs: int
    allowed: int
    mishaps: int

    def initial(self) -> Iterator[Batch]:
        """Every mix of specs."""
        for specs in product(SPECS, repeat=self.n_jobs):
            yield Batch(tuple(Job(spec) for spec in specs), mishaps=self.mishaps)

    def _job(self, s: Batch, j: int, **fields: Any) -> Batch:
        return s._replace(jobs=replaced(s.jobs, j, s.jobs[j]._replace(**fields)))

    def _mine(self, s: Batch) -> list[int]:
        return [j for j, job in enumerate(s.jobs) if job.owed and j not in s.without]

    @fair
    def write(self, s: Batch) -> Steps[Batch]:
        """The recorder's transaction writes the outcomes, each guarded: what is not ours any more is stale."""
        batch = self._mine(s)
        if s.written or not batch:
            return
        written = [j for j in batch if self.guard("a stale end has no follow-up", s.jobs[j].row == "running")]
        after = s
        for j in set(batch) - set(written):
            after = self._job(after, j, owed=False)
        yield tuple(written), after._replace(written=tuple(written))

    @fair
    def plan(self, s: Batch) -> Steps[Batch]:
        """The dispatcher evaluates the specs; the follow-up jobs are inserted on the same transaction."""
        if not s.written or s.inserted:
            return
        broken = tuple(j for j in s.written if s.jobs[j].spec == "broken")
        if broken and self.keeps("a batch is redone without the job whose spec failed"):
            yield ("rolled back", *broken), s._replace(written=(), without=tuple(sorted({*s.without, *broken})))
        elif not broken:
            yield s.written, s._replace(inserted=s.written)

    @fair
    def commit(self, s: Batch) -> Steps[Batch]:
        """Both are committed. Were they two transactions, the process could die between them."""
        if s.inserted:
            yield s.inserted, self._committed(s)
        elif s.written and not self.keeps("outcome and follow-up are one transaction"):
            after = s._replace(written=())
            for j in s.written:
                after = self._job(after, j, row="ended", owed=False)
            yield ("the outcome alone", *s.written), after

    def _committed(self, s: Batch) -> Batch:
        after = s._replace(written=(), inserted=())
        for j in s.inserted:
            after = self._job(after, j, row="ended", follows=min(2, s.jobs[j].follows + 1), owed=False)
        return after

    @action
    def break_connection(self, s: Batch) -> Steps[Batch]:
        """The connection breaks before the commit, or after it and before its answer; the recorder does it again."""
        if s.mishaps and s.written:
            yield ("before the commit",), s._replace(written=(), inserted=(), mishaps=s.mishaps - 1)
        if s.mishaps and s.inserted:
            after = self._committed(s)._replace(mishaps=s.mishaps - 1)
            for j in s.inserted:
                after = self._job(after, j, owed=self.keeps("an unheard commit is looked at again"))
            yield ("after the commit",), after
            if not self.keeps("an unheard commit is looked at again"):
                lost = s._replace(written=(), inserted=(), mishaps=s.mishaps - 1)
                for j in s.inserted:
                    lost = self._job(lost, j, owed=False)
                yield ("before the commit, taken for done",), lost

    @fair
    def record_without(self, s: Batch) -> Steps[Batch]:
        """A job whose spec failed runs again.

        After enough failures its outcome is committed and the failure recorded.
        """
        for j in s.without:
            job, rest = s.jobs[j], s._replace(without=tuple(k for k in s.without if k != j))
            if not job.owed:
                continue
            if job.row != "running":
                yield (j, "stale"), self._job(rest, j, owed=False)
            elif job.tries < self.allowed or not self.keeps("after enough failures the outcome stands without"):
                yield (j, "runs again"), self._job(rest, j, tries=min(job.tries + 1, self.allowed))
            else:
                failed = int(self.keeps("a missing follow-up is recorded"))
                yield (j, "stands"), self._job(rest, j, row="ended", failed=failed, owed=False)

    @action
    def take_away(self, s: Batch) -> Steps[Batch]:
        """Somebody cancels the job: our end of it is stale."""
        for j, job in enumerate(s.jobs):
            if job.row == "running" and j not in s.written and s.mishaps:
                yield (j,), self._job(s, j, row="taken")._replace(mishaps=s.mishaps - 1)

    @fair
    def rescue(self, s: Batch) -> Steps[Batch]:
        """The worker is dead: maintenance takes the job back, whatever its spec would say, and leaves a row for it."""
        for j, job in enumerate(s.jobs):
            if job.row == "dead" and (job.spec == "fine" or self.keeps("a rescue asks no spec")):
                outbox = "waiting" if self.keeps("a rescue writes its outbox row") else "gone"
                yield (j,), self._job(s, j, row="rescued", outbox=outbox)

    @action
    def die(self, s: Batch) -> Steps[Batch]:
        """The worker dies with the whole batch."""
        if s.mishaps and any(job.row == "running" for job in s.jobs):
            jobs = tuple(job._replace(row="dead" if job.row == "running" else job.row, owed=False) for job in s.jobs)
            yield (), s._replace(jobs=jobs, written=(), inserted=(), without=(), mishaps=s.mishaps - 1)

    @fair
    def deliver(self, s: Batch) -> Steps[Batch]:
        """The dispatcher drains the outbox.

        It deletes a row and inserts its job, or notes why it cannot and goes on.
        """
        waiting = [j for j, job in enumerate(s.jobs) if job.outbox == "waiting"]
        if not self.keeps("an outbox row that failed lets others pass"):
            waiting = waiting[:1]
        for j in waiting:
            job = s.jobs[j]
            if job.spec == "fine":
                outbox = "gone" if self.keeps("who deletes the outbox row inserts the job") else "waiting"
                yield (j,), self._job(s, j, outbox=outbox, follows=min(2, job.follows + 1))
            elif self.keeps("an outbox row that failed lets others pass"):
                yield (j, "failed"), self._job(s, j, outbox="tried", failed=1)

    @invariant
    def an_outcome_has_its_follow_up(self, s: Batch) -> bool:
        """An outcome that was committed has its follow-up job, or a record of why not."""
        return all(job.follows + job.failed == 1 for job in s.jobs if job.row == "ended")

    @invariant
    def a_follow_up_has_its_outcome(self, s: Batch) -> bool:
        """No follow-up job exists for an outcome that was not committed."""
        return all(job.follows == 0 for job in s.jobs if job.row in ("running", "dead", "taken"))

    @invariant
    def one_follow_up_each(self, s: Batch) -> bool:
        """No outcome has two follow-up jobs of one spec."""
        return all(job.follows <= 1 for job in s.jobs)

    @step_rule
    def a_rescue_leaves_its_row(self, s: Batch, name: str, args: Args, after: Batch) -> bool:
        """A rescue commits with the row from which its follow-up is made."""
        return name != "rescue" or after.jobs[args[0]].outbox == "waiting"

    @leaves
    def every_end_is_recorded(self, s: Batch) -> bool:
        """No job stays running because of its spec or its neighbour's, and no rescue waits for one."""
        return any(job.row in ("running", "dead") for job in s.jobs)

    @leaves
    def every_rescue_is_followed(self, s: Batch) -> bool:
        """A rescue's follow-up is enqueued sooner or later, when its own spec lets it be."""
        return any(job.spec == "fine" and job.outbox == "waiting" for job in s.jobs)
