"""Where a claimer starts: not behind what commits late, not over everything again and again, and never for long."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.actors.looks import FREE, LAG, LONGEST, SHARE, Looks

DEAR = 0.004
"""Seconds of a look that is not free."""


def claim(looks: Looks, now: float, found: list[int], *, is_full: bool = False, looked: float = 0.0) -> list[int]:
    """One claim: where it started."""
    hints = looks.start(now)
    looks.came(found, is_full=is_full, looked=looked, now=now + 0.001)
    return hints


def test_while_it_is_free_every_claim_that_keeps_up_looks_from_the_beginning() -> None:
    looks = Looks()
    for n in range(100):
        assert claim(looks, n * 0.01, [0, n + 1, 0, 0], looked=FREE) == []
        assert looks.wait(n * 0.01) == math.inf


def test_a_full_claim_is_followed_from_where_it_ended() -> None:
    looks = Looks()
    claim(looks, 0.0, [0, 7, 0, 0], is_full=True)
    assert claim(looks, 0.1, [0, 9, 0, 0], is_full=True) == [0, 7, 0, 0]
    assert claim(looks, 0.2, [0, 12, 0, 0], is_full=True) == [0, 9, 0, 0]
    assert claim(looks, 0.3, [0, 15, 0, 0], is_full=True) == [], "not for ever: others commit late"


def test_a_claim_that_goes_on_and_comes_back_short_is_followed_by_a_look_from_the_beginning_at_once() -> None:
    looks = Looks()
    claim(looks, 0.0, [0, 7, 0, 0], is_full=True)
    assert claim(looks, 0.1, []) == [0, 7, 0, 0]
    assert looks.wait(0.101) == 0.0
    assert claim(looks, 0.102, []) == []


def test_where_a_look_is_dear_one_that_keeps_up_starts_where_it_was_a_moment_ago() -> None:
    looks = Looks()
    starts = [claim(looks, n * 0.01, [0, n + 1, 0, 0], looked=DEAR) for n in range(300)]
    hinted = [(n, hints[1]) for n, hints in enumerate(starts) if any(hints)]
    assert len(hinted) > 200
    assert all(LAG <= (n - position) * 0.01 + 1e-9 <= 2 * LAG + 0.02 for n, position in hinted)


def test_dear_looks_take_a_bounded_share_of_the_time() -> None:
    looks, now, costly = Looks(), 0.0, 0.0
    while now < 60.0:
        looked = 0.0001 if any(looks.start(now)) else 0.1
        now += looked
        if looked == 0.1 and now > 2.0:  # the first ones know no place to start from
            costly += looked
        looks.came([0, 3, 0, 0], is_full=False, looked=looked, now=now)
        now += 0.005
    assert 0.01 < costly / now <= SHARE


def test_what_lies_behind_the_start_waits_until_the_next_look_from_the_beginning() -> None:
    looks = Looks()
    claim(looks, 0.0, [0, 7, 0, 0], is_full=True, looked=DEAR)
    assert claim(looks, 0.01, [], looked=0.0) == [0, 7, 0, 0]
    assert looks.wait(0.011) == pytest.approx(DEAR / SHARE - 0.01)
    assert claim(looks, 0.011 + looks.wait(0.011), []) == []


def test_a_look_that_took_long_for_another_reason_does_not_put_off_the_next_one_for_long() -> None:
    looks = Looks()
    claim(looks, 0.0, [0, 7, 0, 0], is_full=True, looked=60.0)
    assert claim(looks, 1.0, [0, 9, 0, 0]) == [0, 7, 0, 0]
    assert looks.wait(1.0) <= LONGEST


def test_a_lane_in_which_nothing_was_found_keeps_its_place() -> None:
    looks = Looks()
    claim(looks, 0.0, [5, 7, 0, 0], is_full=True)
    claim(looks, 0.1, [0, 9, 0, 0], is_full=True)
    assert claim(looks, 0.2, [], is_full=True) == [5, 9, 0, 0]
    assert claim(looks, 0.21, [0] * 8, is_full=True) == [5, 9, 0, 0], "nothing found says nothing about places"
    looks.came([0, 9, 0, 0, 0, 3, 0, 0], is_full=True, looked=0.0, now=0.22)
    assert looks.start(0.23) == [0, 9, 0, 0, 0, 3, 0, 0], "another number of shards: other lanes"


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.booleans(), st.booleans()), max_size=60))
def test_nothing_is_skipped_for_longer_than_was_promised(turns: list[tuple[float, float, bool, bool]]) -> None:
    """However claims go: the next look from the beginning comes after LAG, or what the last one cost by its share."""
    looks, now, due = Looks(), 0.0, 0.0
    for pause, looked, finds, is_full in turns:
        now += min(pause, looks.wait(now))
        if not any(looks.start(now)):
            due = now + looked + max(LAG, min(looked / SHARE, LONGEST))
        else:
            assert now <= due + 1e-9
        now += looked
        looks.came([0, 3, 0, 0] if finds else [], is_full=is_full, looked=looked, now=now)
