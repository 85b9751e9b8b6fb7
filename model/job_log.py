"""One job's lines in a log, followed through the lifecycle: in the order of the database, with what nobody could log.

The time of a line was read while the job's row was locked, so it orders the steps of a job; that of a claim is a little
earlier, since it was read when the claim began. Steps are missing where a process was killed or an answer was lost;
they are filled in only as far as those who were silent could have done them.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Sequence
from typing import Any

import attrs

from model.transitions import ATTEMPT, JOBS, LIVE, NOWHERE, SILENT, WAITING

EARLY = dt.timedelta(seconds=10)
"""How much earlier than its commit the time of a claim may be."""
Whereabouts = tuple[str, int, str | None]
"""State, run_lease and instance of a job."""
MOST_MISSING = 4
"""Steps that may be missing between two lines of a job: a claim, its end, a promotion and one more."""


@attrs.frozen
class Line:
    """One line: where it stands, what it says, and when that happened (None: in the order of the lines)."""

    place: str
    says: dict[str, Any]
    at: dt.datetime | None

    @property
    def before(self) -> str:
        """The state it leads from."""
        return self.says["from"] or NOWHERE

    @property
    def after(self) -> str:
        """The state it leads to."""
        return self.says["to"] or NOWHERE

    @property
    def lease(self) -> int:
        """The run_lease it leads to."""
        return int(self.says.get("run_lease", 0))


@attrs.define
class Silence:
    """Who may have done what without a line.

    Args:
        anybody: every process may: the log is of some processes among several.
        killed: a process ended without saying so.
        steps: those of which an answer was lost somewhere.
        instances: whose attempts processes in order ran; everything of theirs is logged.
        waits: attempts (job, run_lease) whose handlers waited inside, so that they change between two states.
    """

    anybody: bool = False
    killed: bool = False
    steps: set[str] = attrs.field(factory=set)
    instances: set[str] = attrs.field(factory=set)
    waits: set[tuple[Any, int]] = attrs.field(factory=set)

    def allows(self, name: str, owner: str | None) -> bool:
        """Whether a step may be missing; `owner`: of the attempt that it begins or ends."""
        if self.anybody or name in SILENT or name in self.steps:
            return True
        return self.killed and not (name in ATTEMPT | {"claim"} and owner in self.instances)


@attrs.define
class Follower:
    """Where a job is.

    Args:
        key: the job.
        silence: what may be missing.
    """

    key: Any
    silence: Silence
    state: str | None = None
    lease: int = 0
    owner: str | None = None

    def follow(self, lines: Sequence[Line]) -> tuple[Line, str] | None:
        """Follow all lines of the job; returns the first that is not allowed, and why."""
        left = deque(lines)
        while left:
            first, index = left[0], 0
            reason = self.refused(first)
            if reason is not None and not self._somebody_else(first):
                sooner = (n for n, line in enumerate(left) if n and near(first, line) and not self.refused(line))
                index = next(sooner, 0)
                if index == 0 and not self._fill_in(first):
                    return first, reason
            line = left[index]
            del left[index]
            self._go(line)
        return None

    def refused(self, line: Line) -> str | None:
        """Why a line cannot be the next one, or None."""
        says, rule, job = line.says, JOBS[line.says["by"]], line.says["job_id"]
        state, lease = (line.before, line.lease) if self.state is None else (self.state, self.lease)
        if self.state is None:  # an insertion need not be logged, but then this job has not run before
            lease -= max(rule.lease)
            if state not in (NOWHERE, *WAITING) or lease != 0:
                return f"job {job} has no beginning"
        waits = (self.key, lease) in self.silence.waits and {state, line.before} <= set(LIVE)
        if state != line.before and not waits:
            return f"job {job} is {state or 'not there'}, not {line.before or 'not there'}"
        if line.lease - lease not in rule.lease:
            return f"run_lease of job {job} was {lease}, and {says['by']} makes it {line.lease}"
        owner = says.get("instance")
        if says["by"] in ATTEMPT and None not in (owner, self.owner) and owner != self.owner:
            return f"the attempt of job {job} is of instance {self.owner}, not of {owner}"
        return None

    def _somebody_else(self, line: Line) -> bool:
        """Whether others, whose logs are not here, may have moved the job to where a line begins."""
        lease = line.lease - max(JOBS[line.says["by"]].lease)
        return self.silence.anybody and (self.state is None or lease > self.lease)

    def _go(self, line: Line) -> None:
        self.state, self.lease = line.after, line.lease
        if line.says["by"] == "claim":
            self.owner = line.says.get("instance")

    def _fill_in(self, line: Line) -> bool:
        """Whether steps nobody logged lead to where a line begins; the fewest are taken as done."""
        start = (self.state if self.state is not None else NOWHERE, self.lease, self.owner)
        paths, seen = deque([(start, 0)]), {start}
        while paths:
            at, length = paths.popleft()
            self.state, self.lease, self.owner = at
            if length and self.refused(line) is None:
                return True
            if length == MOST_MISSING or self.lease > line.lease:
                continue
            for after in self._silent_steps(at, line.says.get("instance")):
                if after not in seen:
                    seen.add(after)
                    paths.append((after, length + 1))
        self.state, self.lease, self.owner = None if start[0] == NOWHERE else start[0], start[1], start[2]
        return False

    def _silent_steps(self, at: Whereabouts, next_owner: str | None) -> list[Whereabouts]:
        state, lease, owner = at
        found = []
        for name, rule in JOBS.items():
            if state not in rule.before:
                continue
            whose = next_owner if name == "claim" else owner
            for grown in rule.lease:
                if self.silence.allows(name, whose):
                    found += [(after, lease + grown, whose if name == "claim" else owner) for after in rule.after]
        return found


def near(first: Line, other: Line) -> bool:
    """Whether another line, later by its time, may have happened before the first one."""
    return (
        first.says["by"] == "claim" and first.at is not None and other.at is not None and other.at - first.at <= EARLY
    )
