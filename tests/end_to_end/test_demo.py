"""The demo, as users start it: it ends by itself and leaves nothing behind, however it ends."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Process, awa, clean_environment, one_line, running
from processes import ends

from awa_actors.cli.demo_plan import STEPS
from awa_actors.errors import UsageError
from awa_actors.private_postgres import PrivatePostgres

pytestmark = pytest.mark.slow

JOBS = len(STEPS) + sum(step.follow_ups for step in STEPS)
LIMIT = 30.0
"""Seconds, from start to end; the machine may be busy with other tests as well."""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the demo's temporary directories go. They are gone after the test, and so is every process of the demo."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tmp_path.chmod(0o711)
    yield tmp_path
    assert list(tmp_path.iterdir()) == []
    left = [pid for pid in processes_of(tmp_path) if not ends(pid)]
    assert left == []


def processes_of(temporary: Path) -> list[int]:
    """Processes that were started with this directory for temporary files, or that live in it, as the server does."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            place = os.readlink(entry / "cwd")
        except OSError:
            continue
        if f"TMPDIR={temporary}\0".encode() in environment or place.startswith(str(temporary)):
            found.append(int(entry.name))
    return found


def child(process: Process, role: str) -> int:
    """The first process that a demo has started for a role, from whichever of its threads."""
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    children = [pid for thread in threads for pid in (thread / "children").read_text().split()]
    found = [pid for pid in children if f"--role\0{role}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return min(map(int, found))


def test_every_job_goes_as_it_should_within_half_a_minute(temporary: Path) -> None:
    began = time.monotonic()
    with running("demo") as process:
        assert process.ends(within=LIMIT) == 0
    print(f"the demo took {time.monotonic() - began:.1f} s")
    for parts in (
        ["scheduled"],
        ["attempt 1 failed"],
        ["snoozed"],
        ["killing worker"],
        ["long_import", "rescued"],
        ["killing maintenance 1"],
        ["maintenance 2 leads, term", ", after"],
        ["POST", "signed", "200"],
    ):
        assert process.said(*parts), process.lines
    seconds = [line.partition("fired for ")[2].partition(": ")[0] for line in process.lines if "fired for" in line]
    assert len(seconds) == len(set(seconds)) >= 2
    assert process.said(f"All {JOBS} jobs, {len(seconds)} fires and the change of leader went as they should")
    assert process.said("What to try next")


def test_a_terminal_shows_a_table(temporary: Path) -> None:
    control, terminal = pty.openpty()
    demonstration = subprocess.Popen(
        [sys.executable, "-m", "awa_actors", "demo"],
        env=clean_environment(TERM="xterm", COLUMNS="140"),
        stdin=subprocess.DEVNULL,
        stdout=terminal,
    )
    os.close(terminal)
    shown = b""
    with demonstration, open(control, "rb", buffering=0) as screen:
        try:
            while part := screen.read(65_536):
                shown += part
        except OSError:  # how a terminal says that nobody writes to it any more
            pass
    assert demonstration.returncode == 0
    assert b"what happened" in shown
    assert "→ running on".encode() in shown


def test_without_the_http_extra_the_parked_job_is_completed_all_the_same(temporary: Path) -> None:
    script = "import sys; sys.modules['starlette'] = None; from awa_actors.cli import main; main()"
    demonstration = subprocess.Popen(
        [sys.executable, "-c", script, "demo"],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with demonstration:
        process = Process(demonstration)
        try:
            assert process.ends(within=LIMIT) == 0
        finally:
            # Asked, not killed: it then ends its own processes.
            demonstration.terminate()
    assert process.said("without awa-actors[http]", "the demo completes the job itself")
    assert not process.said("POST")
    assert process.said(f"All {JOBS} jobs")


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "enqueuing"),
        (signal.SIGTERM, "starting the callback server"),
        (signal.SIGHUP, "killing maintenance"),
    ],
)
def test_a_demo_that_is_interrupted_leaves_nothing_behind(temporary: Path, number: int, moment: str) -> None:
    with running("demo") as process:
        process.says(moment)
        process.signal(number)
        assert process.ends() == 130
    assert process.said("nothing is left running")


def test_a_demo_that_is_interrupted_at_once_leaves_nothing_behind(temporary: Path) -> None:
    with running("demo") as process:
        process.says("starting a private Postgres")
        process.signal(signal.SIGINT)
        assert process.ends() == 130


def test_a_demo_that_fails_says_why_and_leaves_nothing_behind(temporary: Path) -> None:
    with running("demo") as process:
        process.says("enqueuing")
        os.kill(child(process, "maintenance"), signal.SIGKILL)
        assert process.ends() == 1
    assert process.said("--- maintenance 1")
    assert process.said("the demo failed: maintenance 1 ended unasked")


def test_a_drain_converges_while_everybody_watches(temporary: Path) -> None:
    with running("demo", "--drain") as process:
        assert process.ends(within=LIMIT) == 0
    for parts in (
        ["jobs that snooze for ever"],
        ["prepared", "canonical ####", "queue ............    0"],
        ["storage enter-mixed-transition"],
        ["mixed_transition", "canonical ............    0"],
        ["the canonical plane is empty", "after the flip"],
        ["finalized; the jobs that snooze for ever go on"],
        ["workers, leader and server are gone"],
    ):
        assert process.said(*parts), process.lines
    assert process.said("Converged", "none was lost or changed, and all 20 snoozers went on")


def test_a_drain_that_is_interrupted_leaves_nothing_behind(temporary: Path) -> None:
    with running("demo", "--drain") as process:
        process.says("storage enter-mixed-transition")
        process.signal(signal.SIGTERM)
        assert process.ends() == 130
    assert process.said("nothing is left running")


def test_a_demo_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: PrivatePostgres) -> None:
        raise UsageError("a private Postgres needs the extra: install awa-actors[embedded]")

    monkeypatch.setattr(PrivatePostgres, "start", missing)
    answer = awa("demo", "--json")
    assert answer.status == 2
    one_line(answer.err, "awa-actors[embedded]")
