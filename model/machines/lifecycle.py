"""A job's life: who may move it from which state to which, and what a late or dead worker can still do to it."""

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


class Job(NamedTuple):
    """A job as it is stored."""

    state: str = "available"
    lease: int = 0
    attempt: int = 0
    owner: int | None = None
    rescues: int = 0
    poison: bool = False
    """Its handler kills the process it runs in."""


class Life(NamedTuple):
    """Jobs, the tasks that processes run (job, run_lease, instance), which instances are dead, each process's phase.

    Process p starts as instance p; `instance` says which incarnation it is now, since one that was declared dead comes
    back as another.
    """

    jobs: tuple[Job, ...]
    tasks: frozenset[tuple[int, int, int]] = frozenset()
    dead: frozenset[int] = frozenset()
    phase: tuple[str, ...] = ()
    instance: tuple[int, ...] = ()
    failed_over: bool = False


ENDS = ("completed", "retryable", "scheduled", "available", "waiting_external")
"""What a handler's end can make of its job: done, failed, snoozed, given back, parked.

A failure without budget is final.
"""


class Lifecycle(Machine[Life]):
    """Jobs, processes and their shutdown; frozen processes that come back; a failover that loses the last claim."""

    facts = "X1 X2 X3, J9, J13, trap T4; ADR-013"
    code = "store/migrations/0004, 0005, 0006, 0008; core/outcome.py"
    sizes: ClassVar[Sizes] = {
        "dev": {"n_jobs": 1, "n_processes": 2, "mortal": 1, "deaths": 1, "leases": 2, "budget": 1, "bound": 1},
        "ci": {"n_jobs": 1, "n_processes": 2, "mortal": 2, "deaths": 1, "leases": 3, "budget": 2, "bound": 1},
        "nightly": {"n_jobs": 2, "n_processes": 2, "mortal": 1, "deaths": 2, "leases": 2, "budget": 2, "bound": 1},
        "rescues have a bound": {"deaths": 2},
        "the dead are rescued": {"leases": 1},
        "a claimer gives back what it did not hear of": {"leases": 1},
    }
    walk_sizes: ClassVar[Bounds] = {
        "n_jobs": 4,
        "n_processes": 3,
        "mortal": 3,
        "deaths": 4,
        "leases": 9,
        "budget": 3,
        "bound": 2,
    }
    twins: ClassVar[Twins] = {
        "the end of an attempt names its run_lease": ("only_the_owner_ends_an_attempt",),
        "the end of an attempt names its instance": ("only_the_owner_ends_an_attempt",),
        "only available jobs are claimed": ("run_lease_names_one_attempt", "a_running_job_has_one_owner"),
        "a claim moves run_lease on": ("run_lease_names_one_attempt",),
        "an operator's retry keeps run_lease": ("run_lease_only_grows",),
        "a failure without budget is final": ("attempts_stay_within_the_budget",),
        "rescues have a bound": ("rescues_stay_within_their_bound",),
        "only what a dead instance runs is rescued": ("a_living_attempt_is_left_alone",),
        "a stopping process claims nothing": ("who_stops_claims_nothing",),
        "a process stops when none of its tasks is left": ("who_has_stopped_runs_nothing",),
        "a stopping process gives back what it holds": ("who_has_stopped_holds_nothing",),
        "a claimer gives back what it did not hear of": ("a_claim_unheard_of_is_undone",),
        "the dead are rescued": ("a_dead_instance_keeps_no_job", "a_claim_unheard_of_is_undone"),
    }
    n_jobs: int
    n_processes: int
    mortal: int
    deaths: int
    leases: int
    budget: int
    bound: int

    def initial(self) -> Iterator[Life]:
        """Everything fresh; the first job may be poison."""
        for poison in (False, True):
            jobs = (Job(poison=poison), *(Job() for _ in range(self.n_jobs - 1)))
            yield Life(jobs, phase=("running",) * self.n_processes, instance=tuple(range(self.n_processes)))

    def _moved(self, s: Life, j: int, state: str, **fields: Any) -> Life:
        owner = s.jobs[j].owner if state == "running" else None
        job = s.jobs[j]._replace(state=state, **{"owner": owner, **fields})
        return s._replace(jobs=replaced(s.jobs, j, job))

    @action
    def claim(self, s: Life) -> Steps[Life]:
        """A process takes a job and starts a task for it."""
        for j, job in enumerate(s.jobs):
            if job.lease >= self.leases or job.state in ("completed", "failed", "cancelled"):
                continue
            for p, me in enumerate(s.instance):
                if (
                    self.guard("only available jobs are claimed", job.state == "available")
                    and self.guard("a stopping process claims nothing", s.phase[p] == "running")
                    and me not in s.dead
                ):
                    lease = job.lease + self.keeps("a claim moves run_lease on")
                    after = self._moved(s, j, "running", owner=me, lease=lease, attempt=job.attempt + 1)
                    yield (j, p), after._replace(tasks=s.tasks | {(j, lease, me)})

    @action
    def claim_unheard(self, s: Life) -> Steps[Life]:
        """A claim commits, but its answer never arrives: the job is leased and nobody runs it."""
        for (j, p), after in self.claim(s):
            yield (j, p), after._replace(tasks=s.tasks)

    @fair
    def give_back(self, s: Life) -> Steps[Life]:
        """A claimer that did not hear of a claim gives back what it holds without knowing it.

        So does a stopping process.
        """
        for j, job in enumerate(s.jobs):
            unheard = job.state == "running" and (j, job.lease, job.owner) not in s.tasks and job.owner in s.instance
            if unheard and self.keeps("a claimer gives back what it did not hear of"):
                yield (j,), self._moved(s, j, "available", attempt=job.attempt - 1)

    @action
    def end(self, s: Life) -> Steps[Life]:
        """A handler ends and its end is recorded, or found stale and dropped; the task is gone either way."""
        for task in s.tasks:
            j, lease, me = task
            job, after = s.jobs[j], s._replace(tasks=s.tasks - {task})
            mine = (
                job.state == "running"
                and self.guard("the end of an attempt names its run_lease", job.lease == lease)
                and self.guard("the end of an attempt names its instance", job.owner == me)
            )
            if not mine:
                yield (j, lease, me, "stale"), after
            elif not job.poison:
                for state in ENDS:
                    attempt = job.attempt - (state in ("scheduled", "available"))
                    if state == "retryable" and not self._has_budget(job):
                        state = "failed"
                    yield (j, lease, me, state), self._moved(after, j, state, attempt=attempt)

    def _has_budget(self, job: Job) -> bool:
        return not self.guard("a failure without budget is final", job.attempt >= self.budget) or (
            self.without == "a failure without budget is final"
        )

    @action
    def die(self, s: Life) -> Steps[Life]:
        """A process is declared dead: it was killed, frozen, or its job killed it.

        What it runs may still come to an end.
        """
        for p, me in enumerate(s.instance):
            if p < self.mortal and me not in s.dead and me < self.deaths * self.n_processes:
                yield (p,), s._replace(dead=s.dead | {me})

    @action
    def come_back(self, s: Life) -> Steps[Life]:
        """A process that was declared dead ends its tasks and registers as a new instance."""
        for p, me in enumerate(s.instance):
            if me in s.dead and s.phase[p] == "running" and not any(task[2] == me for task in s.tasks):
                yield (p,), s._replace(instance=replaced(s.instance, p, me + self.n_processes))

    @fair
    def rescue(self, s: Life) -> Steps[Life]:
        """Maintenance takes back what a dead instance ran; the attempt is not counted, the rescue is."""
        for j, job in enumerate(s.jobs):
            if job.state != "running":
                continue
            dead = job.owner in s.dead and self.keeps("the dead are rescued")
            if dead or (self.without == "only what a dead instance runs is rescued"):
                self.asked.add("only what a dead instance runs is rescued")
                if self.guard("rescues have a bound", job.rescues < self.bound) and job.rescues <= self.bound:
                    yield (j,), self._moved(s, j, "retryable", attempt=job.attempt - 1, rescues=job.rescues + 1)
                else:
                    yield (j,), self._moved(s, j, "failed")

    @fair
    def promote(self, s: Life) -> Steps[Life]:
        """A deferred job that is due becomes available."""
        for j, job in enumerate(s.jobs):
            if job.state in ("scheduled", "retryable"):
                yield (j,), self._moved(s, j, "available")

    @action
    def cancel(self, s: Life) -> Steps[Life]:
        """An operator cancels a job in any state that is not an end."""
        for j, job in enumerate(s.jobs):
            if job.state not in ("completed", "failed", "cancelled"):
                yield (j,), self._moved(s, j, "cancelled")

    @action
    def retry(self, s: Life) -> Steps[Life]:
        """An operator runs a job again that failed, was cancelled, or waits; dead letters are failed jobs here."""
        for j, job in enumerate(s.jobs):
            if job.state in ("failed", "cancelled", "waiting_external", "scheduled", "retryable"):
                lease = job.lease if self.keeps("an operator's retry keeps run_lease") else 0
                yield (j,), self._moved(s, j, "available", attempt=0, rescues=0, lease=lease)

    @action
    def fail_over(self, s: Life) -> Steps[Life]:
        """The database is replaced by a copy that lacks the last claim; workers still run what they claimed."""
        for j, job in enumerate(s.jobs):
            if job.state == "running" and not s.failed_over:
                after = self._moved(s, j, "available", lease=job.lease - 1, attempt=job.attempt - 1)
                yield (j,), after._replace(failed_over=True)

    @action
    def stop_claiming(self, s: Life) -> Steps[Life]:
        """A process begins to stop."""
        for p, phase in enumerate(s.phase):
            if phase == "running":
                yield (p,), s._replace(phase=replaced(s.phase, p, "draining"))

    @action
    def stop(self, s: Life) -> Steps[Life]:
        """A process has stopped: the last thing it does is to give back what it still holds."""
        for p, me in enumerate(s.instance):
            idle = not any(task[2] == me for task in s.tasks)
            if s.phase[p] == "draining" and self.guard("a process stops when none of its tasks is left", idle):
                after = s._replace(phase=replaced(s.phase, p, "stopped"), dead=s.dead | {me})
                if self.keeps("a stopping process gives back what it holds"):
                    for j, job in enumerate(s.jobs):
                        if job.owner == me:
                            after = self._moved(after, j, "available", attempt=job.attempt - 1)
                yield (p,), after

    @invariant
    def a_running_job_has_one_owner(self, s: Life) -> bool:
        """A running job has an owner, and no other job has one."""
        return all((job.state == "running") == (job.owner is not None) for job in s.jobs)

    @invariant
    def no_task_is_ahead_of_its_job(self, s: Life) -> bool:
        """A task's run_lease is one that its job has reached, unless a failover took that back."""
        return s.failed_over or all(lease <= s.jobs[j].lease for j, lease, _ in s.tasks)

    @invariant
    def attempts_stay_within_the_budget(self, s: Life) -> bool:
        """A job never runs an attempt beyond its budget."""
        return all(0 <= job.attempt <= self.budget for job in s.jobs if job.state == "running")

    @invariant
    def rescues_stay_within_their_bound(self, s: Life) -> bool:
        """A job that keeps killing its workers fails visibly in the end."""
        return all(job.rescues <= self.bound for job in s.jobs)

    @invariant
    def who_has_stopped_runs_nothing(self, s: Life) -> bool:
        """A stopped process has no task left."""
        return not any(s.phase[p] == "stopped" and t[2] == me for p, me in enumerate(s.instance) for t in s.tasks)

    @invariant
    def who_has_stopped_holds_nothing(self, s: Life) -> bool:
        """A stopped process owns no running job."""
        return not any(s.phase[p] == "stopped" and job.owner == me for p, me in enumerate(s.instance) for job in s.jobs)

    @step_rule
    def only_the_owner_ends_an_attempt(self, s: Life, name: str, args: Args, after: Life) -> bool:
        """The end of an attempt changes its job only if that very attempt is the one that runs."""
        if name != "end" or s.jobs == after.jobs:
            return True
        job = s.jobs[args[0]]
        return (job.lease, job.owner) == (args[1], args[2])

    @step_rule
    def who_stops_claims_nothing(self, s: Life, name: str, args: Args, after: Life) -> bool:
        """A process that has begun to stop claims nothing more."""
        return not name.startswith("claim") or s.phase[args[1]] == "running"

    @step_rule
    def run_lease_only_grows(self, s: Life, name: str, args: Args, after: Life) -> bool:
        """run_lease never goes back in a job's whole life, operators' retries included; only a failover loses one."""
        return name == "fail_over" or all(a.lease >= b.lease for a, b in zip(after.jobs, s.jobs, strict=True))

    @step_rule
    def run_lease_names_one_attempt(self, s: Life, name: str, args: Args, after: Life) -> bool:
        """A claim takes an available job and gives it a run_lease that no earlier claim of this database had."""
        if not name.startswith("claim"):
            return True
        return s.jobs[args[0]].state == "available" and after.jobs[args[0]].lease == s.jobs[args[0]].lease + 1

    @step_rule
    def a_living_attempt_is_left_alone(self, s: Life, name: str, args: Args, after: Life) -> bool:
        """Nothing is rescued from an instance that is not dead."""
        return name != "rescue" or s.jobs[args[0]].owner in s.dead

    @leaves
    def a_dead_instance_keeps_no_job(self, s: Life) -> bool:
        """A job whose instance is dead does not stay running for ever."""
        return any(job.state == "running" and job.owner in s.dead for job in s.jobs)

    @leaves
    def a_claim_unheard_of_is_undone(self, s: Life) -> bool:
        """A job that a living process holds without knowing it does not stay running for ever."""
        return any(job.state == "running" and (j, job.lease, job.owner) not in s.tasks for j, job in enumerate(s.jobs))
