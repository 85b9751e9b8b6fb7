"""``python -m model``: explore every machine and its twins, and print what they are.

``--write`` puts it into the README.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from model.catalog import MACHINES, explored, table
from model.profiles import chosen

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- table: python -m model --write -->", "<!-- end of table -->"


def with_table(text: str, lines: list[str]) -> str:
    """The README with its table replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + "\n".join([BEGIN, "", *lines, "", END]) + after


def main() -> None:
    """Print the table of the chosen profile, or write that of `dev` into the README."""
    profile = chosen()
    if "--write" in sys.argv:
        README.write_text(with_table(README.read_text(), table("dev", profile.limit)))
        return
    began = time.perf_counter()
    print(*table(profile.name, profile.limit), sep="\n")
    print(f"\nprofile {profile.name}, {time.perf_counter() - began:.1f} s, twins included")
    for machine in MACHINES:
        report = explored(machine, profile.name, profile.limit)
        depth = "" if report.complete else f"; gave up at {profile.limit:,}"
        print(f"{machine.__name__}: {report.states_per_second:,} states/s, {report.depth} steps deep{depth}")


if __name__ == "__main__":
    main()
