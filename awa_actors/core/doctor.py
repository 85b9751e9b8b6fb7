"""What the doctor says: one finding per check, one line each. The facts come from the store, the judgement is pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import attrs


class Status(enum.Enum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    SKIPPED = "skipped"


@attrs.frozen
class Verdict:
    """What one judgement came to: a status, and one line that says what is wrong and what to do about it."""

    status: Status
    line: str


@attrs.frozen
class Finding:
    """One check's verdict."""

    check: str
    status: Status
    line: str


@attrs.frozen
class Process:
    """A registered process, as the doctor looks at it.

    Args:
        id: of the instance.
        role: worker, maintenance or callbacks.
        name: how people find it: role, host and pid.
        alive: its beat is fresh.
        beat_age: seconds since its last stored beat.
        state: as it published it.
        kinds: it has handlers for.
        queues: it works on, with how many attempts at once.
        lanes: as the leader publishes them.
        details: what else it publishes of itself.
    """

    id: str
    role: str
    name: str
    alive: bool
    beat_age: float
    state: str = "running"
    kinds: tuple[str, ...] = ()
    queues: dict[str, int] = attrs.field(factory=dict)
    lanes: dict[str, dict[str, object]] = attrs.field(factory=dict)
    details: dict[str, object] = attrs.field(factory=dict)


def fine(line: str) -> Verdict:
    """Nothing to do."""
    return Verdict(Status.OK, line)


def warn(line: str) -> Verdict:
    """Things work, and somebody should look."""
    return Verdict(Status.WARNING, line)


def bad(line: str) -> Verdict:
    """Something does not work."""
    return Verdict(Status.PROBLEM, line)


def skipped(why: str) -> Verdict:
    """It was not looked at."""
    return Verdict(Status.SKIPPED, why)


def worst(verdicts: Sequence[Verdict], otherwise: str) -> Verdict:
    """Make one verdict of several about one thing; `otherwise` is said when there are none."""
    if not verdicts:
        return fine(otherwise)
    status = Status.PROBLEM if any(one.status is Status.PROBLEM for one in verdicts) else verdicts[0].status
    ordered = sorted(verdicts, key=lambda one: one.status is not Status.PROBLEM)
    return Verdict(status, "; ".join(one.line for one in ordered))


def listed(items: Iterable[object], most: int = 3) -> str:
    """Name the first few of many."""
    names = [str(item) for item in items]
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def ago(seconds: float) -> str:
    """Say a length of time as people do."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def size(count: float) -> str:
    """Say a number of bytes as people do."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def has_problem(findings: Iterable[Finding]) -> bool:
    """Whether the exit status says so."""
    return any(finding.status is Status.PROBLEM for finding in findings)
