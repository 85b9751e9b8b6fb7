"""The life of a job, drawn and told from the table `awa_actors.core.lifecycle.LIFECYCLE`.

Only places and bends are chosen here. A move that the table gains appears by itself, as a straight line if need be.
"""

from collections import defaultdict
from collections.abc import Iterable

from drawing import Arrow, Box, picture

from awa_actors.core.lifecycle import ENDED, LIFECYCLE, Move, Mover
from awa_actors.jobs import JobState

S = JobState
WIDTH, HEIGHT = 900, 400
PLACES = {
    S.SCHEDULED: (225, 55),
    S.RETRYABLE: (225, 345),
    S.AVAILABLE: (225, 200),
    S.RUNNING: (490, 200),
    S.WAITING_EXTERNAL: (490, 345),
    S.COMPLETED: (800, 90),
    S.FAILED: (800, 200),
    S.CANCELLED: (800, 310),
}
PANELS = {
    "workers": ("What producers and workers do", (Mover.PRODUCER, Mover.WORKER)),
    "maintenance": ("What maintenance does", (Mover.MAINTENANCE,)),
    "outside": ("What the outside world does through callbacks", (Mover.OUTSIDE,)),
}
BENDS: dict[tuple[JobState | None, JobState | None], float] = {
    (S.RUNNING, S.AVAILABLE): -32,
    (S.RUNNING, S.WAITING_EXTERNAL): 34,
    (S.WAITING_EXTERNAL, S.RUNNING): 34,
    (S.WAITING_EXTERNAL, S.COMPLETED): 16,
    (S.WAITING_EXTERNAL, S.FAILED): -12,
}


def lifecycle_picture(panel: str) -> str:
    """Draw the usual moves of one panel."""
    title, movers = PANELS[panel]
    nowhere = Box(35, 200, "", 14, 14)
    boxes: dict[JobState | None, Box] = {
        state: Box(x, y, state.value, kind="end" if state in ENDED else "") for state, (x, y) in PLACES.items()
    }
    boxes[None] = nowhere
    arrows = [
        Arrow(boxes[before], boxes[after], " · ".join(names), kind, BENDS.get((before, after), 0), _at(before, after))
        for (before, after, kind), names in _usual(movers).items()
    ]
    drawn = [arrow.svg() for arrow in arrows]
    start = ['<circle cx="35" cy="200" r="7" fill="currentColor"/>'] if _starts(movers) else []
    return picture(WIDTH, HEIGHT, title, [*start, *(boxes[state].svg() for state in PLACES), *drawn])


def _starts(movers: Iterable[Mover]) -> bool:
    return any(None in move.before for move in LIFECYCLE if move.mover in movers)


def _at(before: JobState | None, after: JobState | None) -> float:
    """Labels of lines that come from or go to one place stay apart when they sit nearer to the other end."""
    if before is S.RUNNING and after in (*ENDED, S.SCHEDULED, S.RETRYABLE):
        return 0.62
    return 0.5


def _usual(movers: Iterable[Mover]) -> dict[tuple[JobState | None, JobState | None, str], list[str]]:
    """Names of the moves between each two states."""
    found: dict[tuple[JobState | None, JobState | None, str], list[str]] = defaultdict(list)
    for move in LIFECYCLE:
        if move.mover not in movers:
            continue
        for before in move.before:
            for after in move.after[: move.usual]:
                if after is not None and before is not after:
                    found[before, after, move.mover.value.split()[0]].append(move.name.replace("_", " "))
    return found


def lifecycle_table() -> str:
    """Every move, as a table in Markdown."""
    rows = [
        f"| `{move.name}` | {move.mover.value} | {_before(move)} | {_after(move)} | {move.says} |" for move in LIFECYCLE
    ]
    return "\n".join(["| move | by | from | to | when |", "| --- | --- | --- | --- | --- |", *rows])


def _before(move: Move) -> str:
    return ", ".join("(new)" if state is None else state.value for state in move.before)


def _after(move: Move) -> str:
    names = ["(gone)" if state is None else state.value for state in move.after]
    usual = [f"**{name}**" for name in names[: move.usual]]
    return ", ".join([*usual, *names[move.usual :]])
