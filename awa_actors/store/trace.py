"""The log of a run: every transition that was committed, one JSON object a line, for ``python -m model.replay``.

Off unless the logger ``awa_actors.trace`` is set to debug, or ``AWA_TRACE`` names a file, which any number of processes
append to. A line is written when the process has heard that its transaction committed. What it cannot know it says too:
an answer that was lost makes a line ``unseen`` with the names of the steps that may be missing, and a log that ends
without ``stop`` is of a process that was killed.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import attrs
import orjson

VARIABLE = "AWA_TRACE"
"""Environment variable that names a file to append to."""
NOW = "SELECT pg_catalog.clock_timestamp()"
OVERRULED = {"cancelled": "duplicate", "scheduled": "postpone", "retryable": "postpone", "failed": "unrecordable"}
"""What the store does instead of what was asked, by where the job landed."""

logger = logging.getLogger("awa_actors.trace")
if logger.level == logging.NOTSET:
    logger.setLevel(logging.INFO)  # not on with every other debugging: a line for each job is a lot

Line = dict[str, Any]


@attrs.define(eq=False)
class Log:
    """What one connection did. Lines of an open transaction wait for its commit."""

    process: str
    _waiting: list[Line] | None = None

    def note(self, lines: Iterable[Line]) -> None:
        """Take down what a statement did."""
        if self._waiting is None:
            self._write(lines)
        else:
            self._waiting.extend(lines)

    def begin(self) -> None:
        """Lines wait from here on."""
        self._waiting = []

    def committed(self) -> None:
        """They are true now."""
        lines, self._waiting = self._waiting or [], None
        self._write(lines)

    def rolled_back(self, *, perhaps: bool = False) -> None:
        """They never will be; `perhaps`: nobody knows, since the answer to the commit was lost."""
        lines, self._waiting = self._waiting or [], None
        if perhaps and lines:
            self.unseen({str(line["by"]) for line in lines})

    def unseen(self, names: Iterable[str]) -> None:
        """Steps of these names may have happened without a line."""
        self._write([{"by": "unseen", "steps": sorted(names)}])

    def _write(self, lines: Iterable[Line]) -> None:
        for line in lines:
            logger.debug("%s", orjson.dumps({**line, "process": self.process}, default=str).decode())


@contextmanager
def watched(session: Any, *names: str) -> Iterator[None]:
    """Say so in the log when the answer of the block's statement is lost: steps of these names may have happened."""
    try:
        yield
    except BaseException:
        if session.log is not None and session.broken:
            session.log.unseen(names)
        raise


def step(at: Any, job_id: int, run_lease: int, before: str, after: str, by: str, instance: Any = None) -> Line:
    """One transition of a job.

    Args:
        at: the database's time while it held the job's row.
        job_id: which job.
        run_lease: as it is afterwards.
        before: the state it came from.
        after: the state it landed in.
        by: who did it, as :mod:`model.transitions` names them.
        instance: whose attempt it was.
    """
    line = {"t": at, "job_id": job_id, "run_lease": run_lease, "from": before, "to": after, "by": by}
    return line if instance is None else {**line, "instance": instance}


def landed(by: str, asked: str, after: str) -> str:
    """Name who moved a job that was to go to `asked` and is in `after`."""
    return by if after == asked else OVERRULED.get(after, by)


def open_log(url: str | None) -> str | None:
    """Begin the log of one client of a database, if it is on; returns the name of its process."""
    _to_file(os.environ.get(VARIABLE))
    if not logger.isEnabledFor(logging.DEBUG):
        return None
    process = f"{os.getpid()}-{uuid.uuid4().hex[:6]}"
    Log(process).note([{"by": "start", "database": _database(url)}])
    return process


def _database(url: str | None) -> str:
    """Which one it is, without user and password: a log is sent to other people."""
    parts = urlsplit(url or "")
    asked = parse_qs(parts.query)
    where = [*asked.get("host", [parts.netloc.rpartition("@")[2]]), *asked.get("port", [])]
    return ":".join(where) + parts.path


def close_log(process: str | None) -> None:
    """Say that this process ended in order: whatever it did is in its log."""
    if process is not None:
        Log(process).note([{"by": "stop"}])


def _to_file(path: str | None) -> None:
    """Have the log written to a file, and to no other any more."""
    mine = [one for one in logger.handlers if isinstance(one, _File)]
    if [one.baseFilename for one in mine] == ([] if path is None else [os.path.abspath(path)]):
        return
    for one in mine:
        logger.removeHandler(one)
        one.close()
    logger.propagate = path is None
    logger.setLevel(logging.INFO if path is None else logging.DEBUG)
    if path is not None:
        logger.addHandler(_File(path, delay=True))


class _File(logging.FileHandler):
    """One write to the end of the file for each line, so that processes share it."""
