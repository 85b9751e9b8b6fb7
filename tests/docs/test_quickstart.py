"""The program of tutorial/quickstart.md; `nox -s quickstart` does all of it in an empty environment."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from command_line import clean_environment
from postgres_servers import MEMORY
from snippets import DOCS, snippets

INSTALL, PROGRAM, RUN = snippets("tutorial/quickstart")


@pytest.mark.slow
def test_the_program_says_what_the_page_says() -> None:
    assert PROGRAM.file_name is not None
    command = [sys.executable, "-W", "error", *RUN.text.split()[1:]]
    # In memory where there is some: a server of its own is made there, which a busy disk does slowly.
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        Path(folder, PROGRAM.file_name).write_text(PROGRAM.text)
        Path(folder).chmod(0o711)
        done = subprocess.run(
            command, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False, timeout=60
        )
    assert done.returncode == 0, done.stderr
    assert f"`{done.stdout.strip()}`" in (DOCS / "tutorial/quickstart.md").read_text()


def test_nothing_but_the_package_is_installed() -> None:
    assert INSTALL.text.splitlines()[-1] == "venv/bin/pip install 'awa-actors[embedded]'"
