"""Callbacks: each generation is resolved at most once, whoever else ends the attempt at the same moment."""

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

VERBS = ("complete", "fail", "resume", "retry")


class Caller(NamedTuple):
    """Somebody outside. `at` is idle, found (it has read the open callback), holding (it has locked the lease)."""

    at: str = "idle"
    verb: str = ""
    generation: int = 0


class Wait(NamedTuple):
    """One job: its lease (state and run_lease), its callback row, who has locked the lease, what became of generations.

    `row` is the generation of the callback row, 0 when there is none; `answered` that it holds a payload nobody took
    yet. `handler` is working, waiting (inside) or gone.
    """

    state: str = "available"
    lease: int = 0
    handler: str = "gone"
    row: int = 0
    row_lease: int = 0
    answered: bool = False
    generation: int = 0
    resolved: tuple[int, ...] = ()
    lock: int | None = None
    callers: tuple[Caller, ...] = ()
    owned: bool = False


ENDED = ("completed", "failed", "cancelled")


class Callbacks(Machine[Wait]):
    """A handler that registers, waits or parks; callers with ids old and new.

    Expiry and rescue, which skip locked leases.
    """

    facts = "X9, C1 to C17"
    code = "store/migrations/0011_callbacks.sql"
    sizes: ClassVar[Sizes] = {
        "dev": {"n_callers": 2, "generations": 1, "leases": 1},
        "ci": {"n_callers": 2, "generations": 2, "leases": 2},
        "nightly": {"n_callers": 2, "generations": 3, "leases": 3},
        "a new registration voids the one before": {"generations": 2, "leases": 1},
        "an attempt's end voids its callback": {"generations": 1, "leases": 2},
        "a resumed attempt keeps its owner": {"leases": 1},
    }
    walk_sizes: ClassVar[Bounds] = {"n_callers": 3, "generations": 5, "leases": 5}
    twins: ClassVar[Twins] = {
        "the callback is read again under the lock": ("a_generation_is_resolved_once",),
        "resolving locks the lease": ("a_generation_is_resolved_once", "one_holds_the_lock"),
        "a new registration voids the one before": ("only_the_newest_generation_is_open",),
        "an attempt's end voids its callback": ("a_callback_belongs_to_its_attempt",),
        "an ended job has no callback": ("an_ended_job_waits_for_nothing", "a_callback_belongs_to_its_attempt"),
        "expiry skips a lease that is locked": ("one_holds_the_lock",),
        "only who registered may wait": ("who_waits_has_a_callback",),
        "a resumed attempt keeps its owner": ("a_running_job_is_owned",),
        "what has expired is taken": ("an_expired_wait_ends",),
    }
    n_callers: int
    generations: int
    leases: int

    def initial(self) -> Iterator[Wait]:
        """The job waits to be claimed."""
        yield Wait(resolved=(0,) * self.generations, callers=(Caller(),) * self.n_callers)

    def _ended(self, s: Wait, state: str) -> Wait:
        """The attempt is over: its lease goes, and with it the right to resolve anything."""
        void = self.keeps("an ended job has no callback") if state in ENDED else True
        row = 0 if void else s.row
        return s._replace(state=state, owned=False, row=row, answered=False, handler="gone")

    @action
    def claim(self, s: Wait) -> Steps[Wait]:
        """A worker takes the job."""
        if s.state == "available" and s.lease < self.leases:
            yield (), s._replace(state="running", lease=s.lease + 1, handler="working", owned=True)

    @action
    def register(self, s: Wait) -> Steps[Wait]:
        """The handler registers a callback; callers learn the id."""
        if s.state == "running" and s.handler == "working" and s.generation < self.generations and s.lock is None:
            g = s.generation + 1
            row = g if self.keeps("a new registration voids the one before") or not s.row else s.row
            yield (), s._replace(generation=g, row=row, row_lease=s.lease, answered=False)

    @action
    def park(self, s: Wait) -> Steps[Wait]:
        """The handler returns; the job waits without a worker, or runs again at once if the answer is there already."""
        if s.state == "running" and s.handler == "working" and s.lock is None and s.generation:
            if s.answered:
                yield ("answered",), self._ended(s, "available")
            elif self.guard("only who registered may wait", s.row == s.generation and s.row_lease == s.lease):
                yield ("parked",), s._replace(state="waiting", handler="gone")
            else:
                yield ("violation",), self._ended(s, "failed")

    @action
    def wait_inside(self, s: Wait) -> Steps[Wait]:
        """The handler waits itself, holding its permit."""
        if (
            s.state == "running"
            and s.handler == "working"
            and s.row == s.generation > 0
            and s.lock is None
            and not s.answered
        ):
            yield (), s._replace(state="waiting", handler="waiting")

    @fair
    def take_answer(self, s: Wait) -> Steps[Wait]:
        """The handler that waits inside sees the payload and goes on."""
        if s.handler == "waiting" and s.answered and s.lock is None:
            yield (), s._replace(state="running", handler="working", row=0, answered=False)

    @fair
    def finish(self, s: Wait) -> Steps[Wait]:
        """The handler ends."""
        if s.state == "running" and s.handler == "working" and s.lock is None:
            yield ("completed",), self._ended(s, "completed")
            yield ("retried",), self._ended(s, "available")

    @action
    def call(self, s: Wait) -> Steps[Wait]:
        """A caller looks up an id that it was given, the newest or an older one."""
        for c, caller in enumerate(s.callers):
            for g in range(1, s.generation + 1):
                open_row = s.row == g and not s.answered
                if caller.at == "idle" and open_row:
                    for verb in VERBS:
                        yield (c, verb, g), self._caller(s, c, Caller("found", verb, g))

    def _caller(self, s: Wait, c: int, caller: Caller) -> Wait:
        return s._replace(callers=replaced(s.callers, c, caller))

    @fair
    def lock(self, s: Wait) -> Steps[Wait]:
        """It waits for the lease, and has it."""
        for c, caller in enumerate(s.callers):
            if caller.at == "found" and self.guard("resolving locks the lease", s.lock is None):
                if s.state in ("running", "waiting"):
                    yield (c,), self._caller(s, c, caller._replace(at="holding"))._replace(lock=c)
                else:
                    yield (c,), self._caller(s, c, Caller())

    @fair
    def resolve(self, s: Wait) -> Steps[Wait]:
        """It looks at the callback again, resolves it or finds it closed, and commits."""
        for c, caller in enumerate(s.callers):
            if caller.at != "holding":
                continue
            after = self._caller(s, c, Caller())._replace(lock=None if s.lock == c else s.lock)
            still = s.row == caller.generation and not s.answered and s.row_lease == s.lease
            if not self.guard("the callback is read again under the lock", still):
                yield (c, "closed"), after
            elif caller.verb != "retry" or s.state == "waiting":
                counts = replaced(s.resolved, caller.generation - 1, min(2, s.resolved[caller.generation - 1] + 1))
                yield (c, caller.verb), self._resolved(after._replace(resolved=counts), caller.verb)
            else:
                yield (c, "refused"), after

    def _resolved(self, s: Wait, verb: str) -> Wait:
        if verb == "complete":
            return self._ended(s, "completed")
        if verb == "fail":
            return self._ended(s, "failed")
        if verb == "retry":
            return self._ended(s, "available")
        if s.handler == "gone":
            return self._ended(s, "available")
        owned = self.keeps("a resumed attempt keeps its owner")
        return s._replace(state="running" if s.handler == "working" else s.state, answered=True, owned=owned)

    @fair
    def expire(self, s: Wait) -> Steps[Wait]:
        """The wait has taken too long: the attempt has failed."""
        free = s.state == "waiting" and not s.answered and self.keeps("what has expired is taken")
        if free and self.guard("expiry skips a lease that is locked", s.lock is None):
            yield (), self._ended(s, "available")._replace(lock=None)

    @action
    def rescue(self, s: Wait) -> Steps[Wait]:
        """The worker of a running attempt is gone; a parked one needs none."""
        if s.state == "running" and s.lock is None:
            after = self._ended(s, "available")
            stays = not self.keeps("an attempt's end voids its callback")
            yield (), after._replace(row=s.row, answered=s.answered) if stays else after

    @invariant
    def a_generation_is_resolved_once(self, s: Wait) -> bool:
        """No generation is resolved twice, whatever the callers do at once."""
        return all(count <= 1 for count in s.resolved)

    @invariant
    def only_the_newest_generation_is_open(self, s: Wait) -> bool:
        """An id that was replaced resolves nothing any more."""
        return s.row in (0, s.generation)

    @invariant
    def an_ended_job_waits_for_nothing(self, s: Wait) -> bool:
        """A job that has ended has no callback."""
        return s.state not in ENDED or s.row == 0

    @invariant
    def a_callback_belongs_to_its_attempt(self, s: Wait) -> bool:
        """An open callback is one of the attempt that is live now."""
        return s.row == 0 or (s.state in ("running", "waiting") and s.row_lease == s.lease)

    @invariant
    def who_waits_has_a_callback(self, s: Wait) -> bool:
        """A job that waits has the callback that it waits for."""
        return s.state != "waiting" or s.row == s.generation > 0

    @invariant
    def a_running_job_is_owned(self, s: Wait) -> bool:
        """A live attempt is its instance's, also after it was resumed; a job without attempt is nobody's."""
        return s.owned == (s.state in ("running", "waiting"))

    @step_rule
    def one_holds_the_lock(self, s: Wait, name: str, args: Args, after: Wait) -> bool:
        """Whoever ends or resolves an attempt holds its lease; nobody else touches the job meanwhile."""
        if name in ("call", "lock"):
            return name == "call" or s.lock is None
        return s.lock is None or (name == "resolve" and args[0] == s.lock)

    @leaves
    def an_expired_wait_ends(self, s: Wait) -> bool:
        """Nothing waits for ever."""
        return s.state == "waiting"
