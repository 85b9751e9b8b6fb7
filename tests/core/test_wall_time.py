"""Instants and wall readings around changes of the clocks."""

import datetime as dt
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.core.wall_time import first_reached, load_zone, next_offset_change, offset_at, wall_reading
from awa_actors.errors import ValidationError

ZONES = [
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Asia/Kathmandu",
]


def utc(*fields: int) -> dt.datetime:
    return dt.datetime(*fields, tzinfo=dt.UTC)  # type: ignore[arg-type,misc]  # fields are counted by the caller


@pytest.mark.parametrize(
    ("zone", "after", "until", "change"),
    [
        ("Europe/Berlin", utc(2026, 3, 1), utc(2026, 4, 1), utc(2026, 3, 29, 1)),
        ("Europe/Berlin", utc(2026, 10, 1), utc(2026, 11, 1), utc(2026, 10, 25, 1)),
        ("America/New_York", utc(2026, 3, 1), utc(2026, 4, 1), utc(2026, 3, 8, 7)),
        ("Australia/Lord_Howe", utc(2026, 10, 1), utc(2026, 11, 1), utc(2026, 10, 3, 15, 30)),
        ("Pacific/Apia", utc(2011, 12, 1), utc(2012, 1, 1), utc(2011, 12, 30, 10)),
        ("Asia/Kathmandu", utc(2026, 1, 1), utc(2027, 1, 1), None),
    ],
)
def test_the_change_of_an_offset_is_found_to_the_second(
    zone: str, after: dt.datetime, until: dt.datetime, change: dt.datetime | None
) -> None:
    assert next_offset_change(load_zone(zone), after, until) == change


def test_a_change_counts_from_its_own_instant_on() -> None:
    berlin, change = load_zone("Europe/Berlin"), utc(2026, 3, 29, 1)
    just_before = change - dt.timedelta(microseconds=1)
    assert next_offset_change(berlin, just_before, change) == change
    assert next_offset_change(berlin, change, change + dt.timedelta(days=30)) is None
    assert next_offset_change(berlin, change - dt.timedelta(days=1), change - dt.timedelta(seconds=1)) is None


@given(st.sampled_from(ZONES), st.datetimes(dt.datetime(1971, 1, 1), dt.datetime(2100, 1, 1)))  # noqa: DTZ001  wall readings
def test_a_reading_is_reached_at_the_first_instant_that_shows_it_or_more(zone_name: str, wall: dt.datetime) -> None:
    zone, wall = zoneinfo.ZoneInfo(zone_name), wall.replace(microsecond=0)
    reached = first_reached(zone, wall)
    assert wall_reading(zone, reached) >= wall
    assert wall_reading(zone, reached - dt.timedelta(seconds=1)) < wall
    assert wall_reading(zone, reached) - reached.replace(tzinfo=None) == offset_at(zone, reached)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "Mars/Olympus",
        "Europe",
        "/etc/localtime",
        "../etc/passwd",
        "localtime",
        "x" * 5000,
        "a\x00b",
        "\ud800",
        None,
        3,
    ],
)
def test_a_name_that_is_no_zone_everywhere_is_refused(name: object) -> None:
    with pytest.raises(ValidationError, match=r"^\$\.timezone: .* is not a time zone") as raised:
        load_zone(name)
    assert len(str(raised.value)) < 250
