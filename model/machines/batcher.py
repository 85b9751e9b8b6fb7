"""Completions go through a mailbox and a batch.

Recorded once, never forgotten, also when the answer is lost or the worker drains.
"""

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


class Entry(NamedTuple):
    """A job, and the handler that runs it in this worker, if one does."""

    owner: str = ""
    """Who runs it by the database: nobody, `here`, `elsewhere`."""
    lease: int = 0
    completions: int = 0
    handler: str = "idle"
    """Of this worker: idle, working, telling (ended, its permit is free, its end is not in the mailbox yet)."""
    held: int = 0
    """The run_lease that the handler was started with."""


class Batcher(NamedTuple):
    """Jobs, ends that were told but not recorded (job, run_lease), the batch in hand, how far a drain has come."""

    jobs: tuple[Entry, ...]
    mailbox: tuple[tuple[int, int], ...] = ()
    batch: tuple[tuple[int, int], ...] = ()
    phase: str = "running"
    recorder: str = "running"


class CompletionBatcher(Machine[Batcher]):
    """One worker, its completer, and maintenance that may take a job away at any moment."""

    facts = "X4 X5 X6, J10"
    code = "actors/crew.py, actors/recorder.py, actors/worker.py; store/complete.py"
    sizes: ClassVar[Sizes] = {
        "dev": {"n_jobs": 2, "leases": 2, "room": 1},
        "ci": {"n_jobs": 2, "leases": 4, "room": 1},
        "nightly": {"n_jobs": 3, "leases": 3, "room": 2},
    }
    walk_sizes: ClassVar[Bounds] = {"n_jobs": 5, "leases": 8, "room": 2}
    twins: ClassVar[Twins] = {
        "a completion names its run_lease": ("an_attempt_completes_once", "only_its_own_attempt_completes"),
        "a completion ends the lease": ("an_attempt_completes_once",),
        "a batch that was not surely written is written again": ("what_has_ended_is_recorded",),
        "the mailbox closes when the tasks have ended": ("nobody_tells_a_closed_mailbox",),
        "the recorder ends when its mailbox is empty": ("a_drained_worker_owes_nothing",),
        "the worker stops after its recorder": ("a_drained_worker_owes_nothing",),
        "a draining worker claims nothing": ("who_drains_claims_nothing",),
    }
    n_jobs: int
    leases: int
    room: int

    def initial(self) -> Iterator[Batcher]:
        """Every job waits to be claimed."""
        yield Batcher((Entry(),) * self.n_jobs)

    def _with(self, s: Batcher, j: int, **fields: Any) -> Batcher:
        return s._replace(jobs=replaced(s.jobs, j, s.jobs[j]._replace(**fields)))

    @action
    def claim(self, s: Batcher) -> Steps[Batcher]:
        """The worker takes a job that waits and starts its handler."""
        for j, job in enumerate(s.jobs):
            waits = not job.owner and job.completions == 0 and job.handler == "idle" and job.lease < self.leases
            if waits and self.guard("a draining worker claims nothing", s.phase == "running"):
                lease = job.lease + 1
                yield (j,), self._with(s, j, owner="here", lease=lease, handler="working", held=lease)

    @action
    def handler_returns(self, s: Batcher) -> Steps[Batcher]:
        """A handler is done: its permit is free at once, what it owes is told next."""
        for j, job in enumerate(s.jobs):
            if job.handler == "working":
                yield (j,), self._with(s, j, handler="telling")

    @fair
    def tell(self, s: Batcher) -> Steps[Batcher]:
        """The end goes into the mailbox, when there is room."""
        for j, job in enumerate(s.jobs):
            if job.handler == "telling" and len(s.mailbox) < self.room:
                yield (j,), self._with(s, j, handler="idle", held=0)._replace(mailbox=(*s.mailbox, (j, job.held)))

    @fair
    def take_batch(self, s: Batcher) -> Steps[Batcher]:
        """The recorder takes what is in the mailbox."""
        if s.mailbox and not s.batch and s.recorder == "running":
            yield (), s._replace(batch=s.mailbox, mailbox=())

    def _written(self, s: Batcher) -> Batcher:
        for j, lease in s.batch:
            job = s.jobs[j]
            if job.owner and self.guard("a completion names its run_lease", job.lease == lease):
                owner = "" if self.keeps("a completion ends the lease") else job.owner
                s = self._with(s, j, owner=owner, completions=min(job.completions + 1, 2))
        return s

    @fair
    def write(self, s: Batcher) -> Steps[Batcher]:
        """The batch is committed and the recorder hears of it."""
        if s.batch:
            yield (), self._written(s)._replace(batch=())

    @action
    def write_unheard(self, s: Batcher) -> Steps[Batcher]:
        """The connection breaks: the batch was committed or not, and the recorder does not know which."""
        if s.batch:
            left = s.batch if self.keeps("a batch that was not surely written is written again") else ()
            yield ("committed",), self._written(s)._replace(batch=left)
            yield ("not committed",), s._replace(batch=left)

    @action
    def rescue(self, s: Batcher) -> Steps[Batcher]:
        """Somebody takes a running job away; it can be claimed again, under the next run_lease."""
        for j, job in enumerate(s.jobs):
            if job.owner:
                yield (j,), self._with(s, j, owner="")

    @action
    def claim_elsewhere(self, s: Batcher) -> Steps[Batcher]:
        """Another worker runs a job that this one lost; what this one still says is about an older run_lease."""
        for j, job in enumerate(s.jobs):
            if not job.owner and job.completions == 0 and 0 < job.lease < self.leases:
                yield (j,), self._with(s, j, owner="elsewhere", lease=job.lease + 1)

    @action
    def drain(self, s: Batcher) -> Steps[Batcher]:
        """The worker is asked to drain."""
        if s.phase == "running":
            yield (), s._replace(phase="draining")

    @fair
    def close_mailbox(self, s: Batcher) -> Steps[Batcher]:
        """No more will be told: every attempt's task has ended. That a permit is free does not say so."""
        ended = all(job.handler == "idle" for job in s.jobs)
        permits_free = all(job.handler != "working" for job in s.jobs)
        if s.phase != "draining" or not permits_free:
            return
        if self.guard("the mailbox closes when the tasks have ended", ended):
            yield (), s._replace(phase="closed")

    @fair
    def recorder_ends(self, s: Batcher) -> Steps[Batcher]:
        """The recorder ends when nothing is left and nobody can tell more."""
        empty = not s.mailbox and not s.batch
        if s.phase != "closed" or s.recorder != "running":
            return
        if self.guard("the recorder ends when its mailbox is empty", empty):
            yield (), s._replace(recorder="ended")

    @fair
    def stop(self, s: Batcher) -> Steps[Batcher]:
        """The worker has stopped."""
        if s.phase == "closed" and self.guard("the worker stops after its recorder", s.recorder == "ended"):
            yield (), s._replace(phase="stopped")

    @invariant
    def an_attempt_completes_once(self, s: Batcher) -> bool:
        """A job is completed at most once."""
        return all(job.completions <= 1 for job in s.jobs)

    @invariant
    def what_is_owed_is_known(self, s: Batcher) -> bool:
        """Nothing is owed for a run_lease that the job has not reached."""
        return all(1 <= lease <= s.jobs[j].lease for j, lease in (*s.mailbox, *s.batch))

    @invariant
    def a_drained_worker_owes_nothing(self, s: Batcher) -> bool:
        """A stopped worker has told and recorded everything, and its handlers have ended."""
        told = not s.mailbox and not s.batch and all(job.handler == "idle" for job in s.jobs)
        return s.phase != "stopped" or (told and s.recorder == "ended")

    @invariant
    def nobody_tells_a_closed_mailbox(self, s: Batcher) -> bool:
        """After the mailbox closed there is no task that would tell something."""
        return s.phase in ("running", "draining") or all(job.handler == "idle" for job in s.jobs)

    @step_rule
    def only_its_own_attempt_completes(self, s: Batcher, name: str, args: Args, after: Batcher) -> bool:
        """A completion counts for the run_lease that it names, and for no later one."""
        if not name.startswith("write"):
            return True
        completed = {j for j, job in enumerate(after.jobs) if job.completions > s.jobs[j].completions}
        return all((j, s.jobs[j].lease) in s.batch for j in completed)

    @step_rule
    def who_drains_claims_nothing(self, s: Batcher, name: str, args: Args, after: Batcher) -> bool:
        """A worker that drains claims nothing."""
        return name != "claim" or s.phase == "running"

    @leaves
    def what_has_ended_is_recorded(self, s: Batcher) -> bool:
        """A job of this worker whose handler has returned does not stay running for ever."""
        return any(job.owner == "here" and (job.handler, job.held) != ("working", job.lease) for job in s.jobs)
