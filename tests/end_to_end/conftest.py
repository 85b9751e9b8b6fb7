"""Every run of these tests is logged, by all its processes, and replayed against the machines of ``model/``."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from model import replay


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
        assert replay.main([*partial, str(log)]) == 0, "the log is one that no run of the machines leaves"
