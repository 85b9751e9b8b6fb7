"""The times of the leader's lease."""

import math

import attrs
import pytest

from awa_actors.core.leadership import LeaseTiming
from awa_actors.errors import ValidationError


def test_the_defaults_leave_room_for_a_late_renewal() -> None:
    assert attrs.asdict(LeaseTiming()) == {"lease": 10.0, "trust": 7.0, "renew": 2.0, "margin": 1.0}


def test_trust_counts_from_the_sending_of_a_renewal() -> None:
    assert LeaseTiming().trusted_until(100.0) == 107.0


@pytest.mark.parametrize("lease", [7.0, 6.9])
def test_a_lease_not_longer_than_the_trust_in_it_is_refused(lease: float) -> None:
    with pytest.raises(ValidationError, match=r"lease .* must be longer than trust"):
        LeaseTiming(lease=lease)


@pytest.mark.parametrize("renew", [3.0, 3.5, 10.0])
def test_a_renewal_interval_without_two_chances_is_refused(renew: float) -> None:
    with pytest.raises(ValidationError, match=r"trust .* must be longer than 2 \* renew \+ margin"):
        LeaseTiming(renew=renew)


def test_the_margin_counts() -> None:
    LeaseTiming(margin=2.9)
    with pytest.raises(ValidationError, match="margin"):
        LeaseTiming(margin=3.0)


@pytest.mark.parametrize("name", ["lease", "trust", "renew", "margin"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_not_finite_and_positive_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=rf"^\$\.{name}: must be a finite number"):
        LeaseTiming(**{name: value})
