"""The verbs of the queue plane in transactions that begin, wait, commit, abort or die in any order.

The refinement runs the same rules against the real store: what a step does here, it must do there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from model.machine import Args, Bounds, Machine, Sizes, Steps, Twins, action, invariant, replaced, step_rule

LIVE = ("available", "running", "scheduled", "retryable")
VERDICTS = ("retryable", "give_back", "failed", "scheduled", "interrupted")
"""Ends of an attempt that settle records.

Retried at once, never started, exhausted, snoozed, stopped with its worker.
"""


class Job(NamedTuple):
    """A job as one transaction sees it.

    `pos` is its place in its queue, or in the order of what is due; `born` numbers ids.
    """

    state: str = ""
    pos: int = 0
    lease: int = 0
    attempt: int = 0
    owner: int | None = None
    rescues: int = 0
    born: int = 0


class Session(NamedTuple):
    """One connection: what its open transaction has changed (and so locked), the call that waits for another's lock."""

    changed: tuple[tuple[int, Job], ...] = ()
    waits: tuple[str, int, Args] | None = None
    open: bool = False

    def own(self, j: int) -> Job | None:
        """What this transaction made of a job, if it touched it."""
        for number, job in self.changed:
            if number == j:
                return job
        return None


class Plane(NamedTuple):
    """Committed jobs, sessions, dead instances, every attempt that anybody was ever told of, and the next position."""

    jobs: tuple[Job, ...]
    sessions: tuple[Session, ...]
    dead: frozenset[int] = frozenset()
    told: frozenset[tuple[int, int, int]] = frozenset()
    next: int = 1


class Queue(Machine[Plane]):
    """Producers, claimers, workers, maintenance and operators on a few jobs.

    Row locks and visibility as Postgres has them.
    """

    facts = "P1 P2 P3, X11 X12 X15, traps T2 T4; ADR-013"
    code = "store/migrations/0003 to 0008"
    sizes: ClassVar[Sizes] = {
        "dev": {"n_jobs": 1, "n_sessions": 2, "n_instances": 1, "leases": 1, "bound": 1, "verdicts": 2},
        "ci": {"n_jobs": 1, "n_sessions": 2, "n_instances": 1, "leases": 2, "bound": 1, "verdicts": 2},
        "nightly": {"n_jobs": 2, "n_sessions": 2, "n_instances": 2, "leases": 1, "bound": 1, "verdicts": 2},
        "a claim takes the head": {"n_jobs": 2},
        "the end of an attempt names its run_lease": {"leases": 2},
        "the end of an attempt names its instance": {"leases": 2, "n_instances": 2},
    }
    walk_sizes: ClassVar[Bounds] = {
        "n_jobs": 4,
        "n_sessions": 3,
        "n_instances": 3,
        "leases": 6,
        "bound": 1,
        "verdicts": 5,
    }
    twins: ClassVar[Twins] = {
        "a claim skips what others have locked": ("one_transaction_holds_a_job",),
        "a claim sees only what is committed": ("an_availability_is_claimed_once",),
        "a claim takes only available jobs": ("an_availability_is_claimed_once",),
        "a claim takes the head": ("claims_follow_the_order",),
        "the dead claim nothing": ("nobody_claims_for_the_dead",),
        "an end waits for who holds the job": ("one_transaction_holds_a_job",),
        "the end of an attempt names its run_lease": ("only_the_owner_ends_an_attempt",),
        "the end of an attempt names its instance": ("only_the_owner_ends_an_attempt",),
        "maintenance skips what others have locked": ("one_transaction_holds_a_job",),
        "only the dead lose their jobs": ("a_living_attempt_is_left_alone",),
        "retries keep run_lease": ("run_lease_only_grows",),
    }
    n_jobs: int
    n_sessions: int
    n_instances: int
    leases: int
    bound: int
    verdicts: int

    def initial(self) -> Iterator[Plane]:
        """No jobs yet."""
        yield Plane((Job(),) * self.n_jobs, (Session(),) * self.n_sessions)

    def seen(self, s: Plane, t: int, j: int) -> Job:
        """A job as session t sees it: committed, or as it changed it itself."""
        return s.sessions[t].own(j) or s.jobs[j]

    def holder(self, s: Plane, t: int, j: int) -> int | None:
        """Which other session has locked a job."""
        for u, session in enumerate(s.sessions):
            if u != t and session.changed and session.own(j) is not None:
                return u
        return None

    def _wrote(self, s: Plane, t: int, changes: dict[int, Job], used: int = 0) -> Plane:
        session = s.sessions[t]
        changed = tuple(sorted({**dict(session.changed), **changes}.items(), key=lambda change: change[0]))
        sessions = replaced(s.sessions, t, session._replace(changed=changed, open=True))
        return tidy(s._replace(sessions=sessions, next=s.next + used))

    def _ready(self, s: Plane) -> list[int]:
        return [t for t in range(self.n_sessions) if s.sessions[t].waits is None]

    @action
    def insert(self, s: Plane) -> Steps[Plane]:
        """A producer enqueues a job for now, or for later (due at once, so that promotion has something to do)."""
        for t in self._ready(s):
            for j, job in enumerate(s.jobs):
                if not job.state and all(session.own(j) is None for session in s.sessions):
                    for state in ("available", "scheduled"):
                        yield (t, j, state), self._wrote(s, t, {j: Job(state, s.next, born=s.next)}, 1)

    @action
    def claim(self, s: Plane) -> Steps[Plane]:
        """A claimer takes the first job that is free, or with a wrong hint the first after that."""
        for t in self._ready(s):
            free = sorted((self.seen(s, t, j).pos, j) for j in range(self.n_jobs) if self._claimable(s, t, j))
            if not self.keeps("a claim takes the head"):
                free.reverse()
            for i in range(self.n_instances):
                if not self.guard("the dead claim nothing", i not in s.dead):
                    continue
                for skipped, (_, j) in enumerate(free[:2]):
                    job = self.seen(s, t, j)
                    if job.lease < self.leases:
                        now = job._replace(state="running", lease=job.lease + 1, attempt=job.attempt + 1, owner=i)
                        after = self._wrote(s, t, {j: now})
                        yield (t, i, j, skipped), after._replace(told=s.told | {(j, now.lease, i)})

    def _claimable(self, s: Plane, t: int, j: int) -> bool:
        job, holder = self.seen(s, t, j), self.holder(s, t, j)
        if holder is not None and not self.keeps("a claim sees only what is committed"):
            job = s.sessions[holder].own(j) or job
        skips = holder is None or not self.keeps("a claim skips what others have locked")
        skips = skips or self.without == "a claim sees only what is committed"
        return skips and bool(job.state) and self.guard("a claim takes only available jobs", job.state == "available")

    @action
    def complete(self, s: Plane) -> Steps[Plane]:
        """A worker completes an attempt that it was told of; the lease may be somebody else's by now."""
        for t in self._ready(s):
            for j, lease, i in s.told:
                yield (t, j, lease, i), self._call(s, t, "complete", j, (lease, i))

    @action
    def settle(self, s: Plane) -> Steps[Plane]:
        """A worker ends an attempt in any other way."""
        for t in self._ready(s):
            for j, lease, i in s.told:
                for verdict in VERDICTS[: self.verdicts]:
                    yield (t, j, lease, i, verdict), self._call(s, t, "settle", j, (lease, i, verdict))

    @action
    def cancel(self, s: Plane) -> Steps[Plane]:
        """An operator cancels a job, wherever it waits or runs."""
        for t in self._ready(s):
            for j in range(self.n_jobs):
                yield (t, j), self._call(s, t, "cancel", j, ())

    @action
    def retry(self, s: Plane) -> Steps[Plane]:
        """An operator runs a job again that has failed, was cancelled, or waits."""
        for t in self._ready(s):
            for j in range(self.n_jobs):
                if self.seen(s, t, j).state not in ("running", ""):
                    yield (t, j), self._call(s, t, "retry", j, ())

    def _call(self, s: Plane, t: int, verb: str, j: int, args: Args) -> Plane:
        """A verb that touches one job: it waits for whoever holds a job that it would touch."""
        holder = self.holder(s, t, j)
        result = self.result(s, t, verb, j, args)
        if result is None:
            return s
        if holder is None or not self.keeps("an end waits for who holds the job"):
            return self._wrote(s, t, {j: result}, 1)
        waited_for = any(session.waits and session.waits[1] == j for session in s.sessions)
        if waited_for or s.sessions[holder].waits is not None:
            return s
        waiting = s.sessions[t]._replace(waits=(verb, j, args), open=True)
        return s._replace(sessions=replaced(s.sessions, t, waiting))

    def result(self, s: Plane, t: int, verb: str, j: int, args: Args) -> Job | None:
        """What a verb makes of the job that a session sees; None when it finds nothing to do."""
        job = self.seen(s, t, j)
        if verb in ("complete", "settle"):
            mine = (
                job.state == "running"
                and self.guard("the end of an attempt names its run_lease", job.lease == args[0])
                and self.guard("the end of an attempt names its instance", job.owner == args[1])
            )
            return self._ended(job, "completed" if verb == "complete" else args[2], s.next) if mine else None
        if verb == "cancel":
            return job._replace(state="cancelled", owner=None) if job.state in LIVE else None
        if job.state in ("", "completed"):
            return None
        if job.state == "running":
            return job  # found, locked and left alone
        lease = job.lease if self.keeps("retries keep run_lease") else 0
        return job._replace(state="available", pos=s.next, lease=lease, attempt=0, rescues=0)

    def _ended(self, job: Job, verdict: str, now: int) -> Job:
        job = job._replace(owner=None)
        match verdict:
            case "give_back":
                return job._replace(state="available", attempt=job.attempt - 1)
            case "interrupted":
                return job._replace(state="available", attempt=job.attempt - 1, pos=now)
            case "scheduled":
                return job._replace(state="scheduled", attempt=job.attempt - 1, pos=now)
        return job._replace(state=verdict, pos=now if verdict == "retryable" else job.pos)

    def _swept(self, s: Plane, t: int, states: tuple[str, ...]) -> list[int]:
        jobs = [j for j in range(self.n_jobs) if self.seen(s, t, j).state in states]
        free = [
            j for j in jobs if self.guard("maintenance skips what others have locked", self.holder(s, t, j) is None)
        ]
        return sorted(free, key=lambda j: (self.seen(s, t, j).pos, self.seen(s, t, j).born))

    @action
    def promote(self, s: Plane) -> Steps[Plane]:
        """What is due becomes available, in the order in which it is due."""
        for t in self._ready(s):
            due = self._swept(s, t, ("scheduled", "retryable"))
            moved = {j: self.seen(s, t, j)._replace(state="available", pos=s.next + n) for n, j in enumerate(due)}
            if moved:
                yield (t,), self._wrote(s, t, moved, len(moved))

    @action
    def rescue(self, s: Plane) -> Steps[Plane]:
        """What dead instances ran goes back, or fails when it was rescued too often."""
        for t in self._ready(s):
            moved: dict[int, Job] = {}
            for j in self._swept(s, t, ("running",)):
                job = self.seen(s, t, j)
                if self.guard("only the dead lose their jobs", job.owner in s.dead):
                    moved[j] = self._rescued(job, s.next)
            if moved:
                yield (t,), self._wrote(s, t, moved, 1)

    def _rescued(self, job: Job, now: int) -> Job:
        if job.rescues >= self.bound:
            return job._replace(state="failed", owner=None, rescues=job.rescues + 1)
        return job._replace(state="retryable", owner=None, attempt=job.attempt - 1, rescues=job.rescues + 1, pos=now)

    @action
    def bury(self, s: Plane) -> Steps[Plane]:
        """An instance is declared dead; what it runs may still come to an end before it is rescued."""
        for i in range(self.n_instances):
            yield (i,), s._replace(dead=s.dead | {i})

    @action
    def carry(self, s: Plane) -> Steps[Plane]:
        """Hygiene moves leases, or bodies, to other slots: nothing changes but where they are.

        Their rows are locked meanwhile.
        """
        for t in self._ready(s):
            for what, states in (("leases", ("running",)), ("bodies", ("running", "available"))):
                carried = self._swept(s, t, states)
                if carried:
                    yield (t, what), self._wrote(s, t, {j: self.seen(s, t, j) for j in carried})

    @action
    def commit(self, s: Plane) -> Steps[Plane]:
        """A transaction commits; who waited for it goes on."""
        for t in self._ready(s):
            if s.sessions[t].open:
                jobs = list(s.jobs)
                for j, job in s.sessions[t].changed:
                    jobs[j] = job
                yield (t,), self._released(s._replace(jobs=tuple(jobs)), t)

    @action
    def abort(self, s: Plane) -> Steps[Plane]:
        """A transaction is rolled back, or its connection is killed; who waited for it goes on."""
        for t, session in enumerate(s.sessions):
            if session.open:
                yield (t,), self._released(s, t)

    def _released(self, s: Plane, t: int) -> Plane:
        s = s._replace(sessions=replaced(s.sessions, t, Session()))
        for u, session in enumerate(s.sessions):
            if session.waits and self.holder(s, u, session.waits[1]) is None:
                verb, j, args = session.waits
                s = s._replace(sessions=replaced(s.sessions, u, session._replace(waits=None)))
                result = self.result(s, u, verb, j, args)
                s = s if result is None else self._wrote(s, u, {j: result}, 1)
        return tidy(s)

    @invariant
    def one_transaction_holds_a_job(self, s: Plane) -> bool:
        """No two open transactions have changed the same job."""
        held = [j for session in s.sessions for j, _ in session.changed]
        return len(held) == len(set(held))

    @invariant
    def a_running_job_is_owned(self, s: Plane) -> bool:
        """A job has an owner exactly while it runs."""
        return all((job.state == "running") == (job.owner is not None) for job in s.jobs)

    @step_rule
    def an_availability_is_claimed_once(self, s: Plane, name: str, args: Args, after: Plane) -> bool:
        """A claim takes a job that its transaction sees as available, committed or its own, one run_lease later."""
        if name != "claim":
            return True
        before, now = self.seen(s, args[0], args[2]), self.seen(after, args[0], args[2])
        return before.state == "available" and now.lease == before.lease + 1

    @step_rule
    def nobody_claims_for_the_dead(self, s: Plane, name: str, args: Args, after: Plane) -> bool:
        """An instance that was declared dead gets no more jobs, however late its claim arrives."""
        return name != "claim" or args[1] not in s.dead

    @step_rule
    def claims_follow_the_order(self, s: Plane, name: str, args: Args, after: Plane) -> bool:
        """Without a hint that skips it, the first free job is taken."""
        if name != "claim" or args[3]:
            return True
        t = args[0]
        free = [
            self.seen(s, t, j).pos
            for j in range(self.n_jobs)
            if self.seen(s, t, j).state == "available" and self.holder(s, t, j) is None
        ]
        return not free or self.seen(s, t, args[2]).pos <= min(free)

    @step_rule
    def only_the_owner_ends_an_attempt(self, s: Plane, name: str, args: Args, after: Plane) -> bool:
        """An attempt is ended by the very instance that runs it."""
        if name not in ("complete", "settle") or s.sessions[args[0]].changed == after.sessions[args[0]].changed:
            return True
        job = self.seen(s, args[0], args[1])
        return (job.lease, job.owner) == (args[2], args[3])

    @step_rule
    def a_living_attempt_is_left_alone(self, s: Plane, name: str, args: Args, after: Plane) -> bool:
        """Rescue takes from the dead only."""
        if name != "rescue":
            return True
        t = args[0]
        touched = [j for j in range(self.n_jobs) if self.seen(s, t, j).state != self.seen(after, t, j).state]
        return all(self.seen(s, t, j).owner in s.dead for j in touched)

    @step_rule
    def run_lease_only_grows(self, s: Plane, name: str, args: Args, after: Plane) -> bool:
        """Whatever commits, run_lease never goes back."""
        return all(now.lease >= before.lease for now, before in zip(after.jobs, s.jobs, strict=True))


def tidy(s: Plane) -> Plane:
    """Number positions afresh: only their order matters, and without this there would be no end of states."""
    jobs = [*s.jobs, *(job for session in s.sessions for _, job in session.changed)]
    numbers = {0} | {n for job in jobs for n in (job.pos, job.born)}
    if len(numbers) == s.next == max(numbers) + 1:
        return s
    ranks = {number: rank for rank, number in enumerate(sorted(numbers))}

    def ranked(job: Job) -> Job:
        return job._replace(pos=ranks[job.pos], born=ranks[job.born])

    return s._replace(
        jobs=tuple(map(ranked, s.jobs)),
        sessions=tuple(
            session._replace(changed=tuple((j, ranked(job)) for j, job in session.changed)) for session in s.sessions
        ),
        next=len(ranks),
    )
