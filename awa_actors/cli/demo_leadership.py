"""What the demo sees of leadership: the fires of a schedule, and a second process that takes over from a killed one."""

from __future__ import annotations

import datetime as dt
import itertools

import attrs

from awa_actors.cli.demo_app import SCHEDULE
from awa_actors.jobs import JobRow, JobState

SECOND = dt.timedelta(seconds=1)


def nominal_time(row: JobRow) -> dt.datetime | None:
    """The time for which a schedule enqueued a job; None for other jobs."""
    text = row.metadata.get("cron_fire_time")
    return None if text is None else dt.datetime.fromisoformat(text)


@attrs.define
class Fires:
    """What was seen of the schedule.

    Args:
        jobs: those it enqueued, by id, as last seen.
        story: what happened, in words.
        total: how many it enqueued, as the database counts them, once it is paused.
    """

    jobs: dict[int, JobRow] = attrs.field(factory=dict)
    story: list[str] = attrs.field(factory=list)
    total: int | None = None
    noun = "cron"
    name = SCHEDULE
    title = "fires every second, once, whoever leads"

    def saw(self, row: JobRow) -> str | None:
        """Take in a job of the schedule; returns what has happened if it is new."""
        is_new = row.id not in self.jobs
        self.jobs[row.id] = row
        if not is_new:
            return None
        time = nominal_time(row)
        self.story.append(f"{time:%H:%M:%S}" if len(self.jobs) == 1 else f"{time::%S}")
        return f"fired for {time:%H:%M:%S}: job {row.id}"

    def after(self, instant: dt.datetime) -> int:
        """Count the fires whose nominal time is later."""
        return sum(time > instant for time in self._times())

    def _times(self) -> list[dt.datetime]:
        return sorted(time for row in self.jobs.values() if (time := nominal_time(row)) is not None)

    @property
    def problem(self) -> str | None:
        """Which second between the first fire and the last has no job or several, once all of them are known."""
        times = self._times()
        for before, after in itertools.pairwise(times):
            if before == after:
                return f"the schedule enqueued two jobs for {before:%H:%M:%S}"
            if self._all_known and after - before != SECOND:
                return f"the schedule enqueued no job for {before + SECOND:%H:%M:%S}"
        return None

    @property
    def _all_known(self) -> bool:
        return self.total is not None and len(self.jobs) == self.total

    @property
    def as_expected(self) -> bool:
        """Whether every second had its job, and all of them are done."""
        done = all(row.state is JobState.COMPLETED for row in self.jobs.values())
        return self._all_known and done and self.problem is None


@attrs.define
class Takeover:
    """What was seen of the change of leader.

    Args:
        leader: the process that is killed, and its term.
        term: of the one that is killed.
        killed_at: when it was dead.
        successor: the process that leads then.
        new_term: its term.
        seconds: from the death until somebody was seen to lead.
        story: what happened, in words.
    """

    leader: str | None = None
    term: int = 0
    killed_at: dt.datetime | None = None
    successor: str | None = None
    new_term: int = 0
    seconds: float | None = None
    story: list[str] = attrs.field(factory=list)
    noun = "leader"
    name = "maintenance"
    title = "is killed, the stand-by takes over"

    def led(self, leader: str, term: int) -> str:
        """Note who leads; returns it in words."""
        self.leader, self.term = leader, term
        self.story.append(f"{leader} leads, term {term}")
        return self.story[-1]

    def killed(self, at: dt.datetime) -> str:
        """Note that it is dead."""
        self.killed_at = at
        self.story.append(f"{self.leader} was killed")
        return self.story[-1]

    def succeeded(self, successor: str, term: int, seconds: float) -> str:
        """Note who leads now."""
        self.successor, self.new_term, self.seconds = successor, term, seconds
        self.story.append(f"{successor} leads, term {term}, after {seconds:.1f} s")
        return self.story[-1]

    @property
    def as_expected(self) -> bool:
        """Whether another process leads, in a later term."""
        return self.successor is not None and self.successor != self.leader and self.new_term > self.term
