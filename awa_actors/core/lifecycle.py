"""The lifecycle as a table: every way in which a job may change its state, and who makes it.

An illegal move is an absent row. The documentation draws its pictures from here, and tests hold the table against what
the attempt boundary decides and against the rules by which logs of real runs are replayed.
"""

from __future__ import annotations

import enum

import attrs

from awa_actors.jobs import JobState

S = JobState
WAITING = (S.AVAILABLE, S.SCHEDULED, S.RETRYABLE)
ENDED = (S.COMPLETED, S.FAILED, S.CANCELLED)


class Mover(enum.Enum):
    """Who makes a move."""

    PRODUCER = "producer"
    WORKER = "worker"
    MAINTENANCE = "maintenance"
    OUTSIDE = "outside world"
    OPERATOR = "operator"
    STORE = "store"


@attrs.frozen
class Move:
    """One way in which jobs change their state.

    Args:
        name: what it is called in logs and pictures.
        mover: who makes it.
        before: states it starts from; None is a job that does not exist yet.
        after: states it may end in, usual ones first; None is a job whose history is gone.
        says: what happens, in a few words.
        usual: how many of the states in `after` are usual.
    """

    name: str
    mover: Mover
    before: tuple[JobState | None, ...]
    after: tuple[JobState | None, ...]
    says: str
    usual: int = 1


LIFECYCLE = (
    Move("insert", Mover.PRODUCER, (None,), (S.AVAILABLE, S.SCHEDULED), "scheduled when it has a run_at", 2),
    Move("claim", Mover.WORKER, (S.AVAILABLE,), (S.RUNNING,), "an attempt begins, run_lease grows"),
    Move("complete", Mover.WORKER, (S.RUNNING,), (S.COMPLETED,), "the handler returned"),
    Move("retry", Mover.WORKER, (S.RUNNING,), (S.RETRYABLE, S.FAILED), "it raised; failed after the last attempt"),
    Move("fail", Mover.WORKER, (S.RUNNING,), (S.FAILED,), "it raised TerminalError, or the args do not fit"),
    Move("snooze", Mover.WORKER, (S.RUNNING,), (S.SCHEDULED,), "it returned Snooze; not counted"),
    Move("cancel", Mover.WORKER, (S.RUNNING,), (S.CANCELLED,), "it returned Cancel"),
    Move(
        "park",
        Mover.WORKER,
        (S.RUNNING,),
        (S.WAITING_EXTERNAL, S.AVAILABLE, S.FAILED),
        "it returned WaitForCallback; available if the answer was there already, failed without a callback",
    ),
    Move(
        "interrupt",
        Mover.WORKER,
        (S.RUNNING,),
        (S.AVAILABLE, S.RETRYABLE, S.FAILED),
        "its worker was stopped; counted as a failure only after many interruptions",
    ),
    Move("give_back", Mover.WORKER, (S.RUNNING,), (S.AVAILABLE,), "it was claimed and never began; not counted"),
    Move(
        "resolve",
        Mover.OUTSIDE,
        (S.RUNNING, S.WAITING_EXTERNAL),
        (S.COMPLETED, S.FAILED, S.AVAILABLE, S.RUNNING, S.WAITING_EXTERNAL),
        "a callback is answered: completed, failed, retried or resumed",
        4,
    ),
    Move(
        "await",
        Mover.WORKER,
        (S.RUNNING, S.WAITING_EXTERNAL),
        (S.WAITING_EXTERNAL, S.RUNNING),
        "a handler begins or ends to wait inside",
        2,
    ),
    Move("promote", Mover.MAINTENANCE, (S.SCHEDULED, S.RETRYABLE), (S.AVAILABLE, S.FAILED), "it is due"),
    Move(
        "rescue",
        Mover.MAINTENANCE,
        (S.RUNNING,),
        (S.RETRYABLE, S.FAILED),
        "its worker is gone; not counted, failed after many rescues",
    ),
    Move("deadline", Mover.MAINTENANCE, (S.RUNNING,), (S.RETRYABLE, S.FAILED), "it ran beyond its deadline; counted"),
    Move(
        "expire",
        Mover.MAINTENANCE,
        (S.WAITING_EXTERNAL, S.RUNNING),
        (S.RETRYABLE, S.FAILED),
        "nobody answered its callback in time; counted",
    ),
    Move("forget", Mover.MAINTENANCE, ENDED, (None,), "retention is over"),
    Move(
        "admin_cancel",
        Mover.OPERATOR,
        (*WAITING, S.RUNNING, S.WAITING_EXTERNAL),
        (S.CANCELLED,),
        "cancelled; a running handler is told",
    ),
    Move(
        "admin_retry",
        Mover.OPERATOR,
        (S.FAILED, S.CANCELLED, S.WAITING_EXTERNAL, *WAITING),
        (S.AVAILABLE, S.SCHEDULED),
        "run again, now or later, attempts from 0, run_lease kept",
    ),
    Move(
        "duplicate",
        Mover.STORE,
        (*WAITING, S.RUNNING, S.WAITING_EXTERNAL, S.FAILED, S.CANCELLED),
        (S.CANCELLED,),
        "a newer job holds its unique key",
    ),
    Move(
        "postpone",
        Mover.STORE,
        (S.RUNNING, S.AVAILABLE, S.WAITING_EXTERNAL, S.SCHEDULED, S.FAILED, S.CANCELLED),
        (S.SCHEDULED, S.RETRYABLE),
        "its kind is unknown here, or its unique key is being decided",
    ),
    Move("unclaimable", Mover.STORE, (S.AVAILABLE,), (S.FAILED,), "the row itself is broken; it stops no other"),
    Move(
        "unrecordable",
        Mover.STORE,
        (*WAITING, S.RUNNING, S.WAITING_EXTERNAL),
        (S.FAILED,),
        "its end cannot be written as asked; it ends with the reason",
    ),
)
"""In the order of a job's life. The store's moves are what it does when it cannot do what was asked."""


def reachable(state: JobState) -> frozenset[JobState | None]:
    """The states that one move may lead to."""
    return frozenset(after for move in LIFECYCLE if state in move.before for after in move.after)
