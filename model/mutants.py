"""Guards taken out of the source, one at a time, in a copy: each must be noticed. ``python -m model.mutants [WORD]``.

The list is data: what is removed, where, and what notices. Before anything is removed the copy must pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model.mutations import MUTANTS, Mutant

REPOSITORY = Path(__file__).parents[1]
COPIED = ("awa_actors", "model", "tests", "pyproject.toml")


@contextmanager
def copied() -> Iterator[Path]:
    """A copy of the package and of what tests it."""
    with tempfile.TemporaryDirectory(prefix="awa-mutants-") as directory:
        here = Path(directory)
        here.chmod(0o755)
        for name in COPIED:
            source, target = REPOSITORY / name, here / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        yield here


def passes(here: Path, tests: str) -> tuple[bool, str]:
    """Whether tests of a copy pass, and what they said."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "", *tests.split()]
    environment = {**os.environ, "AWA_MODEL_PROFILE": "mutants", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"pytest could not run {tests}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.returncode == 0, done.stdout


def survives(here: Path, mutant: Mutant) -> bool:
    """Remove a guard, run what must notice, and put it back."""
    path = here / "awa_actors" / mutant.file
    original = path.read_text()
    if mutant.old not in original:
        raise SystemExit(f"{mutant.file} has changed: {mutant.sentence!r} is not written as {mutant.old!r} any more")
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        return passes(here, mutant.caught_by)[0]
    finally:
        path.write_text(original)


def main() -> None:
    """Run every mutant whose sentence or file has WORD in it; the exit status is 1 when one survives."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    mutants = [
        mutant for mutant in MUTANTS if word in mutant.sentence or word in mutant.file or word in mutant.caught_by
    ]
    survivors = []
    with copied() as here:
        for tests in sorted({mutant.caught_by for mutant in mutants}):
            fine, said = passes(here, tests)
            if not fine:
                raise SystemExit(f"{tests} fails although nothing was removed:\n{said[-3000:]}")
        for mutant in mutants:
            began = time.perf_counter()
            alive = survives(here, mutant)
            survivors += [mutant] * alive
            verdict = "SURVIVES" if alive else "caught"
            where = f"{mutant.file}, {mutant.caught_by}"
            print(f"{verdict:8} {time.perf_counter() - began:5.0f} s  {mutant.sentence}  [{where}]", flush=True)
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} caught")
    raise SystemExit(bool(survivors))


if __name__ == "__main__":
    main()
