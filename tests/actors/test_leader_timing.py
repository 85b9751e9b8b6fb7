"""How long a leader believes in its lease. On Trio's mock clock, with an election that answers as a test says."""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any, cast

import attrs
import pytest
import trio
import trio.testing
from fake_database import FakePool

import awa_actors as awa
from awa_actors.actors import leader as module
from awa_actors.actors.leader import Leader
from awa_actors.errors import TransientStoreError

ME = uuid.UUID(int=1)
TIMING = awa.LeaseTiming(lease=10.0, trust=7.0, renew=2.0, margin=1.0)


@attrs.define(eq=False)
class Election:
    """The verbs of the lease row, scripted; `renewals` answers each renewal by its number."""

    renewals: Callable[[int], Awaitable[bool | None]]
    free: bool = True
    acquired: list[float] = attrs.field(factory=list)
    renewed: list[float] = attrs.field(factory=list)
    resigned: list[float] = attrs.field(factory=list)

    async def look(self, session: Any, name: str) -> Any:
        return cast(Any, type("Lease", (), {"is_free": self.free})())

    async def acquire(self, session: Any, holder: uuid.UUID, lease: float, name: str) -> int | None:
        self.acquired.append(trio.current_time())
        return len(self.acquired)

    async def renew(self, session: Any, holder: uuid.UUID, term: int, lease: float, name: str) -> bool | None:
        self.renewed.append(trio.current_time())
        return await self.renewals(len(self.renewed))

    async def resign(self, session: Any, holder: uuid.UUID, term: int, name: str) -> None:
        self.resigned.append(trio.current_time())


@attrs.define(eq=False)
class Terms:
    """What is held during a term: remembers when each began and ended."""

    spans: list[tuple[float, float]] = attrs.field(factory=list)

    async def hold(self, term: int) -> None:
        began = trio.current_time()
        try:
            await trio.sleep_forever()
        finally:
            self.spans.append((began, trio.current_time()))


async def granted(number: int) -> bool | None:
    return False


def script(monkeypatch: pytest.MonkeyPatch, election: Election) -> None:
    for verb in ("look", "acquire", "renew", "resign"):
        monkeypatch.setattr(module, verb, getattr(election, verb))


async def stand(monkeypatch: pytest.MonkeyPatch, election: Election, seconds: float) -> tuple[Leader, Terms, FakePool]:
    script(monkeypatch, election)
    pool, terms = FakePool(), Terms()
    leader = Leader(cast(Any, pool), lambda: ME, TIMING, terms.hold)
    with trio.move_on_after(seconds):
        await leader.run()
    return leader, terms, pool


async def test_renewals_that_are_answered_keep_the_term(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    election = Election(granted)
    leader, terms, _ = await stand(monkeypatch, election, 101)
    [(began, ended)] = terms.spans
    assert (ended - began, leader.terms, leader.term) == (101, 1, None)
    assert [round(at - began, 6) for at in election.renewed] == [2.0 * n for n in range(1, 51)]
    assert election.resigned == [ended], "resigning is the last act, and one"


async def test_a_renewal_that_is_never_answered_ends_the_term_seven_seconds_after_the_last_good_one_was_sent(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def third_hangs(number: int) -> bool | None:
        if number == 3:
            await trio.sleep_forever()
        return False

    election = Election(third_hangs)
    _, terms, _ = await stand(monkeypatch, election, 12)
    began, ended = terms.spans[0]
    assert ended - began == pytest.approx(2 * 2.0 + TIMING.trust)


async def test_an_answer_that_is_late_counts_from_when_the_renewal_was_sent(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def first_is_late_second_hangs(number: int) -> bool | None:
        await trio.sleep(4.0 if number == 1 else 1e6)
        return False

    election = Election(first_is_late_second_hangs)
    _, terms, _ = await stand(monkeypatch, election, 12)
    began, ended = terms.spans[0]
    assert ended - began == pytest.approx(2.0 + TIMING.trust), "not 6.0 + trust"


@pytest.mark.parametrize("answer", [None, TransientStoreError("gone")])
async def test_a_renewal_that_fails_or_finds_another_term_is_a_loss(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, answer: Exception | None
) -> None:
    async def second_is_bad(number: int) -> bool | None:
        if number == 2 and answer is not None:
            raise answer
        return None if number == 2 else False

    leader, terms, _ = await stand(monkeypatch, Election(second_is_bad), 20)
    began, ended = terms.spans[0]
    assert ended - began == pytest.approx(4.0)
    assert leader.terms == 2, "it stands again at once"


async def test_a_leader_that_is_asked_to_resign_stands_aside_for_one_lease(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def second_asks(number: int) -> bool | None:
        return number == 2

    election = Election(second_asks)
    await stand(monkeypatch, election, 20)
    first, second = election.acquired
    assert second - first == pytest.approx(4.0 + TIMING.lease)


async def test_giving_up_without_a_term_is_nothing(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def second_is_bad(number: int) -> bool | None:
        return None if number == 2 else False

    election = Election(second_is_bad)
    script(monkeypatch, election)
    leader = Leader(cast(Any, FakePool()), lambda: ME, TIMING, Terms().hold)
    leader.give_up()
    with trio.move_on_after(20):
        await leader.run()
    first, second = election.acquired
    assert second - first == pytest.approx(4.0), (
        "what was given up before the term did not make it stand aside after it"
    )


async def test_a_connection_that_is_cut_ends_the_term_at_once(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    election, pool, terms = Election(granted), FakePool(), Terms()
    script(monkeypatch, election)
    leader = Leader(cast(Any, pool), lambda: ME, TIMING, terms.hold)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.run)
        await leader.wait_leader()
        await trio.sleep(3.3)
        cut = trio.current_time()
        pool.opened[0].raw.cut()
        await trio.testing.wait_all_tasks_blocked()
        assert terms.spans[0][1] == cut
        assert await leader.wait_leader() == 2, "on a new connection"
        nursery.cancel_scope.cancel()
    assert [len(session.raw.listeners) for session in pool.opened] == [0, 0]
    assert len(election.resigned) == 1, "there was nothing to resign on for the first term"


async def test_a_candidate_that_is_woken_during_its_look_looks_again_at_once(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    election = Election(granted, free=False)
    leader: Leader

    async def freed_meanwhile(session: Any, name: str) -> Any:
        seen = await Election.look(election, session, name)
        await trio.sleep(0.001)
        if not election.free:
            election.free = True
            leader.wake()
        return seen

    script(monkeypatch, election)
    monkeypatch.setattr(module, "look", freed_meanwhile)
    leader = Leader(cast(Any, FakePool()), lambda: ME, TIMING, Terms().hold)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(leader.run)
        await leader.wait_leader()
        assert trio.current_time() - began < 0.1, "what was announced during the look was not lost"
        nursery.cancel_scope.cancel()


async def test_a_request_that_comes_during_a_renewal_is_answered_at_once(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader: Leader
    asked = False

    async def asked_meanwhile(number: int) -> bool | None:
        nonlocal asked
        seen, asked = asked, True
        if not seen:
            leader.wake()
            await trio.sleep(0.001)
        return seen

    election, terms = Election(asked_meanwhile), Terms()
    script(monkeypatch, election)
    leader = Leader(cast(Any, FakePool()), lambda: ME, TIMING, terms.hold)
    with trio.move_on_after(5):
        await leader.run()
    began, ended = terms.spans[0]
    assert ended - began == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"lease": 5.0}, {"trust": 5.0}, {"renew": 3.0}, {"margin": 3.0}, {"lease": 0.0}, {"trust": float("nan")}],
)
def test_settings_without_margin_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(awa.ValidationError):
        awa.MaintenanceSettings(lease=awa.LeaseTiming(**wrong))
