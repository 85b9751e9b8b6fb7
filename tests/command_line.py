"""The command line, in this process or in one of its own, and what the tests of it wait for."""

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import orjson
from click.testing import CliRunner

from awa_actors.cli.database import PG_VARIABLES
from awa_actors.cli.tree import root

LIMIT = 20.0
"""Seconds that anything a test waits for may take on a busy machine."""
REPOSITORY = Path(__file__).parents[1]

UNREACHABLE = "postgresql://nobody@127.0.0.1:1/nothing"
"""Port 1 refuses at once."""


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without anything that names a database, plus `more`."""
    kept = {name: value for name, value in os.environ.items() if name not in (*PG_VARIABLES, "DATABASE_URL")}
    # Found from any working directory, without being installed.
    return kept | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), *sys.path]), "PYTHONUNBUFFERED": "1"} | more


@attrs.frozen
class Answer:
    """How a command ended and what it said."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it said in JSON."""
        return orjson.loads(self.out)


def awa(*args: str, url: str | None = None, env: dict[str, str] | None = None) -> Answer:
    """Run a command in this process, on a database if one is given."""
    unset: dict[str, str | None] = dict.fromkeys((*PG_VARIABLES, "DATABASE_URL"))
    given = {} if url is None else {"DATABASE_URL": url}
    result = CliRunner().invoke(root, list(args), env=unset | given | (env or {}))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return Answer(result.exit_code, result.stdout, result.stderr)


@attrs.define(eq=False)
class Process:
    """A running command line; its lines are read as they come."""

    popen: "subprocess.Popen[str]"
    lines: list[str] = attrs.field(factory=list)
    _incoming: "queue.SimpleQueue[str | None]" = attrs.field(factory=queue.SimpleQueue)

    def __attrs_post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._incoming.put(line.rstrip("\n"))
        self._incoming.put(None)

    @property
    def pid(self) -> int:
        return self.popen.pid

    def says(self, *parts: str) -> str:
        """Wait for a line with all these parts in it; lines before it are passed over."""
        while True:
            line = self._next()
            if line is None:
                raise AssertionError(f"ended without {parts}:\n" + "\n".join(self.lines))
            if all(part in line for part in parts):
                return line

    def _next(self) -> str | None:
        try:
            line = self._incoming.get(timeout=LIMIT)
        except queue.Empty:
            raise AssertionError("silent since:\n" + "\n".join(self.lines)) from None
        if line is not None:
            self.lines.append(line)
        return line

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{line}\n")
        self.popen.stdin.flush()

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.popen.send_signal(number)

    def ends(self, within: float = LIMIT) -> int:
        """Wait for its end; returns its exit status."""
        status = self.popen.wait(timeout=within)
        while self._next() is not None:
            pass
        return status

    def said(self, *parts: str) -> bool:
        return any(all(part in line for part in parts) for line in self.lines)


@contextmanager
def running(*args: str, url: str | None = None, cwd: Path | None = None) -> Iterator[Process]:
    """Run ``python -m awa_actors`` for the length of the block, its standard error among its lines."""
    env = clean_environment(**({} if url is None else {"DATABASE_URL": url}))
    popen = subprocess.Popen(
        [sys.executable, "-m", "awa_actors", *args],
        cwd=cwd,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with popen:
        try:
            yield Process(popen)
        finally:
            # Asked first: a demo that is killed leaves its processes to themselves.
            popen.terminate()
            with suppress(subprocess.TimeoutExpired):
                popen.wait(timeout=LIMIT)
            popen.kill()


def one_line(text: str, *parts: str) -> None:
    """Check that an error is one line with all these parts in it."""
    assert len(text.splitlines()) == 1, text
    for part in parts:
        assert part in text
