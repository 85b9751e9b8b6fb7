"""Every snippet of the documentation runs, page by page; `snippets` says what running means."""

import re
from pathlib import Path

import pytest
from page_session import PageSession, stage_of
from postgres_servers import Server
from snippets import REPOSITORY, pages, snippets

ELSEWHERE = {
    "README": "tests/docs/test_readme.py",
    "tutorial/quickstart": "tests/docs/test_quickstart.py",
    "how-to/callbacks-in-your-server": "tests/callback_servers.py",
    "how-to/transactional-enqueue": "tests/bridge/test_how_to.py",
    "how-to/test-your-jobs": "tests/testing_kit/test_plugin.py",
}
"""Pages whose snippets other tests run as they stand, and which."""

SHOWN = [page for page in pages() if page not in ELSEWHERE and snippets(page)]
FEW = 6


@pytest.mark.slow
@pytest.mark.parametrize("page", SHOWN)
async def test_the_snippets_of_a_page_run(page: str, database: str, server: Server, tmp_path: Path) -> None:
    session = PageSession(database, tmp_path, server.bin_dir, stage_of(page))
    try:
        await session.prepare()
        for snippet in snippets(page):
            if snippet.not_run is None:
                await session.run(snippet)
        await session.finish()
    finally:
        await session.close()


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_what_runs_elsewhere_is_run_there(page: str, test: str) -> None:
    assert f"{page.rpartition('/')[2]}.md" in (REPOSITORY / test).read_text()


def test_few_snippets_are_not_run_and_each_says_why() -> None:
    reasons = [snippet.not_run for page in pages() for snippet in snippets(page) if snippet.not_run is not None]
    assert all(len(reason) > 10 for reason in reasons)
    assert len(reasons) <= FEW, reasons


def test_every_fence_names_its_language() -> None:
    bare = [
        f"{page}.md:{number}"
        for page, path in pages().items()
        for number, line in enumerate(path.read_text().split("\n"), 1)
        if re.fullmatch(r" *```", line) and _opens(path.read_text().split("\n"), number)
    ]
    assert not bare, bare


def _opens(lines: list[str], number: int) -> bool:
    """Whether the fence of this line opens a block: an even number of fences stands above it."""
    return sum(line.strip().startswith("```") for line in lines[: number - 1]) % 2 == 0
