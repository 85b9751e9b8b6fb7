"""Runs the snippets of one page, as `snippets` says what that means."""

import ast
import contextvars
import doctest
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import attrs
import psycopg
import trio
from command_line import Process, awa, clean_environment
from snippets import REPOSITORY, Snippet

import awa_actors
from awa_actors.config import DatabaseSettings

STAGES = Path(__file__).parent / "docs/stages"
PLACEHOLDER = "postgresql:///app"
"""The database of the examples."""
LONGEST = 120.0
OUTPUT = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_STATUS = re.compile(r"# exit status (\d+)")
_QUESTION = re.compile(r"awa-actors (?!--role\b|demo\b)[^|&;<>$`\n]*")
_ROLE = re.compile(
    r"(?P<set>(?:\w+=\S+ )*)(?:awa-actors|python -m awa_actors) "
    r"(?P<options>--role (?P<role>worker|maintenance|callbacks)\b.*)"
)
STARTED = {"worker": "runs", "maintenance": "maintenance role", "callbacks": "callbacks"}
"""What a role says when it has started."""


def stage_of(page: str) -> dict[str, Any]:
    """The names of a page's Python session, which begin with what it takes for granted."""
    module = ModuleType("page")
    sys.modules["page"] = module  # classes of the page look for their module there
    names: dict[str, Any] = vars(module)
    path = STAGES / f"{page.replace('/', '__').replace('-', '_')}.py"
    if path.exists():
        exec(compile(path.read_text(), str(path), "exec"), names)
    return names


@attrs.define(eq=False)
class PageSession:
    """One page at work.

    Args:
        database: URL of its database.
        folder: where its files are, and where its commands run.
        programs: directory of psql and pg_dump.
        names: of its Python session.
    """

    database: str
    folder: Path
    programs: Path
    names: dict[str, Any]
    _open: AsyncExitStack = attrs.field(factory=AsyncExitStack)

    async def prepare(self) -> None:
        """Give the session what every page has, and do what its stage does first."""
        given = {"awa": awa_actors, "attrs": attrs, "trio": trio, "database_url": self.database}
        self.names.update({**given, **self.names})
        sys.path.insert(0, str(self.folder))
        self._write(".bin/awa-actors", f'#!/bin/sh\nexec {sys.executable} -m awa_actors "$@"\n')
        (self.folder / ".bin/awa-actors").chmod(0o755)
        for name, text in self.names.get("FILES", {}).items():
            self._write(name, text)
        if (begin := self.names.get("begin")) is not None:
            await begin(await self._client(begin.__code__))

    async def finish(self) -> None:
        """Check what the page has brought about, and close what it has opened."""
        if (end := self.names.get("end")) is not None:
            await end(await self._client(end.__code__))

    async def close(self) -> None:
        """Close the client, and forget the modules that were files of the page."""
        await self._open.aclose()
        sys.path.remove(str(self.folder))
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(f"{self.folder}{os.sep}"):
                del sys.modules[name]

    async def run(self, snippet: Snippet) -> None:
        """Run one snippet; whatever it raises says where it stands."""
        text = snippet.text.replace(PLACEHOLDER, self.database)
        if (name := snippet.file_name) is not None:
            self._write(name, text)
        elif snippet.language == "python":
            await self._python(snippet, text)
        elif snippet.language == "console":
            for command, shown in snippet.commands:
                await _aside(self._command, snippet.where, command, shown)
        elif snippet.language == "sh":
            await _aside(self._shell, snippet.where, text)
        elif snippet.language == "sql":
            await _aside(self._sql, text)
        else:
            tomllib.loads(text)

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    async def _python(self, snippet: Snippet, text: str) -> None:
        # Line numbers of the page, so that a traceback leads to it.
        padded = "\n" * (snippet.line - 1) + text
        if "asyncio.run(" in text:
            await _aside(self._shell, snippet.where, f"python -W error - <<'END'\n{text}\nEND\n")
            return
        code = compile(padded, f"{snippet.page}.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if "trio.run(" in text:
            await _aside(exec, code, self.names)
            return
        await self._client(code)
        if (waiting := eval(code, self.names)) is not None:
            await waiting

    async def _client(self, code: CodeType) -> Any:
        """Open the page's client where code speaks of one; from then on it is a name of the session."""
        if "client" in {*code.co_names, *code.co_varnames} and "client" not in self.names:
            registry = self.names.setdefault("registry", awa_actors.Registry())
            opened = awa_actors.open_client(self.database, registry=registry, settings=DatabaseSettings(pool_size=4))
            self.names["client"] = await self._open.enter_async_context(opened)
        return self.names.get("client")

    def _command(self, where: str, command: str, shown: str) -> None:
        wanted = int(found[1]) if (found := _STATUS.search(command)) else 0
        words = self._expanded(re.sub(r"\s+#.*", "", command).strip())
        if (role := _ROLE.fullmatch(words)) is not None:
            self._role(where, role)
            return
        if _QUESTION.fullmatch(words) is not None and not wanted:
            answer = awa(*_split(words)[1:], url=self.database)
            status, out, err = answer.status, answer.out, answer.err
        else:
            done = self._subprocess(command.replace(PLACEHOLDER, self.database))
            status, out, err = done.returncode, done.stdout, done.stderr
        assert status == wanted, f"{where}: {command}\nstatus {status}\n{out}{err}"
        checker = doctest.OutputChecker()
        if shown and not checker.check_output(f"{shown}\n", out or err, OUTPUT):
            raise AssertionError(f"{where}: {command}\nshown:\n{shown}\n\nsaid:\n{out}{err}")

    def _expanded(self, command: str) -> str:
        """A command with the variables that the page's stage sets, as a shell would read it."""
        known: dict[str, str] = self.names.get("ENVIRONMENT", {})
        return re.sub(r'"\$(\w+)"', lambda found: shlex.quote(known.get(found[1], found[0])), command)

    def _role(self, where: str, asked: re.Match[str]) -> None:
        """A process that runs until it is told to end: see it start, and end it."""
        given = dict(word.split("=", 1) for word in shlex.split(asked["set"]))
        command = [sys.executable, "-m", "awa_actors", *_split(asked["options"])]
        popen = subprocess.Popen(
            command, cwd=self.folder, env=self._environment() | given, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        with popen:
            process = Process(popen)
            process.says(STARTED[asked["role"]])
            popen.send_signal(signal.SIGTERM)
            assert popen.wait(LONGEST) == 0, f"{where}: {asked[0]}\n" + "\n".join(process.lines)

    def _shell(self, where: str, text: str) -> None:
        done = self._subprocess(f"set -e\n{text}")
        assert done.returncode == 0, f"{where}:\n{text}\n{done.stdout}{done.stderr}"

    def _subprocess(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", script],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST,
        )

    def _environment(self) -> dict[str, str]:
        found = clean_environment(DATABASE_URL=self.database, **self.names.get("ENVIRONMENT", {}))
        found["PATH"] = os.pathsep.join(
            [str(self.folder / ".bin"), str(Path(sys.executable).parent), str(self.programs), found["PATH"]]
        )
        found["PYTHONPATH"] = os.pathsep.join([str(self.folder), str(REPOSITORY)])
        return found

    def _sql(self, text: str) -> None:
        with psycopg.connect(self.database) as connection:
            connection.execute(text.encode())


async def _aside(work: Callable[..., object], *arguments: Any) -> None:
    """Run in a thread that knows nothing of the event loop here: what it starts has a loop of its own."""
    await trio.to_thread.run_sync(contextvars.Context().run, work, *arguments)


def _split(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))
