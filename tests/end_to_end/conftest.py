"""Every run of these tests is logged, by all its processes, and replayed against the machines of ``model/``."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def replayed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Log to one file whatever the test and its processes do; the log must be one that the machines can take."""
    log = tmp_path_factory.mktemp("trace") / "run.jsonl"
    monkeypatch.setenv("AWA_TRACE", str(log))
    yield log
    if log.exists():
        partial = ["--partial"] if request.node.get_closest_marker("partial_log") else []
        command = [sys.executable, "-m", "model.replay", *partial, str(log)]
        answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        print(answer.stdout, end="")
        assert answer.returncode == 0, answer.stderr
