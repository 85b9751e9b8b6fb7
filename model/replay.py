"""Accept or reject a recorded run: ``python -m model.replay [--partial] FILE [FILE ...]`` (``-`` for standard input).

A log has one JSON object per line, as :mod:`awa_actors.store.trace` writes them: ``{"t": ..., "job_id": 7,
"run_lease": 1, "from": "available", "to": "running", "by": "claim", "instance": ..., "process": ...}``. Lines without
``job_id`` are about leadership (``elected``), the rings (``turn``, ``truncate``), the storage transition, or about the
log itself (``start``, ``stop``, ``unseen``). Text before the first brace of a line is skipped, and so are lines without
one, so that a log file can be read as it is. Several files, or one to which several processes append, are one run.

The first step that is not allowed is named, with the line. ``--partial``: other processes took part whose logs are not
here, so that any steps in between may be missing.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from model.job_log import Follower, Line, Silence
from model.transitions import ATTEMPT, JOBS, NOWHERE, STORAGE, Rule


class NotAllowed(Exception):
    """A step that no machine can take; the text says which line and why."""


@attrs.define(eq=False)
class Replay:
    """What the logs of a run say.

    Args:
        silence: what may be missing.
    """

    silence: Silence = attrs.field(factory=Silence)
    jobs: dict[Any, list[Line]] = attrs.field(factory=lambda: defaultdict(list))
    others: dict[Any, list[Line]] = attrs.field(factory=lambda: defaultdict(list))
    storage: str | None = None
    steps: int = 0

    def take(self, lines: Iterable[Line]) -> None:
        """Read all lines.

        Raises:
            NotAllowed: a line says by itself what no machine can do.
        """
        lines = list(lines)
        started = {line.says.get("process"): line.says for line in lines if line.says.get("by") == "start"}
        stopped = {line.says.get("process") for line in lines if line.says.get("by") == "stop"}
        self.silence.killed = not started.keys() <= stopped
        for line in lines:
            says = line.says
            by, process = says.get("by"), says.get("process")
            if by in ("start", "stop"):
                continue
            if by == "unseen":
                self.silence.steps |= set(says["steps"])
                continue
            if by not in NOTES and (missing := {"from", "to", "by"} - says.keys()):
                raise NotAllowed(f"{line.place}: {', '.join(sorted(missing))} missing in {json.dumps(says)}")
            self.steps += 1
            database = started.get(process, {}).get("database")
            if says.get("job_id") is None:
                self.others[database].append(line)
                continue
            self._check(line, _refused(JOBS, says))
            key = database, says["job_id"]
            if process in stopped and by in ATTEMPT | {"claim"} and says.get("instance") is not None:
                self.silence.instances.add(says["instance"])
            if by == "await":
                self.silence.waits.add((key, line.lease))
            else:
                self.jobs[key].append(line)

    def check(self) -> None:
        """Follow every job, the leaders, the rings and the storage.

        Raises:
            NotAllowed: naming the earliest step that is not allowed.
        """
        wrong = []
        for key, lines in self.jobs.items():
            found = Follower(key, self.silence).follow(in_order(lines))
            if found is not None:
                wrong.append(found)
        if wrong:
            first = in_order([line for line, _ in wrong])[0]
            self._check(first, next(reason for line, reason in wrong if line is first))
        for lines in self.others.values():
            others = Others(self.silence)
            others.follow(in_order(lines))
            self.storage = others.storage

    def _check(self, line: Line, reason: str | None) -> None:
        if reason is not None:
            raise NotAllowed(f"{line.place}: {reason}: {json.dumps(line.says)}")


LONG_AGO = dt.datetime.min.replace(tzinfo=dt.UTC)
NOTES = {"elected", "truncate"}
"""Lines that lead from no state to another."""


@attrs.define
class Others:
    """What is known of everything that is no job."""

    silence: Silence
    storage: str | None = None
    terms: dict[Any, int] = attrs.field(factory=dict)
    rings: dict[str, tuple[int, int]] = attrs.field(factory=dict)

    def follow(self, lines: Iterable[Line]) -> None:
        """Follow all lines.

        Raises:
            NotAllowed: naming the first that is not allowed.
        """
        for line in lines:
            says, reason = line.says, None
            match says["by"]:
                case "elected":
                    before = self.terms.get(says.get("lease"), 0)
                    if says["term"] <= before:
                        reason = f"term {says['term']} does not follow term {before}"
                    self.terms[says.get("lease")] = says["term"]
                case "turn":
                    reason = self._turn(says)
                case "truncate":
                    if self.rings.get(says["ring"], (0, None))[1] == says["slot"]:
                        reason = f"slot {says['slot']} is the one that the {says['ring']} ring writes to"
                case _:
                    reason = _refused(STORAGE, says)
                    if reason is None and self.storage not in (None, says["from"]) and not self.silence.anybody:
                        reason = f"storage is {self.storage}, not {says['from']}"
                    self.storage = says["to"]
            if reason is not None:
                raise NotAllowed(f"{line.place}: {reason}: {json.dumps(says)}")

    def _turn(self, says: dict[str, Any]) -> str | None:
        generation, slot = self.rings.get(says["ring"], (says["generation"] - 1, says["from"]))
        self.rings[says["ring"]] = says["generation"], says["to"]
        missing = self.silence.anybody or self.silence.killed or "turn" in self.silence.steps
        if says["from"] == says["to"]:
            return f"the {says['ring']} ring turns to the slot that it is at"
        if says["generation"] <= generation or (says["generation"] > generation + 1 and not missing):
            return f"the {says['ring']} ring is at turn {generation}"
        if says["generation"] == generation + 1 and slot != says["from"]:
            return f"the {says['ring']} ring is at slot {slot}"
        return None


def in_order(lines: list[Line]) -> list[Line]:
    """By the database's time, where every line has one."""
    if any(line.at is None for line in lines):
        return lines
    return sorted(lines, key=lambda line: line.at or LONG_AGO)


def _refused(rules: dict[str, Rule], says: dict[str, Any]) -> str | None:
    rule = rules.get(says["by"])
    if rule is None:
        return f"nobody is called {says['by']!r}"
    if (says["from"] or NOWHERE) not in rule.before or (says["to"] or NOWHERE) not in rule.after:
        return f"{says['by']} does not lead from {says['from'] or 'nowhere'} to {says['to'] or 'nowhere'}"
    return None


def parsed(lines: Iterable[str], name: str = "") -> Iterator[Line]:
    """The steps of a log; `name`: of the file, where there are several.

    Raises:
        NotAllowed: a line has a brace and is not JSON from there on.
    """
    for number, text in enumerate(lines, 1):
        _, brace, rest = text.partition("{")
        place = f"{name}line {number}"
        if not brace:
            continue
        try:
            says = json.loads(brace + rest)
        except ValueError as error:
            raise NotAllowed(f"{place} is not JSON: {error}") from None
        try:
            at = dt.datetime.fromisoformat(says.get("t", ""))
        except ValueError:
            at = None
        yield Line(place, says, at)


def replay(lines: Iterable[str], *, partial: bool = False) -> Replay:
    """Replay one log.

    Raises:
        NotAllowed: naming the first step that is not allowed.
    """
    return replayed(parsed(lines), partial=partial)


def replayed(lines: Iterable[Line], *, partial: bool = False) -> Replay:
    """Replay the lines of a run.

    Raises:
        NotAllowed: naming the first step that is not allowed.
    """
    run = Replay(Silence(anybody=partial))
    run.take(lines)
    run.check()
    return run


def lines_of(files: list[str]) -> Iterator[Line]:
    """The lines of all files.

    Raises:
        OSError: one cannot be read.
        NotAllowed: as :func:`parsed`.
    """
    for name in files:
        shown = f"{name}, " if len(files) > 1 else ""
        if name == "-":
            yield from parsed(sys.stdin, shown)
        else:
            with open(name, encoding="utf-8") as log:
                yield from parsed(log, shown)


def main(arguments: list[str]) -> int:
    """Replay the files that are named, and say what came of it; 1 when the run is rejected."""
    files = [argument for argument in arguments if not argument.startswith("--")]
    if not files or {argument for argument in arguments if argument.startswith("--")} - {"--partial"}:
        print("usage: python -m model.replay [--partial] FILE [FILE ...]", file=sys.stderr)
        return 2
    try:
        run = replayed(lines_of(files), partial="--partial" in arguments)
    except OSError as error:
        print(f"cannot read {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except NotAllowed as reason:
        print(f"rejected: {reason}", file=sys.stderr)
        return 1
    print(f"accepted: {run.steps} steps of {len(run.jobs)} jobs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
