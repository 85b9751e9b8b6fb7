"""A move between storage planes as it is known, how fast the older one empties, and durations as people write them."""

from __future__ import annotations

import datetime as dt
import re
from collections import deque
from collections.abc import Mapping
from typing import Any

import attrs

READY_IN_A_ROW = 2
"""Looks in a row that must find nothing in the way before the move is ended: one alone may fall between two jobs."""
WINDOW = 10
"""Looks that a rate is taken from: a few slow ones do not make it, many old ones do not hide a change."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PARTS = re.compile(r"(?:(\d+(?:\.\d+)?)(ms|[smhd]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")


@attrs.frozen
class Mover:
    """How the mover lane may go; None for as fast as it can."""

    paused: bool
    rows_per_second: float | None


@attrs.frozen
class Transition:
    """How things stand.

    Args:
        state: canonical, prepared, mixed_transition or active.
        backlog: live jobs of the canonical plane, by their state.
        queue_rows: what the queue plane holds that going back would strand, by table.
        capabilities: live processes, by what they can do.
        blockers: why a step would be refused now, by step; no reason means that it would not be.
    """

    state: str
    current_engine: str
    active_engine: str
    prepared_engine: str | None
    epoch: int
    schema: str
    entered_at: dt.datetime | None
    finalized_at: dt.datetime | None
    mover: Mover
    backlog: Mapping[str, int]
    queue_rows: Mapping[str, int]
    capabilities: Mapping[str, int]
    blockers: Mapping[str, tuple[str, ...]]

    @property
    def canonical_live_backlog(self) -> int:
        """Jobs that the canonical plane still has to see through."""
        return sum(self.backlog.values())

    def as_json(self) -> dict[str, Any]:
        """Give everything under names that stay."""
        whole = attrs.asdict(self, recurse=False) | {"mover": attrs.asdict(self.mover)}
        whole["canonical_live_backlog"] = self.canonical_live_backlog
        for step, reasons in self.blockers.items():
            whole[f"can_{step}"] = not reasons
        return whole


@attrs.define
class Drain:
    """How fast the canonical plane empties, from looks at it."""

    _looks: deque[tuple[float, int]] = attrs.field(factory=lambda: deque(maxlen=WINDOW))
    largest: int = 0

    def saw(self, backlog: int, at: float) -> None:
        """Take in a look.

        Args:
            backlog: live jobs then.
            at: seconds on any clock that only goes forward.
        """
        self._looks.append((at, backlog))
        self.largest = max(self.largest, backlog)

    @property
    def rate(self) -> float | None:
        """Jobs that leave per second, below zero where they become more; None after fewer than two looks."""
        if len(self._looks) < 2:
            return None
        (first_at, first), (last_at, last) = self._looks[0], self._looks[-1]
        return (first - last) / (last_at - first_at) if last_at > first_at else None

    @property
    def seconds_left(self) -> float | None:
        """How long it takes at this rate; None where that cannot be said."""
        if not self._looks:
            return None
        left, rate = self._looks[-1][1], self.rate
        if left == 0:
            return 0.0
        return left / rate if rate is not None and rate > 0 else None


def read_duration(text: str) -> float | None:
    """Read a length of time such as 90s, 2h, 1h30m or 500ms; None for what is none, or is no time at all.

    Returns:
        Seconds.
    """
    if not _PARTS.fullmatch(text):
        return None
    seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return seconds if 0 < seconds < 1e9 else None
