"""The processes of the demo: real ones, started like yours would be, and gone when it ends."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import trio

APP = "awa_actors.cli.demo_app:registry"
STALE_AFTER = "3"
"""Seconds after which a silent process counts as dead; in production ten times that."""
_MAINTENANCE = ["--role", "maintenance", "--rescue-interval", "0.5"]
_WORKER = ["--role", "worker", "--no-maintenance", "--grace", "2"]
LEADER, STANDBY, SERVER = "maintenance 1", "maintenance 2", "callback server"
COMMANDS = {
    LEADER: _MAINTENANCE,
    "worker 1": _WORKER,
    "worker 2": _WORKER,
    STANDBY: _MAINTENANCE,
    SERVER: ["--role", "callbacks", "--port", "0", "--grace", "2"],
}
FROM_THE_START = (LEADER, "worker 1", "worker 2")
"""The others are started while these are at work."""
END_BOUND = 4.0
"""Seconds the processes get to end by themselves."""
LAST_LINES = 12


@attrs.define(eq=False)
class Processes:
    """The processes by name, where their logs are, and the names of those that were killed on purpose."""

    url: str
    logs: Path
    running: dict[str, trio.Process] = attrs.field(factory=dict)
    killed: set[str] = attrs.field(factory=set)

    def name_of(self, pid: int) -> str:
        """Give the name of the process with this number."""
        return next((name for name, process in self.running.items() if process.pid == pid), f"process {pid}")

    def ended_unasked(self) -> list[str]:
        """Names of the processes that have ended although nobody killed them."""
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        return [name for name in ended if name not in self.killed]

    def last_words(self) -> str:
        """Give the last lines of every log."""
        parts = []
        for name in self.running:
            lines = self._log(name).read_text(errors="replace").splitlines()[-LAST_LINES:]
            parts.append("\n".join([f"--- {name}", *lines]))
        return "\n".join(parts)

    def _log(self, name: str) -> Path:
        return self.logs / f"{name.replace(' ', '-')}.log"

    def said(self, name: str, pattern: str) -> str | None:
        """Find what a process has logged; returns the first group of the pattern."""
        found = re.search(pattern, self._log(name).read_text(errors="replace"))
        return None if found is None else found[1]

    async def start(self, name: str, **more: str) -> None:
        """Start one, with the database in its environment, and more variables."""
        with self._log(name).open("wb") as log:
            # In sessions of their own: Ctrl-C is for the demo, which then ends them in order.
            self.running[name] = await trio.lowlevel.open_process(
                [sys.executable, "-m", "awa_actors", *COMMANDS[name], "--stale-after", STALE_AFTER, "--app", APP],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"DATABASE_URL": self.url} | more,
                start_new_session=True,
            )

    async def kill(self, name: str) -> None:
        """Kill one (SIGKILL); returns when it is dead."""
        self.killed.add(name)
        self.running[name].kill()
        await self.running[name].wait()

    async def stop(self) -> None:
        """End them: asked first, killed after END_BOUND."""
        alive = [process for process in self.running.values() if process.poll() is None]
        for process in alive:
            process.terminate()
        with trio.move_on_after(END_BOUND):
            for process in alive:
                await process.wait()
        for process in alive:
            if process.poll() is None:
                process.kill()
                await process.wait()


@contextlib.asynccontextmanager
async def open_processes(url: str) -> AsyncIterator[Processes]:
    """Run the processes of the demo for the length of the block, whatever ends it."""
    with tempfile.TemporaryDirectory(prefix="awa-demo-") as directory:
        processes = Processes(url, Path(directory))
        try:
            for name in FROM_THE_START:
                await processes.start(name)
            yield processes
        finally:
            with trio.CancelScope(shield=True):
                await processes.stop()
