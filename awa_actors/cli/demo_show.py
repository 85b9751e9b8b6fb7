"""What the demo has seen, and whether that was as it should be."""

from __future__ import annotations

import attrs

from awa_actors.cli.demo_leadership import Fires, Takeover, nominal_time
from awa_actors.cli.demo_plan import STEPS, Track
from awa_actors.cli.demo_view import Watched


@attrs.define
class Show:
    """How far the demo has come."""

    tracks: dict[int, Track] = attrs.field(factory=dict)
    fires: Fires = attrs.field(factory=Fires)
    takeover: Takeover = attrs.field(factory=Takeover)
    took: dict[str, float] = attrs.field(factory=dict)
    problem: str | None = None
    log: str = ""

    @property
    def watched(self) -> list[Watched]:
        """Everything there is to see."""
        return [*self.tracks.values(), self.fires, self.takeover]

    @property
    def jobs_done(self) -> bool:
        """Whether every job and every follow-up is where it should be."""
        notes = sum(track.step is None for track in self.tracks.values())
        return (
            len(self.tracks) - notes == len(STEPS)
            and notes == sum(step.follow_ups for step in STEPS)
            and all(track.as_expected for track in self.tracks.values())
        )

    @property
    def finished(self) -> bool:
        """Whether everything went as it should."""
        return self.jobs_done and self.fires.as_expected and self.takeover.as_expected

    def left(self) -> str:
        """What has not got to its end yet, in words."""
        parts = [f"{one.noun} {one.name}: {(one.story or ['nothing yet'])[-1]}" for one in self.watched
                 if not one.as_expected]  # fmt: skip
        return "; ".join(parts) or "follow-ups are missing"

    def outcome(self, seconds: float) -> dict[str, object]:
        """Give what became of everything, for --json."""
        jobs = [
            {"id": track.row.id, "kind": track.row.kind, "shows": track.title, "state": track.row.state,
             "as_expected": track.as_expected, "story": track.story}
            for track in self.tracks.values()
        ]  # fmt: skip
        fires = [{"time": nominal_time(row), "id": row.id, "state": row.state} for row in self.fires.jobs.values()]
        change = self.takeover
        return {
            "ok": self.finished and self.problem is None,
            "problem": self.problem,
            "seconds": round(seconds, 1),
            "jobs": jobs,
            "schedule": {"name": self.fires.name, "fires": fires, "as_expected": self.fires.as_expected},
            "takeover": {
                "killed": change.leader, "term": change.term, "successor": change.successor,
                "new_term": change.new_term, "seconds": change.seconds, "as_expected": change.as_expected,
            },
        }  # fmt: skip
