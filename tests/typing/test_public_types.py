"""The public API as mypy sees it: every shown form is accepted, every wrong one is refused with the code we name."""

import re
import sys
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent


def _complaints(file: Path) -> list[tuple[int, str]]:
    """Lines and codes of what `mypy --strict` says about one file."""
    arguments = ["--strict", "--no-error-summary", "--hide-error-context", "--no-pretty", "--show-error-codes"]
    output, errors, _ = api.run([*arguments, "--python-executable", sys.executable, str(file)])
    assert not errors
    found = re.findall(rf"{re.escape(file.name)}:(\d+): error: .*\[([\w-]+)\]", output)
    assert len(found) == output.count(": error:"), output
    return [(int(line), code) for line, code in found]


@pytest.mark.slow
def test_every_shown_form_type_checks() -> None:
    assert _complaints(HERE / "accepted.py") == []


@pytest.mark.slow
def test_wrong_handlers_closures_and_events_are_refused() -> None:
    file = HERE / "rejected.py"
    expected = [
        (number, marked[1])
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (marked := re.search(r"# expect: ([\w-]+)", line))
    ]
    assert _complaints(file) == expected
