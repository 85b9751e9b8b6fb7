"""Space comes back by truncating segments.

Verified under the lock, with a snapshot younger than the lock, never a live body lost.
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

PLACES = ("ready", "parked", "lease", "done")
"""Where a committed row can point into a segment; done counts as long as its history is to be kept."""


class Job(NamedTuple):
    """A job, the segment of its body, and whether the transaction that wrote it there is still open.

    `place` is one of PLACES, or none (not enqueued), forgotten (its history has gone) or lost (its body went under it).
    `before` is where its last committed row is while a transaction moves it. `key` says that it holds a unique key.
    """

    place: str = "none"
    segment: int = 0
    open: bool = False
    before: str = "none"
    old: bool = False
    key: bool = False


class Ring(NamedTuple):
    """Jobs, the current segment, and the truncater: idle, locked, verified.

    `seen` is what its snapshot showed as needed.
    """

    jobs: tuple[Job, ...]
    current: int = 0
    at: str = "idle"
    segment: int = 0
    seen: bool = False
    turns: int = 0


class Truncation(Machine[Ring]):
    """Producers with open transactions, claimers, completers, parking, and one truncater, which is one transaction."""

    facts = "X13 to X17, P6, trap T3"
    code = "store/migrations/0007_hygiene.sql (turn, truncate_slot, slot_content, release_history_claims)"
    sizes: ClassVar[Sizes] = {
        "dev": {"n_jobs": 1, "segments": 2, "turns": 2},
        "ci": {"n_jobs": 2, "segments": 2, "turns": 2},
        "nightly": {"n_jobs": 2, "segments": 3, "turns": 3},
    }
    walk_sizes: ClassVar[Bounds] = {"n_jobs": 5, "segments": 4, "turns": 9}
    twins: ClassVar[Twins] = {
        "a writer's lock keeps the truncater out": ("a_needed_body_is_never_lost", "nobody_writes_under_the_lock"),
        "the lock keeps writers out": ("a_needed_body_is_never_lost", "nobody_writes_under_the_lock"),
        "verification is a statement after the lock": ("a_needed_body_is_never_lost",),
        "verification counts ready rows": ("a_needed_body_is_never_lost",),
        "verification counts parked rows": ("a_needed_body_is_never_lost",),
        "verification counts leases": ("a_needed_body_is_never_lost",),
        "verification counts history that is kept": ("kept_history_stays",),
        "verification looks into every slot of the fast rings": ("a_needed_body_is_never_lost",),
        "the unique keys of forgotten history go with it": ("a_forgotten_job_holds_no_key",),
        "an aborted move is as if it had not been": ("a_needed_body_is_never_lost", "a_needed_body_is_where_it_was"),
    }
    n_jobs: int
    segments: int
    turns: int

    def initial(self) -> Iterator[Ring]:
        """Nothing is enqueued."""
        yield Ring((Job(),) * self.n_jobs)

    def _job(self, s: Ring, j: int, **fields: Any) -> Ring:
        return s._replace(jobs=replaced(s.jobs, j, s.jobs[j]._replace(**fields)))

    def _may_write(self, s: Ring, segment: int) -> bool:
        return self.guard("the lock keeps writers out", s.at in ("idle", "locking") or s.segment != segment)

    @action
    def enqueue(self, s: Ring) -> Steps[Ring]:
        """A producer writes a body into the segment that was current when it looked, which may be long ago."""
        for j, job in enumerate(s.jobs):
            for segment in {s.current, (s.current - 1) % self.segments}:
                if job.place == "none" and self._may_write(s, segment):
                    for key in (False, True):
                        yield (j, segment), self._job(s, j, place="ready", segment=segment, open=True, key=key)

    @action
    def move(self, s: Ring) -> Steps[Ring]:
        """A claim (of a resumed queue: with its unpark), a completion or a park.

        The row that points at the body is deleted here and inserted there.
        """
        ways = (("ready", "lease"), ("ready", "parked"), ("parked", "ready"), ("lease", "done"), ("lease", "ready"))
        for j, job in enumerate(s.jobs):
            for here, there in ways:
                # Only a completion writes into the segment itself; a claim reads it, which the lock keeps out as well.
                if (
                    job.place == here
                    and not job.open
                    and ("parked" in (here, there) or self._may_write(s, job.segment))
                ):
                    yield (j, there), self._job(s, j, place=there, open=True, before=here)

    @fair
    def commit(self, s: Ring) -> Steps[Ring]:
        """A writer commits."""
        for j, job in enumerate(s.jobs):
            if job.open:
                yield (j,), self._job(s, j, open=False, before="none")

    @action
    def abort(self, s: Ring) -> Steps[Ring]:
        """A writer's transaction is rolled back."""
        for j, job in enumerate(s.jobs):
            if job.open:
                back = job.before if self.keeps("an aborted move is as if it had not been") else "none"
                yield (j,), self._job(s, j, place=back, open=False, before="none", key=job.key and back != "none")

    @action
    def age(self, s: Ring) -> Steps[Ring]:
        """A completed job is older than its retention."""
        for j, job in enumerate(s.jobs):
            if job.place == "done" and not job.open:
                yield (j,), self._job(s, j, old=True)

    @action
    def turn(self, s: Ring) -> Steps[Ring]:
        """The ring turns to another segment."""
        if s.turns < self.turns:
            yield (), s._replace(current=(s.current + 1) % self.segments, turns=s.turns + 1)

    def _needed(self, s: Ring, segment: int) -> bool:
        """What a statement that starts now sees: committed rows, and rows that an open transaction would move away."""
        for job in s.jobs:
            place = job.before if job.open else job.place
            if job.segment != segment or place not in PLACES or (place == "done" and job.old):
                continue
            if place == "ready" and not self.keeps("verification counts ready rows"):
                continue
            if place == "parked" and not self.keeps("verification counts parked rows"):
                continue
            if place == "lease" and not self.keeps("verification counts leases"):
                continue
            if place == "done" and not self.keeps("verification counts history that is kept"):
                continue
            elsewhere = job.segment == (s.current + 1) % self.segments
            if (
                place == "ready"
                and elsewhere
                and not self.keeps("verification looks into every slot of the fast rings")
            ):
                continue
            return True
        return False

    def _written(self, s: Ring, segment: int) -> bool:
        """Whether an open transaction has the lock of a writer on a segment: it inserted a body or a done row there."""
        return any(
            job.open and job.segment == segment and (job.before == "none" or job.place == "done") for job in s.jobs
        )

    @action
    def lock(self, s: Ring) -> Steps[Ring]:
        """The truncater asks for the lock and does not wait for it."""
        for segment in range(self.segments):
            if s.at == "idle" and segment != s.current and not self.keeps("verification is a statement after the lock"):
                yield (
                    (segment, "one statement"),
                    s._replace(at="locking", segment=segment, seen=self._needed(s, segment)),
                )
            elif (
                s.at == "idle"
                and segment != s.current
                and self.guard("a writer's lock keeps the truncater out", not self._written(s, segment))
            ):
                yield (segment,), s._replace(at="locked", segment=segment)

    @fair
    def verify(self, s: Ring) -> Steps[Ring]:
        """A new statement looks for what is still needed."""
        if s.at == "locked":
            yield (), s._replace(at="verified", seen=self._needed(s, s.segment))
        elif s.at == "locking" and not self._written(s, s.segment):
            yield ("with the snapshot from before the lock",), s._replace(at="verified")

    @fair
    def truncate(self, s: Ring) -> Steps[Ring]:
        """The segment is emptied and the lock given back; or only the lock, when something is still needed."""
        if s.at != "verified":
            return
        after = s._replace(at="idle", segment=0, seen=False)
        if not s.seen:
            for j, job in enumerate(s.jobs):
                if job.segment == s.segment and job.place in PLACES:
                    stays = job.key and not self.keeps("the unique keys of forgotten history go with it")
                    place = "forgotten" if job.place == "done" and not job.open else "lost"
                    key = stays if place == "forgotten" else job.key
                    after = self._job(after, j, place=place, open=False, key=key)
        yield (), after

    @invariant
    def a_needed_body_is_never_lost(self, s: Ring) -> bool:
        """No body goes while its job waits, runs, or is just being written."""
        return all(job.place != "lost" for job in s.jobs)

    @invariant
    def a_forgotten_job_holds_no_key(self, s: Ring) -> bool:
        """A job whose history has gone does not keep others from its unique key."""
        return not any(job.place == "forgotten" and job.key for job in s.jobs)

    @step_rule
    def kept_history_stays(self, s: Ring, name: str, args: Args, after: Ring) -> bool:
        """Completed jobs inside their retention are not forgotten."""
        pairs = zip(s.jobs, after.jobs, strict=True)
        return not any(now.place == "forgotten" != job.place and not job.old for job, now in pairs)

    @step_rule
    def nobody_writes_under_the_lock(self, s: Ring, name: str, args: Args, after: Ring) -> bool:
        """Nothing is written into a segment that is locked for truncation, and what is written keeps the lock away."""
        if name == "enqueue":
            return s.at in ("idle", "locking") or s.segment != args[1]
        return name != "lock" or after.at == "locking" or not self._written(s, args[0])

    @step_rule
    def a_needed_body_is_where_it_was(self, s: Ring, name: str, args: Args, after: Ring) -> bool:
        """A move that is rolled back leaves the job where it was."""
        return name != "abort" or after.jobs[args[0]].place == s.jobs[args[0]].before

    @leaves
    def the_lock_is_given_back(self, s: Ring) -> bool:
        """The truncater never keeps its lock."""
        return s.at in ("locked", "verified")
