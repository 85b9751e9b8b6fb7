"""Completions that arrive together are written together, and each gets its own answer."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from awa_actors.errors import CallbackNotFound, TransientStoreError
from awa_actors.store.resolve import Resolution, complete, retry
from awa_actors.store.resolve_together import Answer
from awa_actors.web.gathered import AT_ONCE, MOST, Gathered


def completion(n: int) -> Resolution:
    return complete(f"00000000-0000-0000-0000-{n:012}")


@attrs.define(eq=False)
class Database:
    """Answers when the test says so; what it is asked is noted."""

    gate: trio.Event = attrs.field(factory=trio.Event)
    asked: list[int] = attrs.field(factory=list)
    answers: dict[str, Answer] = attrs.field(factory=dict)
    failure: Exception | None = None

    async def alone(self, resolution: Resolution) -> Any:
        self.asked.append(1)
        await self.gate.wait()
        return resolution.callback_id

    async def together(self, resolutions: Sequence[Resolution]) -> Any:
        self.asked.append(len(resolutions))
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return [self.answers.get(one.callback_id, one.callback_id) for one in resolutions]


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def gathered(database: Database) -> Gathered:
    return Gathered(database.alone, database.together)


class Callers:
    """Resolve at once; what each was told."""

    def __init__(self, gathered: Gathered, nursery: trio.Nursery) -> None:
        self.gathered, self.nursery = gathered, nursery
        self.told: dict[int, Any] = {}
        self.scopes: dict[int, trio.CancelScope] = {}

    async def start(self, *numbers: int) -> None:
        for n in numbers:
            self.nursery.start_soon(self._call, n)
            await trio.testing.wait_all_tasks_blocked()

    async def _call(self, n: int) -> None:
        with trio.CancelScope() as self.scopes[n]:
            try:
                self.told[n] = await self.gathered.resolve(completion(n))
            except Exception as error:
                self.told[n] = error


async def test_those_that_come_while_others_are_written_share_a_transaction(
    database: Database, gathered: Gathered
) -> None:
    async with trio.open_nursery() as nursery:
        callers = Callers(gathered, nursery)
        await callers.start(*range(MOST + 10))
        assert database.asked == [1] * AT_ONCE
        database.gate.set()
    assert database.asked == [1] * AT_ONCE + [MOST, 10 - AT_ONCE]
    assert callers.told == {n: completion(n).callback_id for n in range(MOST + 10)}


async def test_each_gets_its_own_answer(database: Database, gathered: Gathered) -> None:
    database.answers = {completion(7).callback_id: CallbackNotFound("gone"), completion(8).callback_id: None}
    async with trio.open_nursery() as nursery:
        callers = Callers(gathered, nursery)
        await callers.start(*range(10))
        database.gate.set()
    assert isinstance(callers.told[7], CallbackNotFound)
    assert callers.told[8] == completion(8).callback_id
    assert database.asked == [1, 1, 7, 1, 1], "two write what waited, and one is resolved alone"


async def test_a_caller_that_goes_away_takes_nobody_along(database: Database, gathered: Gathered) -> None:
    async with trio.open_nursery() as nursery:
        callers = Callers(gathered, nursery)
        await callers.start(*range(8))
        callers.scopes[4].cancel()  # waits
        await trio.testing.wait_all_tasks_blocked()
        callers.scopes[0].cancel()  # is written alone; whoever waits longest is to write the others
        await trio.testing.wait_all_tasks_blocked()
        assert database.asked == [1, 1, 5]
        callers.scopes[2].cancel()  # writes them
        await trio.testing.wait_all_tasks_blocked()
        database.gate.set()
    assert sorted(callers.told) == [1, 2, 3, 5, 6, 7]
    assert all(callers.told[n] == completion(n).callback_id for n in callers.told)


async def test_one_that_is_to_write_and_is_cancelled_at_that_moment_passes_it_on(
    database: Database, gathered: Gathered
) -> None:
    async with trio.open_nursery() as nursery:
        callers = Callers(gathered, nursery)
        await callers.start(*range(5))
        callers.scopes[2].cancel()
        database.gate.set()
    assert sorted(callers.told) == [0, 1, 3, 4]
    assert gathered._under_way == 0


async def test_a_failure_of_the_whole_is_told_to_everyone(database: Database, gathered: Gathered) -> None:
    database.failure = TransientStoreError("away")
    async with trio.open_nursery() as nursery:
        callers = Callers(gathered, nursery)
        await callers.start(*range(6))
        database.gate.set()
    assert [type(callers.told[n]) for n in range(2, 6)] == [TransientStoreError] * 4
    assert gathered._under_way == 0
    assert await gathered.resolve(completion(9)) == completion(9).callback_id  # type: ignore[comparison-overlap]


async def test_other_resolutions_go_their_own_way(database: Database, gathered: Gathered) -> None:
    database.gate.set()
    assert await gathered.resolve(retry(completion(1).callback_id)) == completion(1).callback_id  # type: ignore[comparison-overlap]
    assert database.asked == [1]
