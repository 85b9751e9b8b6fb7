"""The other systems, each at its best documented setting, beside this one in one interleaved run: with --peers only.

Once with the args of the peer benchmark and everything that it measures, once with large args, in bulk, in and out.

Needs the folder of the peer benchmark (PEERBENCH) and its virtual environments (PEERBENCH_VENVS, see its README); a
system whose environment is not there is left out.
"""

import contextlib
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_meters import Table

ADAPTER = Path(__file__).with_name("peer_adapter.py")
LAUNCHER = ADAPTER.with_name("peer_adapter_with_large_args.py")
FOLDER = Path(os.environ.get("PEERBENCH", Path(__file__).parents[3] / "shared" / "peerbench"))
ROW = {"label": "awa_actors", "variant": "default", "concurrency": 512, "loop": "asyncio"}
LARGE_FIGURES = [("enqueue", "jobs_s"), ("drain", "jobs_s_with_startup"), ("drain", "jobs_s")]


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


def installed_systems(pytestconfig: pytest.Config) -> tuple[str, dict[str, Any]]:
    """The folder of virtual environments, and the harness's entry of each system that has one there, ours too."""
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
    return venvs, systems


def test_peers(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    venvs, systems = installed_systems(pytestconfig)
    config = tmp_path / "systems.json"
    config.write_text(json.dumps(systems))
    harness = Path(venvs) / "harness" / "bin" / "python"
    command = [str(harness), str(FOLDER / "run_all.py"), "--venvs", venvs]
    command += ["--config", str(config), "--no-extras", "--out", str(tmp_path / "raw.json")]
    command += ["--n", str(pytestconfig.getoption("--jobs")), "--repeats", str(pytestconfig.getoption("--repeats"))]
    with peers_server(harness) as url:
        subprocess.run([*command, "--pg-url", url], check=True)


def measured_cells(harness: Any, systems: dict[str, Any], options: Namespace, repeats: int, *jobs: Any) -> Any:
    """Bulk enqueue and drain of every row, each pair on a fresh database, in another order in each repeat."""
    bench = harness.Bench(options)
    for name in systems:
        bench.template(name)
    rows = deque((name, row) for name, system in systems.items() for row in system["rows"])
    for repeat in range(repeats):
        for name, row in rows:
            database = bench.fresh(name)
            for phase in ("enqueue", "drain"):
                cell = functools.partial(bench.adapter, name, phase, database, row, *jobs)
                bench.guarded(row["label"], repeat, phase, cell)
                bench.analyze(database)
        rows.rotate(-2)
    bench.admin.close()
    return bench.cells


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the harness leaves its files to the collector
def test_peers_with_large_args(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, table: Table
) -> None:
    venvs, systems = installed_systems(pytestconfig)
    systems["ours"]["rows"] = [ROW | {"variant": "large-args"}]
    for system in systems.values():
        system["env"] = system.get("env", {}) | {"PEERBENCH": str(FOLDER), "PEERBENCH_ADAPTER": system["adapter"]}
        system["adapter"] = str(LAUNCHER)
    config, raw = tmp_path / "systems.json", str(tmp_path / "raw.json")
    config.write_text(json.dumps(systems))
    monkeypatch.syspath_prepend(str(FOLDER))
    harness: Any = importlib.import_module("run_all")
    jobs = ["--n", pytestconfig.getoption("--large"), "--timeout", 120]
    with peers_server(Path(venvs) / "harness" / "bin" / "python") as url:
        options = Namespace(pg_url=url, venvs=venvs, config=str(config), systems="", out=raw)
        cells = measured_cells(harness, systems, options, pytestconfig.getoption("--repeats"), *jobs)
    for label in dict.fromkeys(cell["label"] for cell in cells):
        rates = [harness.med(cells, label, *figure) for figure in LARGE_FIGURES]
        into, out, since_handler = ("none" if rate is None else f"{rate * 0.1024:,.0f}" for rate in rates)
        target = "≥ the fastest peer" if label == ROW["label"] else ""
        # From the worker's start on: the batch that is there when the first handler starts may be all there is.
        measured = f"in {into} MB/s, out {out} MB/s ({since_handler} once the first handler has started)"
        table.row(f"100 KiB args: {label}", measured, target)
    assert not [cell for cell in cells if cell.get("error") or not cell.get("complete", True)]
