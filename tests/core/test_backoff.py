"""Retry delays and the delays that users ask for."""

import datetime as dt
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.core.backoff import DAY, LONGEST_DELAY, clamp_delay, retry_delay
from awa_actors.errors import ValidationError

JITTER = st.floats(0, 1, exclude_max=True)
ALMOST_ONE = math.nextafter(1, 0)


@pytest.mark.parametrize(("attempt", "least", "most"), [(1, 2, 2.5), (2, 4, 5), (3, 8, 10), (10, 1024, 1280)])
def test_the_delay_doubles_and_jitter_adds_up_to_a_quarter(attempt: int, least: float, most: float) -> None:
    assert retry_delay(attempt, jitter=0.0) == least
    assert most - 1e-9 <= retry_delay(attempt, jitter=ALMOST_ONE) <= most


@pytest.mark.parametrize("attempt", [17, 43, 44, 46, 47, 1000, 32_767, 10**400])
@pytest.mark.parametrize("jitter", [0.0, ALMOST_ONE])
def test_from_the_seventeenth_attempt_on_the_delay_is_a_day(attempt: int, jitter: float) -> None:
    assert retry_delay(attempt, jitter=jitter) == DAY


def test_the_cap_holds_after_the_jitter() -> None:
    assert retry_delay(16, jitter=0.0) == 65_536
    assert retry_delay(16, jitter=ALMOST_ONE) <= DAY
    assert retry_delay(3, cap=9.0, jitter=0.9) == 9.0


@given(
    attempt=st.integers(-5, 10**9),
    base=st.floats(1e-300, 1e300),
    factor=st.floats(1, 1e300),
    cap=st.floats(1e-300, 1e300),
    jitter=JITTER,
)
def test_every_attempt_has_a_finite_delay_within_the_cap(
    attempt: int, base: float, factor: float, cap: float, jitter: float
) -> None:
    assert 0 < retry_delay(attempt, base=base, factor=factor, cap=cap, jitter=jitter) <= cap


@given(st.integers(1, 1000), st.floats(1.0001, 10), JITTER)
def test_a_later_attempt_never_waits_less(attempt: int, factor: float, jitter: float) -> None:
    assert retry_delay(attempt, factor=factor, jitter=jitter) <= retry_delay(attempt + 1, factor=factor, jitter=jitter)


@pytest.mark.parametrize(
    "attempt", [-(10**400), -1, 0, 1, 1000, 10**400], ids=["-huge", "-1", "0", "1", "1000", "huge"]
)
def test_a_factor_of_one_keeps_the_delay(attempt: int) -> None:
    assert retry_delay(attempt, base=3.0, factor=1.0, jitter=0.0) == 3.0


def test_before_the_first_attempt_the_delay_is_the_base() -> None:
    assert retry_delay(0, jitter=0.0) == retry_delay(-5, jitter=0.0) == 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base", 0.0), ("base", -1.0), ("base", math.nan), ("base", math.inf),
        ("factor", 0.99), ("factor", math.nan), ("factor", math.inf),
        ("cap", 0.0), ("cap", math.nan), ("cap", math.inf),
        ("jitter", 1.0), ("jitter", -0.1), ("jitter", math.nan),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    settings = {"base": 1.0, "factor": 2.0, "cap": DAY, "jitter": 0.0} | {name: value}
    with pytest.raises(ValidationError, match=rf"^\$\.{name}"):
        retry_delay(1, **settings)


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [(0, 0.0), (5, 5.0), (0.25, 0.25), (dt.timedelta(minutes=1, milliseconds=5), 60.005), (dt.timedelta(0), 0.0)],
)
def test_a_delay_is_seconds_or_a_timedelta(delay: float | dt.timedelta, seconds: float) -> None:
    clamped = clamp_delay(delay)
    assert clamped == seconds
    assert type(clamped) is float


@pytest.mark.parametrize("delay", [LONGEST_DELAY + 1, 1e300, 10**400, dt.timedelta.max])
def test_a_delay_of_centuries_is_ten_years(delay: float | dt.timedelta) -> None:
    assert clamp_delay(delay) == LONGEST_DELAY
    dt.datetime.now(dt.UTC) + dt.timedelta(seconds=LONGEST_DELAY)


@pytest.mark.parametrize(
    "delay",
    [math.nan, math.inf, -math.inf, -0.001, -1, -(10**5000), dt.timedelta(seconds=-1), dt.timedelta.min],
    ids=["nan", "inf", "-inf", "-0.001", "-1", "huge", "timedelta", "timedelta.min"],
)
def test_a_delay_that_is_no_time_from_now_is_refused(delay: float | dt.timedelta) -> None:
    with pytest.raises(ValidationError, match=r"^\$\.snooze: a delay is finite and not negative, not "):
        clamp_delay(delay, path="$.snooze")


@pytest.mark.parametrize("delay", ["5", None, True, [], dt.date.max])
def test_a_delay_of_another_type_is_refused_by_value(delay: object) -> None:
    with pytest.raises(ValidationError, match="number of seconds"):
        clamp_delay(delay)  # type: ignore[arg-type]  # what a caller without a type checker can do
