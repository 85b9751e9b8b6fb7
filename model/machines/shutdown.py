"""The two endings of a worker: a drain loses nothing, and a stop records or gives back everything within its bound."""

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


class Attempt(NamedTuple):
    """One claimed job of this worker.

    `handler` is working, asked (its scope was cancelled) or over; `end` is what it came to: none, done, interrupted,
    or unheard when there never was one. `owed` is where that end is: nowhere, mailbox, batch or late. `row` is the job
    by the database: running, or how it ended.
    """

    handler: str = "working"
    end: str = "none"
    owed: str = "nowhere"
    row: str = "running"
    counted: bool = True


class Worker(NamedTuple):
    """The worker: `phase` is running, draining, stopping (cancelled), last step, ended (and how: 0, 75)."""

    attempts: tuple[Attempt, ...]
    phase: str = "running"
    beating: bool = True
    claiming: bool = True
    recorder: bool = True
    follow_ups: bool = True
    asked_twice: bool = False
    status: int | None = None


class Shutdown(Machine[Worker]):
    """A few attempts, of which one may ignore cancellation, and a database that may be slow in the last step."""

    facts = "W-facts of 4.6, architecture 3 (two endings)"
    code = "actors/worker.py, actors/recorder.py (left_over), actors/crew.py (late), store/settle.py (release_instance)"
    sizes: ClassVar[Sizes] = {
        "dev": {"n_attempts": 2, "stubborn": 1},
        "ci": {"n_attempts": 4, "stubborn": 1},
        "nightly": {"n_attempts": 5, "stubborn": 1},
    }
    walk_sizes: ClassVar[Bounds] = {"n_attempts": 7, "stubborn": 1}
    twins: ClassVar[Twins] = {
        "a drain waits for handlers": ("a_drain_interrupts_nobody",),
        "a drain stops claiming first": ("who_stops_claims_nothing",),
        "ends that were told are recorded in the last step": ("what_was_done_is_not_given_back",),
        "what is left is given back in the last step": ("nothing_stays_behind",),
        "an interruption is not counted as an attempt": ("interruptions_cost_no_attempt",),
        "the beat is the last to stop": ("who_runs_something_beats",),
        "the last step waits for handlers": ("nothing_runs_after_the_end",),
        "mailboxes close after the last teller": ("every_end_is_owed",),
        "a stop cancels the handlers": ("every_stop_ends",),
    }
    n_attempts: int
    stubborn: int

    def initial(self) -> Iterator[Worker]:
        """A worker in full swing; it may hold one job of whose claim it never heard."""
        yield Worker((Attempt(),) * self.n_attempts)
        yield Worker((*(Attempt(),) * (self.n_attempts - 1), Attempt(handler="over", end="unheard")))

    def _with(self, s: Worker, a: int, **fields: Any) -> Worker:
        return s._replace(attempts=replaced(s.attempts, a, s.attempts[a]._replace(**fields)))

    @action
    def finish_handler(self, s: Worker) -> Steps[Worker]:
        """A handler does its work to the end. While nobody asks it to stop, nothing says how long that takes."""
        for a, attempt in enumerate(s.attempts):
            if attempt.handler in ("working", "asked") and s.status is None:
                yield (a,), self._told(self._with(s, a, handler="over", end="done"), a)

    @fair
    def give_up(self, s: Worker) -> Steps[Worker]:
        """A handler that was asked to stop does so; a stubborn one does not."""
        for a, attempt in enumerate(s.attempts):
            if attempt.handler == "asked" and a >= self.stubborn and s.status is None:
                yield (a,), self._told(self._with(s, a, handler="over", end="interrupted"), a)

    def _told(self, s: Worker, a: int) -> Worker:
        """An end goes to the recorder; when the worker is being stopped it is kept for the last step."""
        if s.recorder and s.phase != "stopping":
            return self._with(s, a, owed="mailbox")
        return self._with(s, a, owed="late" if self.keeps("mailboxes close after the last teller") else "nowhere")

    @fair
    def take(self, s: Worker) -> Steps[Worker]:
        """The recorder takes a batch."""
        mail = [a for a, attempt in enumerate(s.attempts) if attempt.owed == "mailbox"]
        if s.recorder and mail and s.phase in ("running", "draining"):
            after = s
            for a in mail:
                after = self._with(after, a, owed="batch")
            yield tuple(mail), after

    @fair
    def record(self, s: Worker) -> Steps[Worker]:
        """It has written the batch."""
        if s.recorder and s.phase in ("running", "draining") and any(attempt.owed == "batch" for attempt in s.attempts):
            yield (), self._written(s, ("batch",))

    def _written(self, s: Worker, owed: tuple[str, ...]) -> Worker:
        for a, attempt in enumerate(s.attempts):
            if attempt.owed in owed and attempt.row == "running":
                uncount = attempt.end == "interrupted" and self.keeps("an interruption is not counted as an attempt")
                row = "completed" if attempt.end == "done" else "available"
                s = self._with(s, a, owed="nowhere", row=row, counted=not uncount)
        return s

    @action
    def drain(self, s: Worker) -> Steps[Worker]:
        """The worker is asked to drain: no more claims, handlers go on."""
        if s.phase == "running":
            yield (), s._replace(phase="draining", claiming=not self.keeps("a drain stops claiming first"))

    @action
    def stop(self, s: Worker) -> Steps[Worker]:
        """The scope of the worker is cancelled, at first or after the grace of a drain: handlers are asked to stop."""
        if s.phase in ("running", "draining"):
            asked = "asked" if self.keeps("a stop cancels the handlers") else "working"
            attempts = tuple(
                x._replace(handler=asked)
                if x.handler == "working"
                else x._replace(owed="late" if x.owed != "nowhere" else x.owed)
                for x in s.attempts
            )
            yield (), s._replace(phase="stopping", claiming=False, recorder=False, attempts=attempts, asked_twice=True)

    @fair
    def finish_drain(self, s: Worker) -> Steps[Worker]:
        """Every handler has ended and everything told is recorded."""
        over = all(attempt.handler == "over" for attempt in s.attempts)
        quiet = all(attempt.owed == "nowhere" for attempt in s.attempts)
        if s.phase == "draining" and self.guard("a drain waits for handlers", over) and quiet:
            yield (), s._replace(phase="last step", recorder=False, beating=self.keeps("the beat is the last to stop"))

    @fair
    def finish_stop(self, s: Worker) -> Steps[Worker]:
        """Every handler has ended; what they owe is kept for the last step."""
        over = all(attempt.handler == "over" for attempt in s.attempts)
        if s.phase == "stopping" and self.guard("the last step waits for handlers", over):
            yield (), s._replace(phase="last step", beating=self.keeps("the beat is the last to stop"))

    @fair
    def last_step(self, s: Worker) -> Steps[Worker]:
        """What was told is recorded, what is left is given back, the instance signs off; shielded and bounded."""
        if s.phase != "last step":
            return
        after = s
        if self.keeps("ends that were told are recorded in the last step"):
            after = self._written(after, ("late", "mailbox", "batch"))
        if self.keeps("what is left is given back in the last step"):
            for a, attempt in enumerate(after.attempts):
                if attempt.row == "running":
                    after = self._with(after, a, row="available", counted=False, owed="nowhere")
        yield (), after._replace(phase="ended", beating=False, status=0)

    @action
    def last_step_is_too_slow(self, s: Worker) -> Steps[Worker]:
        """The database does not answer within the bound: the process ends, and rescue takes what it held."""
        if s.phase == "last step":
            yield (), self._killed(s)

    @fair
    def watchdog(self, s: Worker) -> Steps[Worker]:
        """A handler that ignores its cancellation: the watchdog ends the process after the grace."""
        if s.phase == "stopping" and any(attempt.handler == "asked" for attempt in s.attempts[: self.stubborn]):
            yield (), self._killed(s)

    def _killed(self, s: Worker) -> Worker:
        attempts = tuple(attempt._replace(handler="over", owed="nowhere") for attempt in s.attempts)
        return s._replace(attempts=attempts, phase="ended", beating=False, recorder=False, status=75)

    @fair
    def rescue(self, s: Worker) -> Steps[Worker]:
        """Maintenance finds the instance dead."""
        for a, attempt in enumerate(s.attempts):
            if s.phase == "ended" and s.status == 75 and attempt.row == "running":
                yield (a,), self._with(s, a, row="available", counted=False)

    @invariant
    def nothing_runs_after_the_end(self, s: Worker) -> bool:
        """When the last step begins, no handler runs."""
        return s.phase not in ("last step", "ended") or all(attempt.handler == "over" for attempt in s.attempts)

    @invariant
    def nothing_stays_behind(self, s: Worker) -> bool:
        """A worker that ended with status 0 holds nothing and owes nothing."""
        return s.status != 0 or all((x.owed, x.row == "running") == ("nowhere", False) for x in s.attempts)

    @invariant
    def who_runs_something_beats(self, s: Worker) -> bool:
        """The beat goes on until the worker has ended, so that nobody takes what it still records."""
        return s.beating or s.phase == "ended"

    @invariant
    def who_stops_claims_nothing(self, s: Worker) -> bool:
        """A worker that stops, in either way, does not claim."""
        return s.phase == "running" or not s.claiming

    @invariant
    def every_end_is_owed(self, s: Worker) -> bool:
        """The end of a handler is on its way until it is recorded."""
        ended = [x for x in s.attempts if x.end in ("done", "interrupted") and s.phase != "ended"]
        return all(x.owed != "nowhere" or x.row != "running" for x in ended)

    @invariant
    def interruptions_cost_no_attempt(self, s: Worker) -> bool:
        """What goes back because of the stop is not counted against the job."""
        return all(x.row != "available" or not x.counted for x in s.attempts)

    @step_rule
    def a_drain_interrupts_nobody(self, s: Worker, name: str, args: Args, after: Worker) -> bool:
        """A drain that is not cancelled ends only when every handler has."""
        return name != "finish_drain" or all(attempt.handler == "over" for attempt in s.attempts)

    @step_rule
    def what_was_done_is_not_given_back(self, s: Worker, name: str, args: Args, after: Worker) -> bool:
        """A handler that did its work is recorded as done in the last step, not run again."""
        pairs = zip(s.attempts, after.attempts, strict=True)
        return name != "last_step" or all(x.end != "done" or now.row == "completed" for x, now in pairs)

    @leaves
    def every_stop_ends(self, s: Worker) -> bool:
        """A stop ends, whatever handlers do."""
        return s.phase in ("stopping", "last step")

    @leaves
    def nothing_is_lost(self, s: Worker) -> bool:
        """What a worker that was ended by force held is taken back."""
        return s.phase == "ended" and any(attempt.row == "running" for attempt in s.attempts)
