"""How the drain demo looks: two bars side by side on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from rich.table import Table

EVERY = 0.5
"""Seconds between lines that only tell other numbers."""
WIDTH = 24


@attrs.frozen
class Scene:
    """How things stand.

    Args:
        state: of the transition.
        canonical: live jobs of the canonical plane.
        queue: those of the queue plane.
        most: the most that either has had.
        heartbeats: runs of the jobs that snooze for ever.
        produced: jobs that producers have enqueued since the beginning.
    """

    state: str
    canonical: int
    queue: int
    most: int
    heartbeats: int
    produced: int


class DrainView(Protocol):
    """What the demo tells its spectators."""

    def say(self, text: str) -> None:
        """Something happened."""

    def draw(self, scene: Scene) -> None:
        """This is how things stand."""

    def __enter__(self) -> DrainView: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def drain_view(*, silent: bool) -> DrainView:
    """Choose the view that fits where standard output goes."""
    if silent:
        return Silence()
    return Bars() if sys.stdout.isatty() else Lines()


class Silence:
    """For --json, which answers at the end."""

    def say(self, text: str) -> None:
        """Nothing."""

    def draw(self, scene: Scene) -> None:
        """Nothing."""

    def __enter__(self) -> Silence:
        """Nothing to prepare."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put back."""


@attrs.define
class Lines(Silence):
    """For pipes and logs."""

    _began: float = attrs.field(factory=time.monotonic)
    _last: Scene | None = None
    _told_at: float = 0.0

    def say(self, text: str) -> None:
        """Print it with the time since the beginning."""
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def draw(self, scene: Scene) -> None:
        """Print both planes, when something has changed that is worth a line."""
        now, last = time.monotonic(), self._last
        turned = last is None or last.state != scene.state or (last.canonical == 0) != (scene.canonical == 0)
        if turned or (scene != last and now - self._told_at >= EVERY):
            self._last, self._told_at = scene, now
            planes = f"canonical {_bar(scene.canonical, scene.most)} {scene.canonical:>4}"
            planes += f"   queue {_bar(scene.queue, scene.most)} {scene.queue:>4}"
            self.say(f"{scene.state:<17}{planes}   snoozed {scene.heartbeats} times, {scene.produced} new jobs")


def _bar(count: int, most: int) -> str:
    filled = -(-count * 12 // most) if most else 0
    return "#" * filled + "." * (12 - filled)


class Bars(Silence):
    """Two bars that change places, under the lines that are said."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live: Any = Live(refresh_per_second=10)

    def say(self, text: str) -> None:
        """Print it above the bars."""
        self._live.console.print(text, markup=False, highlight=False)

    def draw(self, scene: Scene) -> None:
        """Draw the bars."""
        self._live.update(_side_by_side(scene))

    def __enter__(self) -> Bars:
        """Take the terminal."""
        self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        """Give the terminal back; the last bars stay."""
        self._live.__exit__(*details)


def _side_by_side(scene: Scene) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("canonical plane", "", "queue plane", "", "state", "snoozed", "new jobs"):
        table.add_column(name)
    most = max(1, scene.most)
    table.add_row(
        ProgressBar(most, scene.canonical, WIDTH, complete_style="yellow", finished_style="yellow"),
        str(scene.canonical),
        ProgressBar(most, scene.queue, WIDTH, complete_style="green", finished_style="green"),
        str(scene.queue),
        scene.state,
        f"{scene.heartbeats} times",
        str(scene.produced),
    )
    return table
