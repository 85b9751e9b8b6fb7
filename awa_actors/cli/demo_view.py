"""How the demo looks: a table that changes on a terminal, a line per event elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from awa_actors.cli.output import shown

if TYPE_CHECKING:
    from rich.table import Table


class Watched(Protocol):
    """One thing that the demo shows: a job, the schedule, the change of leader."""

    @property
    def noun(self) -> str: ...  # noqa: D102 - the names say it, here and below
    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def title(self) -> str: ...  # noqa: D102
    @property
    def story(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def as_expected(self) -> bool: ...  # noqa: D102


class View(Protocol):
    """What the demo tells its spectators."""

    def say(self, text: str) -> None:
        """Something happened to nothing of what is watched."""

    def moved(self, one: Watched, happened: str) -> None:
        """Something happened to what is watched."""

    def draw(self, watched: Sequence[Watched]) -> None:
        """This is how things stand."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


def view(*, silent: bool) -> View:
    """Choose the view that fits where standard output goes."""
    if silent:
        return Silence()
    return LiveTable() if sys.stdout.isatty() else Lines()


@attrs.define
class Silence:
    """For --json, which answers at the end."""

    def say(self, text: str) -> None:
        """Nothing."""

    def moved(self, one: Watched, happened: str) -> None:
        """Nothing."""

    def draw(self, watched: Sequence[Watched]) -> None:
        """Nothing."""

    def __enter__(self) -> View:
        """Nothing to prepare."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put back."""


@attrs.define
class Lines(Silence):
    """One line per event, for pipes and logs."""

    _began: float = attrs.field(factory=time.monotonic)

    def say(self, text: str) -> None:
        """Print it with the time since the beginning."""
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def moved(self, one: Watched, happened: str) -> None:
        """Print what happened."""
        self.say(f"{one.noun:<7} {one.name:<12} {happened:<24} ({shown(one.title)})")


class LiveTable(Silence):
    """A table of all that is watched, drawn anew, under the lines that are said."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live: Any = Live(refresh_per_second=10)

    def say(self, text: str) -> None:
        """Print it above the table."""
        self._live.console.print(text, markup=False, highlight=False)

    def draw(self, watched: Sequence[Watched]) -> None:
        """Draw the table."""
        self._live.update(_table(watched))

    def __enter__(self) -> View:
        """Take the terminal."""
        self._live.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        """Give the terminal back; the last table stays."""
        self._live.__exit__(*details)


def _table(watched: Sequence[Watched]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("what", "name", "what to see", "what happened"):
        table.add_column(name)
    for one in watched:
        style = "green" if one.as_expected else ""
        cells = (one.noun, one.name, one.title, " → ".join(one.story))
        table.add_row(*(Text(shown(cell)) for cell in cells), style=style)
    return table
