"""Do what the built quickstart says, in an empty folder and an empty environment, and time it.

``nox -s quickstart`` runs this. Commands and program are taken from the HTML: what is tried is what is read.
"""

import os
import subprocess
import sys
import tempfile
import time
from html.parser import HTMLParser
from pathlib import Path

PAGE = "tutorial/quickstart.html"
WANTED = "hello world, this is job 1"
KEPT = ("PATH", "LANG", "TMPDIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "HTTPS_PROXY", "https_proxy")
"""What a new user's shell has too; beside what pip needs to reach its registry."""


class Blocks(HTMLParser):
    """Collects the code of a page as pairs of language and text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self._language: str | None = None
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where code begins, and in which language."""
        classes = (dict(attrs).get("class") or "").split()
        if tag == "div" and (named := [one for one in classes if one.startswith("highlight-")]):
            self._language = named[0].removeprefix("highlight-")
        if tag == "pre" and self._language is not None:
            self.found.append((self._language, ""))
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        """Note where it ends."""
        if tag == "pre":
            self._inside, self._language = False, None

    def handle_data(self, data: str) -> None:
        """Keep its text."""
        if self._inside:
            language, text = self.found[-1]
            self.found[-1] = (language, text + data)


def main(html: Path, wheels: Path) -> None:
    """Try it.

    Args:
        html: the built documentation.
        wheels: folder with the wheel under test, which is not on the registry yet.
    """
    blocks = Blocks()
    blocks.feed((html / PAGE).read_text())
    environment = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("PIP_")}
    environment["PIP_FIND_LINKS"] = f"{wheels} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
    with tempfile.TemporaryDirectory(prefix="awa-quickstart-") as folder:
        began = time.monotonic()
        said = "".join(_done(language, text, Path(folder), environment) for language, text in blocks.found)
        print(f"from an empty folder to a completed job: {time.monotonic() - began:.1f} s", flush=True)
    if WANTED not in said:
        raise SystemExit(f"the quickstart did not say {WANTED!r}:\n{said}")


def _done(language: str, text: str, folder: Path, environment: dict[str, str]) -> str:
    """Do what one block says; returns what it said."""
    if language == "python":
        name = text.partition("\n")[0].removeprefix("# ")
        (folder / name).write_text(text)
        return ""
    began = time.monotonic()
    done = subprocess.run(
        ["sh", "-ec", text],
        cwd=folder,
        env=environment | {"HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(f"{time.monotonic() - began:6.1f} s  {text.strip().splitlines()[-1]}", flush=True)
    if done.returncode:
        raise SystemExit(done.stdout)
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
