"""Beats and the limit they stay inside."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.core.liveness import Liveness
from awa_actors.errors import ValidationError


def test_by_default_a_stored_beat_is_never_older_than_a_third_of_the_limit() -> None:
    liveness = Liveness()
    assert (liveness.stale_after, liveness.beat_every, liveness.beat_timeout) == (30.0, 5.0, 5.0)
    assert liveness.worst_age == 10.0


def test_claiming_stops_at_two_thirds_of_the_limit() -> None:
    assert Liveness().stop_claiming_after == 20.0


@given(st.floats(0.001, 1e9))
def test_the_defaults_fit_every_limit(stale_after: float) -> None:
    liveness = Liveness(stale_after=stale_after)
    assert liveness.worst_age < liveness.stop_claiming_after < liveness.stale_after


def test_a_third_is_a_third_however_floats_round_it() -> None:
    assert Liveness(stale_after=0.9, beat_every=0.1, beat_timeout=0.2).worst_age > 0.3


def test_two_timers_that_add_up_to_more_than_a_third_are_refused() -> None:
    Liveness(stale_after=30, beat_every=6, beat_timeout=4)
    with pytest.raises(ValidationError, match=r"beat_every \+ beat_timeout \(10\.5 s\).*third of stale_after \(30 s\)"):
        Liveness(stale_after=30, beat_every=6, beat_timeout=4.5)


@pytest.mark.parametrize("name", ["stale_after", "beat_every", "beat_timeout"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_not_finite_and_positive_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=rf"^\$\.{name}: must be a finite number"):
        Liveness(**{name: value})
