"""The snippets of the documentation: what a page shows, and what running it means.

A page has a folder, a fresh migrated database (``DATABASE_URL``) and one Python session. Its snippets run in order:

- ``python`` whose first line is ``# name.py`` becomes that file of the folder, for what comes after it;
- ``python`` with ``trio.run(`` or ``asyncio.run(`` is a program of its own; other ``python`` runs in the session, where
  ``await`` stands at the top level and ``client`` is an open client with the page's ``registry``;
- ``console`` runs what follows ``$`` and compares what is shown below it (``...`` stands for anything);
- ``sh`` runs as a script, ``sql`` as one transaction;
- ``toml`` is read.

What a page takes for granted (an application's classes, a failed job to look at) is in ``docs/stages``, by its name.
A snippet below the line ``*Not run by the tests: …*`` is not run, and says why.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
RUNNABLE = ("python", "console", "sh", "sql", "toml")

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>\{?[\w-]*\}?)( .*)?$")
_NOT_RUN = re.compile(r"^\s*\*Not run by the tests: (?P<reason>.+)\*$")
_FILE = re.compile(r"\A# (?P<name>[\w./-]+\.(py|toml))\n")


@attrs.frozen
class Snippet:
    """A fenced block of a page.

    Args:
        page: path of the page, without its suffix, relative to docs/ (or README).
        line: number of its first line.
        language: what stands behind the fence.
        text: without the fences and their indent.
        not_run: the reason that the page gives, or None.
    """

    page: str
    line: int
    language: str
    text: str
    not_run: str | None = None

    @property
    def where(self) -> str:
        """Where it stands, as an error names it."""
        return f"{self.page}.md:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file that it is shown as, if any."""
        found = _FILE.match(self.text)
        return found["name"] if found else None

    @property
    def commands(self) -> Iterator[tuple[str, str]]:
        """The commands of a console, each with the output that is shown for it."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            lines = part.split("\n")
            last = next(index for index, line in enumerate(lines) if not line.endswith("\\"))
            yield "\n".join(lines[: last + 1]), "\n".join(lines[last + 1 :]).strip("\n")


def pages() -> dict[str, Path]:
    """Every page that may hold snippets, by its name."""
    found = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    kept = {name: path for name, path in found.items() if not name.startswith(("_build", "adr/"))}
    return {"README": REPOSITORY / "README.md", **kept}


def snippets(page: str) -> list[Snippet]:
    """What a page shows, in order; only what can run."""
    return [snippet for snippet in _fenced(page, pages()[page].read_text()) if snippet.language in RUNNABLE]


def _fenced(page: str, text: str) -> Iterator[Snippet]:
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        number += 1
        if opening is None:
            continue
        first, indent, fence = number, opening["indent"], opening["fence"]
        while lines[number].strip() != fence:
            number += 1
        body = "".join(line.removeprefix(indent) + "\n" for line in lines[first:number])
        yield Snippet(page, first + 1, opening["language"], body, _reason(lines[: first - 1]))
        number += 1


def _reason(above: list[str]) -> str | None:
    """The reason not to run what comes next, when the last line that is not empty gives one."""
    last = next((line for line in reversed(above) if line.strip()), "")
    found = _NOT_RUN.match(last)
    return found["reason"] if found else None
