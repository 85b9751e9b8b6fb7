"""The tasks of a running worker as a tree. A test looks for the name of each in the source."""

from collections.abc import Iterator
from html import escape

import attrs
from drawing import picture

STEP, INDENT, LEFT = 30, 34, 16


@attrs.frozen
class Task:
    """One task or nursery of the tree.

    Args:
        name: as Trio shows it; what stands in `<…>` is not part of it.
        says: what it is for.
        children: what it starts.
        scope: drawn as a cancel scope that ends together.
    """

    name: str
    says: str = ""
    children: tuple["Task", ...] = ()
    scope: bool = False


LANES = tuple(
    Task(f"lane {name}", says)
    for name, says in (
        ("promote", "due jobs become available"),
        ("rescue", "takes attempts back from dead workers, passed deadlines, expired callbacks"),
        ("hygiene", "turns rings, truncates, ends retention"),
        ("refresh", "the numbers that dashboards read"),
    )
)
TERM = Task(
    "<term>",
    "while it leads: a cancel scope that ends when the lease is not renewed",
    (Task("renew lease", "compare-and-swap on holder and term"), *LANES),
    scope=True,
)
CRON_TERM = Task("<term of cron>", "fires schedules, while it leads those", scope=True)
CANDIDATE = Task(
    "maintenance candidate",
    "absent with maintenance=False",
    (
        Task("maintenance leader", "stands for election, holds, stands again", (TERM,)),
        Task("cron of <application> leader", "only where schedules are declared", (CRON_TERM,)),
    ),
)
WORKER = Task(
    "run_worker",
    "what you start in your nursery",
    (
        Task(
            "services of handlers",
            "started first, last to go",
            (
                Task("follow-up dispatcher", "plans follow-up jobs; touches nobody's connection"),
                Task("observers", "calls on_event functions, best effort"),
                Task("completer", "records completions in batches, on a connection of its own"),
                Task("reschedule", "records retries, snoozes, failures"),
                Task("liveness", "registers the instance; a thread beats"),
            ),
        ),
        Task("listener", "LISTEN: new work, cancellations, leadership"),
        Task("watch running attempts", "finds cancelled and lost attempts by polling"),
        Task("overrides", "follows what operators tune"),
        Task("descriptors", "publishes what the application says about queues and kinds"),
        CANDIDATE,
        Task("dispatcher <queue>", "permits, rate limit, claim; one per queue"),
        Task("attempts", "handlers: each that waits has a task and a cancel scope of its own", scope=True),
    ),
)


def tree_picture(root: Task = WORKER) -> str:
    """Draw the tree, one line per task."""
    rows = list(_rows(root, 0))
    parts = []
    last_at: dict[int, float] = {}
    for number, (task, depth) in enumerate(rows):
        y = STEP * number + STEP / 2
        x = LEFT + INDENT * depth
        if depth:
            top = last_at[depth - 1] + 9
            parts.append(f'<path d="M{x - INDENT + 8},{top} V{y} H{x - 4}" class="quiet"/>')
        kind = "end" if task.scope else ""
        name = task.name.removeprefix("<").removesuffix(">") if task.name.startswith("<") else task.name
        width = 8.3 * len(name) + 16
        parts.append(f'<rect class="{kind}" x="{x}" y="{y - 11}" width="{width:.0f}" height="22" rx="6"/>')
        parts.append(f'<text class="left" x="{x + 8}" y="{y}">{escape(name)}</text>')
        parts.append(f'<text class="left small" x="{x + width + 10:.0f}" y="{y}">{escape(task.says)}</text>')
        last_at[depth] = y
    return picture(900, STEP * len(rows) + 6, "The tree of tasks of a running worker", parts)


def _rows(task: Task, depth: int) -> Iterator[tuple[Task, int]]:
    yield task, depth
    for child in task.children:
        yield from _rows(child, depth + 1)
