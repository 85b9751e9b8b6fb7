import pytest

from awa_actors.core.transition import WINDOW, Drain, read_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("2h", 7200), ("1h30m", 5400), ("500ms", 0.5), ("1d", 86400), ("1.5h", 5400), ("1m500ms", 60.5)],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "s", "0s", "-1s", "1h 30m", "h1", "1y", "1e3s", "inf", "99999999999h"])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert read_duration(text) is None


def test_a_rate_needs_two_looks() -> None:
    drain = Drain()
    assert (drain.rate, drain.seconds_left) == (None, None)
    drain.saw(100, 0.0)
    assert (drain.rate, drain.seconds_left) == (None, None)
    drain.saw(60, 2.0)
    assert (drain.rate, drain.seconds_left, drain.largest) == (20.0, 3.0, 100)


def test_no_end_is_promised_where_nothing_leaves() -> None:
    drain = Drain()
    for backlog, at in [(100, 0.0), (100, 1.0)]:
        drain.saw(backlog, at)
    assert (drain.rate, drain.seconds_left) == (0.0, None)
    drain.saw(140, 2.0)
    assert (drain.rate, drain.seconds_left, drain.largest) == (-20.0, None, 140)


def test_an_empty_plane_needs_no_more_time() -> None:
    drain = Drain()
    drain.saw(0, 0.0)
    assert drain.seconds_left == 0.0


def test_a_rate_is_taken_from_the_latest_looks_alone() -> None:
    drain = Drain()
    for at in range(100):
        drain.saw(1000, float(at))
    for at in range(WINDOW):
        drain.saw(1000 - 10 * at, 100.0 + at)
    assert drain.rate == 10.0


def test_looks_at_one_instant_give_no_rate() -> None:
    drain = Drain()
    drain.saw(10, 1.0)
    drain.saw(5, 1.0)
    assert drain.rate is None
