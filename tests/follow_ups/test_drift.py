"""What processes that do not agree about follow-ups look like to operators."""

import pytest
import trio
from at_work import working
from follow_up_jobs import Notice, Signup, Welcome

import awa_actors as awa
from awa_actors.core.follow_up_drift import Speaker, drift

WELCOME = ("completed", "signup", "shop:welcome")
NOTE = ("rescued", "signup", "shop:note")


def test_processes_that_agree_have_nothing_to_say() -> None:
    assert drift([Speaker("w1", ["signup"], {WELCOME, NOTE}), Speaker("w2", ["signup"], {WELCOME, NOTE}, True)]) == []


def test_a_worker_of_another_release_commits_without_the_follow_up() -> None:
    (finding,) = drift([Speaker("old", ["signup"], set()), Speaker("new", ["signup"], {WELCOME})])
    assert finding == (
        "follow-up shop:welcome of completed 'signup' is missing in old:"
        " what it commits has no follow-up, unlike in new"
    )


def test_a_process_that_never_runs_the_kind_does_not_need_its_follow_ups() -> None:
    assert drift([Speaker("w", ["signup"], {WELCOME}), Speaker("mail", ["send_welcome"], set())]) == []


def test_a_follow_up_of_a_kind_that_nobody_runs_is_dormant() -> None:
    (finding,) = drift([Speaker("m", [], {WELCOME}), Speaker("mail", ["send_welcome"], set())])
    assert "is dormant: m have it, but no live worker has a handler for 'signup'" in finding


def test_a_leader_without_the_follow_up_of_a_rescue_is_named() -> None:
    (finding,) = drift([Speaker("w", ["signup"], {NOTE}), Speaker("pool-only", [], set(), True)])
    assert "shop:note of rescued 'signup' is missing in pool-only" in finding
    assert drift([Speaker("w", ["signup"], {NOTE}, True), Speaker("pool-only", [], set())]) == []


@pytest.mark.parametrize("maintenance", [True, False])
async def test_live_processes_are_compared(database: str, maintenance: bool) -> None:
    def registry() -> awa.Registry:
        made = awa.Registry("shop")

        @made.worker(Signup)
        async def sign_up(job: awa.Job[Signup]) -> None: ...

        return made

    old, new = registry(), registry()
    new.on_completed_enqueue(Signup)(lambda event: Welcome(1))
    new.on_rescued_enqueue(Signup, delivery="outbox")(lambda event: Notice("whoever leads writes the row"))
    queue = awa.QueueConfig("signup")
    async with (
        working(database, old, queue, maintenance=maintenance) as (client, worker),
        working(database, new, queue) as (_, other),
    ):
        (finding,) = await client.admin.follow_up_drift()
        assert "shop:<lambda> of completed 'signup' is missing in worker" in finding
        await other.drain()
        await trio.lowlevel.checkpoint()
        assert await client.admin.follow_up_drift() == []
        assert worker.running == 0
