"""What README.md shows runs: its program here, its two shell lines by whoever builds the repository (.ci, nox)."""

from typing import Any

import pytest
import trio
from page_session import PLACEHOLDER
from snippets import snippets

import awa_actors as awa
from awa_actors.testing import work_all

SHELL, PROGRAM = snippets("README")


@pytest.mark.slow
async def test_the_program_of_the_readme_signs_somebody_up(
    empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README.md shows a whole program; only its last line, which would start a second event loop, is not run."""
    created: list[int] = []
    welcomed = trio.Event()

    async def create_account(user_id: int) -> None:
        created.append(user_id)

    async def post_mail(user_id: int) -> int:
        welcomed.set()
        return 200

    names: dict[str, Any] = {"create_account": create_account, "post_mail": post_mail}
    program, last, rest = PROGRAM.text.partition("\ntrio.run(main)\n")
    assert last
    assert not rest
    async with awa.open_client(empty_database) as client, client.transaction() as tx:
        await tx.execute("CREATE TABLE users (id int PRIMARY KEY)")
    exec(program.replace(PLACEHOLDER, empty_database), names)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(names["main"])
        with trio.fail_after(30):
            await welcomed.wait()
        nursery.cancel_scope.cancel()
    async with awa.open_client(empty_database, registry=names["registry"]) as client:
        await work_all(client)
        states = {(job.kind, job.state) for job in await client.admin.jobs()}
        async with client.transaction() as tx:
            assert await tx.fetchval("SELECT count(*) FROM users") == 1
    assert states == {("signup", awa.JobState.COMPLETED), ("send_welcome", awa.JobState.COMPLETED)}
    assert created == [7]


def test_the_shell_lines_are_the_demo_and_the_tests() -> None:
    demo, tests = SHELL.text.strip().splitlines()
    assert demo.endswith(".venv/bin/awa-actors demo")
    assert tests.endswith(".venv/bin/nox")
