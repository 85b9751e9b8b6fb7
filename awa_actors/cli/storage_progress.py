"""How waiting for the end of a move looks: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Protocol

import attrs

from awa_actors.cli.output import seconds, shown
from awa_actors.core.transition import Drain, Transition

QUIET = 5.0
"""Seconds between lines that only tell other numbers."""


class Progress(Protocol):
    """What is told of a wait."""

    def saw(self, now: Transition | None, drain: Drain, trouble: str | None) -> None:
        """One look: how things stand, or why they could not be seen."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def progress(*, silent: bool) -> Progress:
    """Choose what fits where standard output goes."""
    if silent:
        return Nothing()
    return Bar() if sys.stdout.isatty() else Lines()


def left(now: Transition, drain: Drain) -> str:
    """Say what the canonical plane still has, and how long that takes."""
    backlog, rate, wait = now.canonical_live_backlog, drain.rate, drain.seconds_left
    if not backlog:
        return "empty"
    said = f"{backlog:,} live jobs"
    if rate is not None:
        said += f", {rate:,.0f}/s leave" if rate > 0 else ", none leaves" if rate == 0 else f", {-rate:,.0f}/s more"
    return said if wait is None else f"{said}, about {seconds(wait)} left"


def _reasons(now: Transition) -> str:
    """What is in the way beside the backlog, which is told in numbers."""
    return "; ".join(reason for reason in now.blockers["finalize"] if "canonical plane has" not in reason)


class Nothing:
    """For --json, which answers at the end."""

    def saw(self, now: Transition | None, drain: Drain, trouble: str | None) -> None:
        """Nothing."""

    def __enter__(self) -> Nothing:
        """Nothing to prepare."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put back."""


@attrs.define
class Lines(Nothing):
    """A line when something else is in the way, and now and then one with the numbers."""

    _said: str | None = None
    _told_at: float = 0.0

    def saw(self, now: Transition | None, drain: Drain, trouble: str | None) -> None:
        """Print what is new."""
        if now is None:
            kind = text = f"waiting for the database: {trouble}"
        elif now.state == "active":
            return
        else:
            reasons = _reasons(now)
            text = "; ".join(part for part in (f"canonical plane: {left(now, drain)}", reasons) if part)
            kind = f"{now.canonical_live_backlog == 0} {reasons}"
        if kind != self._said or time.monotonic() - self._told_at >= QUIET:
            self._said, self._told_at = kind, time.monotonic()
            print(shown(text), flush=True)


class Bar(Nothing):
    """A bar that fills as the canonical plane empties."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar: Any = Progress(TextColumn("canonical plane"), BarColumn(), TextColumn("{task.description}"))
        self._task: Any = self._bar.add_task("looking", total=None)

    def saw(self, now: Transition | None, drain: Drain, trouble: str | None) -> None:
        """Move the bar."""
        if now is None:
            self._bar.update(self._task, description=shown(f"waiting for the database: {trouble}"))
            return
        most = max(1, drain.largest)
        parts = (left(now, drain), "" if now.state == "active" else _reasons(now))
        self._bar.update(
            self._task,
            total=most,
            completed=most - now.canonical_live_backlog,
            description=shown("; ".join(part for part in parts if part)),
        )

    def __enter__(self) -> Bar:
        """Take the terminal."""
        self._bar.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        """Give the terminal back; the last bar stays."""
        self._bar.__exit__(*details)
