"""The classes of the page, and a pager that keeps what it is told."""

from typing import Any

import attrs

import awa_actors as awa
from awa_actors.testing import work_all


@attrs.frozen
class Signup:
    user_id: int


@attrs.frozen
class SendWelcome:
    user_id: int


@attrs.frozen
class NotifyOps:
    error: str


class Pager:
    def __init__(self) -> None:
        self.pages: list[str] = []

    async def page(self, text: str) -> None:
        self.pages.append(text)


pager = Pager()
registry = awa.Registry()


@registry.worker(Signup)
async def sign_up(job: awa.Job[Signup]) -> None:
    if job.args.user_id < 0:
        raise awa.TerminalError("no such account")


async def end(client: Any) -> None:
    await client.insert(Signup(-1))
    await work_all(client)
    assert len(pager.pages) == 1
