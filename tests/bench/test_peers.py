"""The other systems, each at its best documented setting, beside this one in one interleaved run: with --peers only.

Needs the folder of the peer benchmark (PEERBENCH) and its virtual environments (PEERBENCH_VENVS, see its README); a
system whose environment is not there is left out.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ADAPTER = Path(__file__).with_name("peer_adapter.py")
FOLDER = Path(os.environ.get("PEERBENCH", Path(__file__).parents[3] / "shared" / "peerbench"))
ROW = {"label": "awa_actors", "variant": "default", "concurrency": 512, "loop": "asyncio"}


@contextlib.contextmanager
def peers_server(harness: Path) -> Iterator[str]:
    """The server that the peer benchmark makes for every system: it wants to know where its data is."""
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        Path(folder).chmod(0o755)
        script = [str(harness), str(FOLDER / "pgserver.py")]
        where = ["--datadir", f"{folder}/data"]
        started = subprocess.run([*script, "start", *where], check=True, capture_output=True, text=True)
        try:
            yield json.loads(started.stdout.splitlines()[-1])["url"]
        finally:
            subprocess.run([*script, "stop", *where], check=True)


def test_peers(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    if not pytestconfig.getoption("--peers"):
        pytest.skip("asked for with --peers")
    venvs = os.environ.get("PEERBENCH_VENVS")
    if not (FOLDER / "run_all.py").exists() or venvs is None:
        pytest.skip(f"needs {FOLDER}/run_all.py (PEERBENCH) and PEERBENCH_VENVS")
    (Path(venvs) / "ours" / "bin").mkdir(parents=True, exist_ok=True)
    ours = Path(venvs) / "ours" / "bin" / "python"
    if not ours.exists():
        ours.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        ours.chmod(0o755)
    systems = json.loads((FOLDER / "systems.json").read_text())
    systems = {name: one for name, one in systems.items() if (Path(venvs) / one["venv"]).is_dir()}
    for system in systems.values():
        system["adapter"] = str(FOLDER / system["adapter"])
    environment = {"PEERBENCH": str(FOLDER), "PYTHONPATH": str(Path(__file__).parents[2])}
    systems["ours"] = {"venv": "ours", "adapter": str(ADAPTER), "rows": [ROW], "sweep": [], "env": environment}
    config = tmp_path / "systems.json"
    config.write_text(json.dumps(systems))
    harness = Path(venvs) / "harness" / "bin" / "python"
    command = [str(harness), str(FOLDER / "run_all.py"), "--venvs", venvs]
    command += ["--config", str(config), "--no-extras", "--out", str(tmp_path / "raw.json")]
    command += ["--n", str(pytestconfig.getoption("--jobs")), "--repeats", str(pytestconfig.getoption("--repeats"))]
    with peers_server(harness) as url:
        subprocess.run([*command, "--pg-url", url], check=True)
