"""Statement by statement: claims and ends of an attempt whose lease and body are carried to other slots meanwhile.

A statement sees what was committed when it started (its snapshot), waits for row locks, and then finds the newest
version of a row that was updated, but nothing of a row that was deleted and inserted elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from model.machine import Args, Bounds, Machine, Sizes, Steps, Twins, action, fair, invariant, leaves, step_rule

NOWHERE = -1


class Worker(NamedTuple):
    """Where a worker is in its call, and the snapshot of its present statement.

    `at` is idle, or a call with its stage: claim, claim:carefully, complete, complete:missed, complete:again, settle
    ...
    """

    at: str = "idle"
    lslot: int = NOWHERE
    copies: frozenset[int] = frozenset()


class Attempt(NamedTuple):
    """One job: its ready row or lease, where that says its body is, and the segments in which copies of the body are.

    `lslot` is the slot of its lease, `known` what the claimer was told of it. `lock` says who has locked the row; the
    two carriers keep the slot they carry to. `answer` is what the worker was told in the end.
    """

    place: str = "ready"
    slot: int = 0
    lslot: int = NOWHERE
    known: int = NOWHERE
    copies: frozenset[int] = frozenset({0})
    current: tuple[int, int] = (0, 0)
    lock: str = ""
    to: int = NOWHERE
    copied: bool = False
    worker: Worker = Worker()
    answer: str = ""


class Carry(Machine[Attempt]):
    """A worker, two carriers, an operator who may cancel, and truncation of segments that nothing points into."""

    facts = "X11 X15, traps T1 T2"
    code = "store/migrations/0004, 0005 (complete, lock_lease, whole), 0007 (carry_leases, carry_bodies)"
    sizes: ClassVar[Sizes] = {
        "dev": {"slots": 2, "segments": 2},
        "ci": {"slots": 2, "segments": 3},
        "nightly": {"slots": 4, "segments": 4},
    }
    walk_sizes: ClassVar[Bounds] = {"slots": 4, "segments": 8}
    twins: ClassVar[Twins] = {
        "the body is read in a statement after the lock": ("an_end_finds_its_body",),
        "a verb that finds nothing looks again": ("stale_means_ended",),
        "and again, while a new look sees the lease": ("stale_means_ended",),
        "a claim that cannot see a body looks again": ("a_claim_finds_its_body",),
        "an end waits for the carrier": ("one_moves_a_row",),
        "a carrier skips what is locked": ("one_moves_a_row",),
        "a carried body keeps its old copy": ("its_body_is_where_a_job_says",),
        "what is pointed at is not truncated": ("its_body_is_where_a_job_says",),
    }
    slots: int
    segments: int

    def initial(self) -> Iterator[Attempt]:
        """A job that waits."""
        yield Attempt()

    @action
    def turn(self, s: Attempt) -> Steps[Attempt]:
        """A ring turns: leases and bodies go to another slot from now on."""
        lslot, segment = s.current
        yield ("leases",), s._replace(current=((lslot + 1) % self.slots, segment))
        yield ("segments",), s._replace(current=(lslot, (segment + 1) % self.segments))

    @action
    def start_claim(self, s: Attempt) -> Steps[Attempt]:
        """A claim begins: its snapshot is taken."""
        if s.place == "ready" and s.worker.at == "idle":
            yield (), s._replace(worker=Worker("claim", copies=s.copies))

    @fair
    def finish_claim(self, s: Attempt) -> Steps[Attempt]:
        """It locks the ready row if nobody has, and reads the body that the newest version of the row names."""
        if not s.worker.at.startswith("claim"):
            return
        carefully = s.worker.at == "claim:carefully"
        if s.lock or s.place != "ready":
            yield ("skipped",), s._replace(worker=Worker())
        elif s.slot in (s.copies if carefully else s.worker.copies):
            lslot = s.current[0]
            yield ("claimed",), s._replace(place="lease", lslot=lslot, known=lslot, worker=Worker())
        elif self.keeps("a claim that cannot see a body looks again"):
            yield ("no body",), s._replace(worker=Worker("claim:carefully"))
        else:
            yield ("no body",), s._replace(place="lost", worker=Worker())

    @action
    def start_end(self, s: Attempt) -> Steps[Attempt]:
        """The attempt's end is to be recorded; a completion looks first where the claimer was told the lease is."""
        if s.place == "lease" and s.worker.at == "idle":
            yield ("settle",), s._replace(worker=Worker("settle", s.lslot, s.copies))
            seen = s.lslot if s.lslot == s.known else NOWHERE
            yield ("complete",), s._replace(worker=Worker("complete", seen, s.copies))

    @fair
    def finish_end(self, s: Attempt) -> Steps[Attempt]:
        """It waits for the lease's lock. The row it saw may have been updated since, or be gone."""
        call, _, stage = s.worker.at.partition(":")
        if call not in ("complete", "settle") or stage == "missed":
            return
        if not self.guard("an end waits for the carrier", not s.lock):
            return
        if s.place != "lease" or s.lslot != s.worker.lslot:
            yield ("missed",), s._replace(worker=s.worker._replace(at=f"{call}:missed"))
            return
        after_lock = self.keeps("the body is read in a statement after the lock")
        found = call == "complete" or s.slot in (s.copies if after_lock else s.worker.copies)
        yield (call,), s._replace(place="ended", worker=Worker(), answer=call if found else "lost the body")

    @fair
    def look_again(self, s: Attempt) -> Steps[Attempt]:
        """A new statement with a new snapshot, in every slot."""
        call, _, stage = s.worker.at.partition(":")
        if stage != "missed":
            return
        first = s.worker.copies != frozenset()
        again = self.keeps("a verb that finds nothing looks again") and (
            first or self.keeps("and again, while a new look sees the lease")
        )
        if again and s.place == "lease":
            yield (), s._replace(worker=Worker(f"{call}:again", s.lslot))
        else:
            yield ("stale",), s._replace(worker=Worker(), answer="stale")

    @action
    def cancel(self, s: Attempt) -> Steps[Attempt]:
        """Somebody else ends the attempt."""
        if s.place == "lease" and not s.lock:
            yield (), s._replace(place="ended")

    @action
    def pick(self, s: Attempt) -> Steps[Attempt]:
        """A carrier locks a row that keeps a slot from emptying."""
        if not self.guard("a carrier skips what is locked", not s.lock):
            return
        if s.place == "lease" and s.lslot != s.current[0]:
            yield ("lease",), s._replace(lock="lease carrier", to=s.current[0], copied=False)
        if s.place in ("ready", "lease") and s.slot != s.current[1]:
            yield ("body",), s._replace(lock="body carrier", to=s.current[1], copied=False)

    @fair
    def copy(self, s: Attempt) -> Steps[Attempt]:
        """The body carrier inserts its copy, not committed yet."""
        if s.lock == "body carrier" and not s.copied:
            yield (), s._replace(copied=True)

    @fair
    def carried(self, s: Attempt) -> Steps[Attempt]:
        """A carrier commits: the lease is deleted here and inserted there, the body's address is updated in place."""
        done = s._replace(lock="", to=NOWHERE, copied=False)
        if s.lock == "lease carrier":
            yield (s.lock,), done._replace(lslot=s.to)
        elif s.lock == "body carrier" and s.copied:
            copies = s.copies | {s.to}
            yield (s.lock,), done._replace(slot=s.to, copies=copies)
        elif s.lock == "body carrier" and not self.keeps("a carried body keeps its old copy"):
            yield (s.lock,), s._replace(copies=s.copies - {s.slot})

    @action
    def abandon_carry(self, s: Attempt) -> Steps[Attempt]:
        """A carrier's transaction is rolled back."""
        if s.lock:
            yield (s.lock,), s._replace(lock="", to=NOWHERE, copied=False)

    @action
    def truncate(self, s: Attempt) -> Steps[Attempt]:
        """A segment is emptied when nothing committed points into it and nobody is writing to it."""
        for segment in s.copies:
            pointed_at = s.place in ("ready", "lease") and s.slot == segment
            written = s.copied and s.to == segment
            if (
                segment != s.current[1]
                and not written
                and self.guard("what is pointed at is not truncated", not pointed_at)
            ):
                yield (segment,), s._replace(copies=s.copies - {segment})

    @invariant
    def its_body_is_where_a_job_says(self, s: Attempt) -> bool:
        """While a job waits or runs, the segment that its row names holds its body."""
        return s.place not in ("ready", "lease") or s.slot in s.copies

    @invariant
    def a_claim_finds_its_body(self, s: Attempt) -> bool:
        """No job is lost in a claim."""
        return s.place != "lost"

    @invariant
    def an_end_finds_its_body(self, s: Attempt) -> bool:
        """No end of an attempt misses the body that was carried while it waited."""
        return s.answer != "lost the body"

    @invariant
    def stale_means_ended(self, s: Attempt) -> bool:
        """A worker is told that its attempt is stale only when it has ended."""
        return s.answer != "stale" or s.place == "ended"

    @step_rule
    def one_moves_a_row(self, s: Attempt, name: str, args: Args, after: Attempt) -> bool:
        """While one transaction has locked a row, no other moves or locks it."""
        if name == "pick":
            return not s.lock
        moved = (s.place, s.slot, s.lslot) != (after.place, after.slot, after.lslot)
        return not moved or not s.lock or name == "carried"

    @leaves
    def a_picked_row_is_let_go(self, s: Attempt) -> bool:
        """A carrier lets go of what it has locked."""
        return bool(s.lock)
