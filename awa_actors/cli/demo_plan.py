"""What the demo enqueues, and how it tells that each job went as it should: a further step is a further entry."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from awa_actors.cli import demo_app as app
from awa_actors.jobs import InsertOpts, JobRow, JobState, OnConflict, UniqueOpts


@attrs.frozen
class Step:
    """One job of the demo.

    Args:
        shows: what there is to see, in a few words.
        args: the job.
        opts: its options.
        ends: the state it has to reach …
        proof: … and what else has to be true of its row then.
        follow_ups: how many notes its follow-ups enqueue.
        twice: insert it a second time, which has to give the same job.
        kill: kill the worker that runs it.
        answer: what somebody outside calls back with when it waits for that, which becomes its result.
    """

    shows: str
    args: Any
    opts: InsertOpts | None = None
    ends: JobState = JobState.COMPLETED
    proof: Callable[[JobRow], bool] = lambda job: True
    follow_ups: int = 0
    twice: bool = False
    kill: bool = False
    answer: Any = None


PAID = {"status": "paid", "cents": 4200}

STEPS = (
    Step("runs at once, its follow-up commits with it", app.Greeting("Ada"), follow_ups=1),
    Step("runs in two seconds", app.Reminder("tea"), InsertOpts(run_at=dt.timedelta(seconds=2))),
    Step(
        "fails twice, then works",
        app.FlakyMail("ada@example.org"),
        proof=lambda job: job.attempt == 3,
        follow_ups=2,
    ),
    Step(
        "snoozes once, which is no attempt",
        app.BusyReport("May"),
        proof=lambda job: job.snoozes == 1 and job.attempt == 1,
    ),
    Step(
        "is unique: inserting it again gives this job",
        app.Invoice(42),
        InsertOpts(unique=UniqueOpts(on_conflict=OnConflict.RETURN_EXISTING)),
        twice=True,
    ),
    Step("fails for good", app.BadAddress("nobody@"), ends=JobState.FAILED, follow_ups=1),
    Step("is cancelled by its handler", app.StaleOrder(7), ends=JobState.CANCELLED, follow_ups=1),
    Step(
        "its worker is killed, the other one takes over",
        app.LongImport(1_000_000),
        proof=lambda job: job.rescues > 0 and job.attempt == 1,
        follow_ups=1,
        kill=True,
    ),
    Step(
        "parks, and is completed from outside",
        app.Payment(7),
        proof=lambda job: job.result == PAID,
        follow_ups=2,
        answer=PAID,
    ),
)


@attrs.define
class Track:
    """What was seen of one job.

    Args:
        step: what it should do; None for a follow-up.
        row: as last seen.
        story: what happened, in words.
    """

    step: Step | None
    row: JobRow
    story: list[str] = attrs.field(factory=list)

    @property
    def noun(self) -> str:
        """Which job it is."""
        return f"job {self.row.id}"

    @property
    def name(self) -> str:
        """Its kind."""
        return self.row.kind

    @property
    def title(self) -> str:
        """What there is to see."""
        if self.step is not None:
            return self.step.shows
        return f"follow-up: job {self.row.args['about']} was {self.row.args['outcome']}"

    @property
    def as_expected(self) -> bool:
        """Whether the job is where it should be at the end."""
        if self.step is None:
            return self.row.state is JobState.COMPLETED
        return self.row.state is self.step.ends and self.step.proof(self.row)

    def began(self, workers: Mapping[str, str]) -> str:
        """Note the first state that is known of it; returns it in words."""
        self.story.append(_state(self.row, workers))
        return self.story[0]

    def saw(self, row: JobRow, workers: Mapping[str, str]) -> str | None:
        """Take in a newer row; returns what has happened since, if anything has."""
        before, self.row = self.row, row
        if _marks(before) == _marks(row):
            return None
        missed = []
        if row.rescues > before.rescues:
            missed.append("rescued")
        if row.snoozes > before.snoozes and row.state is not JobState.SCHEDULED:
            missed.append("snoozed")
        if row.attempt > before.attempt > 0 and before.state is JobState.RUNNING:
            missed.append(f"attempt {before.attempt} failed")
        # A rescued job waits as a failed one does, but nothing has failed.
        waits_rescued = "rescued" in missed and row.state is JobState.RETRYABLE
        happened = ", ".join(missed if waits_rescued else [*missed, _state(row, workers)])
        self.story.append(happened)
        return happened


def _marks(row: JobRow) -> tuple[object, ...]:
    return row.state, row.instance, row.rescues, row.snoozes, row.attempt


def _state(row: JobRow, workers: Mapping[str, str]) -> str:
    match row.state:
        case JobState.RUNNING:
            return f"running on {workers.get(row.instance or '', 'a worker')}"
        case JobState.SCHEDULED if row.snoozes:
            return "snoozed"
        case JobState.RETRYABLE:
            return f"attempt {row.attempt} failed"
        case _:
            return str(row.state.value)
