"""Accept or reject a recorded run: ``python -m model.replay [--partial] FILE`` (``-`` for standard input).

A log has one JSON object per line: ``{"t": ..., "job_id": 7, "run_lease": 1, "from": "available", "to": "running",
"by": "claim"}``. The runtime writes such lines to the logger ``awa_actors.trace`` at debug level, each when it has
heard that its transaction committed. Lines without ``job_id`` are about the storage transition. Text before the first
brace of a line is skipped, and so are lines without one, so that a log file can be read as it is.

The first step that is not allowed is named, with the line. ``--partial``: the log is of one process among several, so
that steps in between may be missing; then only what a line says by itself and the order of run_leases are checked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from model.transitions import JOBS, NOWHERE, STORAGE, Rule


class NotAllowed(Exception):
    """A step that no machine can take; the text says which line and why."""


@attrs.define(eq=False)
class Replay:
    """What is known of every job, and of the storage.

    Args:
        partial: steps may be missing.
    """

    partial: bool = False
    jobs: dict[int, tuple[str, int]] = attrs.field(factory=dict)
    storage: str | None = None
    steps: int = 0

    def take(self, number: int, line: dict[str, Any]) -> None:
        """Take one step.

        Args:
            number: of the line, for the error.
            line: the step.

        Raises:
            NotAllowed: it is not one that can follow.
        """
        missing = {"from", "to", "by"} - line.keys()
        if missing:
            raise NotAllowed(f"line {number}: {', '.join(sorted(missing))} missing in {json.dumps(line)}")
        reason = self._job(line) if line.get("job_id") is not None else self._transition(line)
        if reason is not None:
            raise NotAllowed(f"line {number}: {reason}: {json.dumps(line)}")
        self.steps += 1

    def _job(self, line: dict[str, Any]) -> str | None:
        """Why a job's step is not allowed."""
        job_id, lease, state = line["job_id"], line.get("run_lease", 0), line["from"] or NOWHERE
        refused = _refused(JOBS, line)
        if refused is not None:
            return refused
        known = self.jobs.get(job_id)
        if known is None and not self.partial and state != NOWHERE:
            return f"job {job_id} was never inserted"
        before, reached = known or (state, lease - max(JOBS[line["by"]].lease))
        if not self.partial and before != state:
            return f"job {job_id} is {before or 'not there'}, not {state or 'not there'}"
        grown = lease - reached
        if grown not in JOBS[line["by"]].lease and not (self.partial and grown >= 0):
            return f"run_lease of job {job_id} was {reached}, and {line['by']} makes it {lease}"
        self.jobs[job_id] = (line["to"] or NOWHERE, lease)
        return None

    def _transition(self, line: dict[str, Any]) -> str | None:
        """Why a step of the storage is not allowed."""
        refused = _refused(STORAGE, line)
        if refused is None and self.storage not in (None, line["from"]):
            refused = f"storage is {self.storage}, not {line['from']}"
        self.storage = line["to"]
        return refused


def _refused(rules: dict[str, Rule], line: dict[str, Any]) -> str | None:
    rule = rules.get(line["by"])
    if rule is None:
        return f"nobody is called {line['by']!r}"
    if (line["from"] or NOWHERE) not in rule.before or (line["to"] or NOWHERE) not in rule.after:
        return f"{line['by']} does not lead from {line['from'] or 'nowhere'} to {line['to'] or 'nowhere'}"
    return None


def parsed(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The steps of a log with the numbers of their lines.

    Raises:
        NotAllowed: a line has a brace and is not JSON from there on.
    """
    for number, text in enumerate(lines, 1):
        _, brace, rest = text.partition("{")
        if brace:
            try:
                yield number, json.loads(brace + rest)
            except ValueError as error:
                raise NotAllowed(f"line {number} is not JSON: {error}") from None


def replay(lines: Iterable[str], *, partial: bool = False) -> Replay:
    """Replay a log.

    Raises:
        NotAllowed: naming the first step that is not allowed.
    """
    run = Replay(partial)
    for number, line in parsed(lines):
        run.take(number, line)
    return run


def main(arguments: list[str]) -> int:
    """Replay the file that is named, and say what came of it; 1 when it is rejected."""
    files = [argument for argument in arguments if not argument.startswith("--")]
    if len(files) != 1:
        print("usage: python -m model.replay [--partial] FILE", file=sys.stderr)
        return 2
    partial = "--partial" in arguments
    try:
        if files[0] == "-":
            run = replay(sys.stdin, partial=partial)
        else:
            with open(files[0], encoding="utf-8") as log:
                run = replay(log, partial=partial)
    except OSError as error:
        print(f"cannot read {files[0]}: {error.strerror}", file=sys.stderr)
        return 2
    except NotAllowed as reason:
        print(f"rejected: {reason}", file=sys.stderr)
        return 1
    print(f"accepted: {run.steps} steps of {len(run.jobs)} jobs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
