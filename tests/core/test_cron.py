"""Cron expressions: what they accept and when they fire, also where clocks change."""

import datetime as dt
import os
import subprocess
import sys
import zoneinfo

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from awa_actors.core.cron import CronExpression, jitter_seconds
from awa_actors.errors import ValidationError

MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)
DAY = dt.timedelta(days=1)


def utc(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def fires(expression: str, zone: str, since: str, until: str) -> list[str]:
    """List the fires between two wall readings, as UTC hour and minute with the day where it changes."""
    local = zoneinfo.ZoneInfo(zone)
    after = dt.datetime.fromisoformat(since).replace(tzinfo=local).astimezone(dt.UTC)
    before = dt.datetime.fromisoformat(until).replace(tzinfo=local).astimezone(dt.UTC)
    due = CronExpression.parse(expression, zone).due(after, before)
    return [f"{fire:%d %H:%M}Z {fire.astimezone(local):%H:%M}" for fire in due]


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00", "2026-01-01T00:01"),
        ("*/15 * * * *", "2026-01-01T00:15", "2026-01-01T00:30"),
        ("30 4 * * *", "2026-01-01T04:30", "2026-01-02T04:30"),
        ("0 0 29 2 *", "2026-01-01T00:00", "2028-02-29T00:00"),
        ("0 0 29 2 *", "2096-02-29T00:00", "2104-02-29T00:00"),
        ("0 9 * * MON-FRI", "2026-01-02T09:00", "2026-01-05T09:00"),
        ("0 9 * * 7", "2026-01-01T00:00", "2026-01-04T09:00"),
        ("0 0 1 * MON", "2026-01-01T00:00", "2026-01-05T00:00"),
        ("0 0 L * *", "2026-02-01T00:00", "2026-02-28T00:00"),
        ("0 0 * * FRI#2", "2026-01-01T00:00", "2026-01-09T00:00"),
        ("10 30 4 * * *", "2026-01-01T00:00", "2026-01-01T04:30:10"),
        ("* * * * * *", "2026-01-01T00:00", "2026-01-01T00:00:01"),
        ("*/20 * * * * *", "2026-12-31T23:59:40", "2027-01-01T00:00:00"),
        ("0 0 30 2 MON", "2026-02-01T00:00", "2026-02-02T00:00"),
        ("0 12 * jan,jul *", "2026-02-01T00:00", "2026-07-01T12:00"),
    ],
)
def test_an_expression_fires_next_at(text: str, after: str, expected: str) -> None:
    assert CronExpression.parse(text).next_after(utc(after)) == utc(expected)


def test_a_fire_is_strictly_later_than_the_instant_asked_about() -> None:
    every_minute = CronExpression.parse("* * * * *")
    assert every_minute.next_after(utc("2026-01-01T00:00:59.999999")) == utc("2026-01-01T00:01")
    assert every_minute.next_after(utc("2026-01-01T00:01:00.000001")) == utc("2026-01-01T00:02")


def test_an_instant_may_be_given_in_any_zone_but_needs_one() -> None:
    hourly = CronExpression.parse("0 * * * *")
    assert hourly.next_after(dt.datetime(2026, 1, 1, 5, 30, tzinfo=zoneinfo.ZoneInfo("Asia/Kathmandu"))) == utc(
        "2026-01-01T00:00"
    )
    with pytest.raises(ValidationError, match="no time zone"):
        hourly.next_after(dt.datetime(2026, 1, 1))  # noqa: DTZ001  what is refused


@pytest.mark.parametrize(
    "text",
    [
        "", "*", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * 32 * *", "* * * 13 *",
        "* * * * 8", "*/0 * * * *", "5-1 * * * *", "a * * * *", "@daily", "-1 * * * *", "1, * * * *", "1.5 * * * *",
        "* * * * MON#6", "* * * * L", "² * * * *", "* " * 5 + "x" * 300, "9" * 5000 + " * * * *", "\x00 * * * *",
    ],
)  # fmt: skip
def test_a_malformed_expression_is_refused_on_one_short_line(text: str) -> None:
    with pytest.raises(ValidationError, match=r"^\$\.expression: .* is not a cron expression") as raised:
        CronExpression.parse(text)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 2 *", "0 0 31 4,6,9,11 *", "0 0 31 2 */2", "0 0 */30 2 MON#5"])
def test_an_expression_that_never_fires_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match=r"^\$\.expression: "):
        CronExpression.parse(text)


def test_an_expression_of_another_type_is_refused() -> None:
    with pytest.raises(ValidationError, match="None is not a cron expression"):
        CronExpression.parse(None)  # type: ignore[arg-type]  # what a caller without a type checker can do


@given(st.text(st.sampled_from("0123456789*/,-#L MONjan\x00²"), max_size=40))
def test_any_text_either_fires_or_is_refused(text: str) -> None:
    try:
        expression = CronExpression.parse(text)
    except ValidationError:
        return
    assert expression.next_after(utc("2026-01-01T00:00")) > utc("2026-01-01T00:00")


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"^\$\.timezone: 'Mars/Olympus' is not a time zone known here"):
        CronExpression.parse("* * * * *", "Mars/Olympus")


def test_expressions_are_values() -> None:
    assert CronExpression.parse("0  3 * * *", "UTC") == CronExpression.parse(" 0 3 * * * ", "UTC")
    assert CronExpression.parse("0 3 * * *", "UTC") != CronExpression.parse("0 3 * * *", "Europe/Berlin")
    assert repr(CronExpression.parse("0 3 * * *")) == "CronExpression(text='0 3 * * *', timezone='UTC')"


# Berlin: 29 March 2026 02:00 -> 03:00, 25 October 2026 03:00 -> 02:00.


def test_a_fixed_time_in_a_gap_fires_once_at_the_first_instant_after_it() -> None:
    assert fires("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00", "2026-03-31T00:00") == [
        "28 01:30Z 02:30", "29 01:00Z 03:00", "30 00:30Z 02:30",
    ]  # fmt: skip


def test_a_fixed_time_that_exists_twice_fires_at_its_first_occurrence() -> None:
    assert fires("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00", "2026-10-27T00:00") == [
        "24 00:30Z 02:30", "25 00:30Z 02:30", "26 01:30Z 02:30",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["*/15 2 * * *", "0,30 2,3 * * *", "* * 2 * * *"])
def test_several_fixed_times_in_a_gap_fire_once_together(text: str) -> None:
    gap_day = fires(text, "Europe/Berlin", "2026-03-29T00:00", "2026-03-29T03:29")
    assert gap_day == ["29 01:00Z 03:00"]


def test_fixed_times_that_exist_twice_are_not_repeated() -> None:
    assert fires("*/20 2 * * *", "Europe/Berlin", "2026-10-25T00:00", "2026-10-26T00:00") == [
        "25 00:00Z 02:00", "25 00:20Z 02:20", "25 00:40Z 02:40",
    ]  # fmt: skip


def test_a_schedule_of_every_hour_fires_each_real_hour_over_a_gap() -> None:
    assert fires("0 * * * *", "Europe/Berlin", "2026-03-29T00:00", "2026-03-29T05:00") == [
        "29 00:00Z 01:00", "29 01:00Z 03:00", "29 02:00Z 04:00", "29 03:00Z 05:00",
    ]  # fmt: skip


@pytest.mark.parametrize("hours", ["*", "*/1", "0-23"])
def test_a_schedule_of_every_hour_fires_each_real_hour_over_an_overlap(hours: str) -> None:
    assert fires(f"0 {hours} * * *", "Europe/Berlin", "2026-10-25T01:00", "2026-10-25T04:00") == [
        "25 00:00Z 02:00", "25 01:00Z 02:00", "25 02:00Z 03:00", "25 03:00Z 04:00",
    ]  # fmt: skip


def test_every_quarter_of_an_hour_is_every_quarter_of_a_real_hour() -> None:
    for day in ("2026-03-29", "2026-10-25"):
        after = utc(f"{day}T00:00")
        due = CronExpression.parse("*/15 * * * *", "Europe/Berlin").due(after, after + 3 * HOUR)
        assert due == [after + n * 15 * MINUTE for n in range(1, 13)]


def test_a_step_over_hours_counts_as_real_hours_too() -> None:
    assert fires("0 */2 * * *", "Europe/Berlin", "2026-03-29T00:00", "2026-03-29T06:00") == [
        "29 02:00Z 04:00", "29 04:00Z 06:00",
    ]  # fmt: skip
    assert fires("0 */2 * * *", "Europe/Berlin", "2026-10-25T00:00", "2026-10-25T04:00") == [
        "25 00:00Z 02:00", "25 01:00Z 02:00", "25 03:00Z 04:00",
    ]  # fmt: skip


# New York: 8 March 2026 02:00 -> 03:00, 1 November 2026 02:00 -> 01:00.


def test_new_york_repeats_half_past_one_but_the_schedule_does_not() -> None:
    assert fires("30 1 * * *", "America/New_York", "2026-10-31T12:00", "2026-11-03T00:00") == [
        "01 05:30Z 01:30", "02 06:30Z 01:30",
    ]  # fmt: skip
    assert fires("30 2 * * *", "America/New_York", "2026-03-07T12:00", "2026-03-10T00:00") == [
        "08 07:00Z 03:00", "09 06:30Z 02:30",
    ]  # fmt: skip
    assert fires("30 * * * *", "America/New_York", "2026-11-01T00:45", "2026-11-01T03:00") == [
        "01 05:30Z 01:30", "01 06:30Z 01:30", "01 07:30Z 02:30",
    ]  # fmt: skip


# Lord Howe moves by half an hour: 4 October 2026 02:00 -> 02:30, 5 April 2026 02:00 -> 01:30.


def test_lord_howe_moves_by_half_an_hour() -> None:
    zone = "Australia/Lord_Howe"
    assert fires("15 2 * * *", zone, "2026-10-04T00:00", "2026-10-05T00:00") == ["03 15:30Z 02:30"]
    assert fires("30 2 * * *", zone, "2026-10-04T00:00", "2026-10-05T00:00") == ["03 15:30Z 02:30"]
    assert fires("*/15 * * * *", zone, "2026-10-04T01:30", "2026-10-04T03:00") == [
        "03 15:15Z 01:45", "03 15:30Z 02:30", "03 15:45Z 02:45", "03 16:00Z 03:00",
    ]  # fmt: skip
    assert fires("0 * * * *", zone, "2026-10-04T00:30", "2026-10-04T03:00") == ["03 14:30Z 01:00", "03 16:00Z 03:00"]
    assert fires("30 1 * * *", zone, "2026-04-05T00:00", "2026-04-06T00:00") == ["04 14:30Z 01:30"]
    assert fires("*/15 * * * *", zone, "2026-04-05T01:15", "2026-04-05T02:15") == [
        "04 14:30Z 01:30", "04 14:45Z 01:45", "04 15:00Z 01:30",
        "04 15:15Z 01:45", "04 15:30Z 02:00", "04 15:45Z 02:15",
    ]  # fmt: skip


# Casablanca leaves its summer time for Ramadan: 15 February 2026 03:00 -> 02:00, 22 March 2026 02:00 -> 03:00.


def test_casablanca_changes_twice_around_ramadan() -> None:
    zone = "Africa/Casablanca"
    assert fires("30 2 * * *", zone, "2026-02-14T12:00", "2026-02-17T00:00") == ["15 01:30Z 02:30", "16 02:30Z 02:30"]
    assert fires("30 2 * * *", zone, "2026-03-21T12:00", "2026-03-24T00:00") == ["22 02:00Z 03:00", "23 01:30Z 02:30"]
    assert fires("0 * * * *", zone, "2026-02-15T01:30", "2026-02-15T03:00") == [
        "15 01:00Z 02:00", "15 02:00Z 02:00", "15 03:00Z 03:00",
    ]  # fmt: skip


# Apia had no 30 December 2011.


def test_a_day_that_never_was_fires_at_the_first_instant_after_it() -> None:
    zone = "Pacific/Apia"
    assert fires("30 2 * * *", zone, "2011-12-28T12:00", "2012-01-01T12:00") == [
        "29 12:30Z 02:30", "30 10:00Z 00:00", "30 12:30Z 02:30", "31 12:30Z 02:30",
    ]  # fmt: skip
    assert fires("0 12 30 12 *", zone, "2011-12-01T00:00", "2012-02-01T00:00") == ["30 10:00Z 00:00"]
    assert fires("0 * * * *", zone, "2011-12-29T22:30", "2011-12-31T02:00") == [
        "30 09:00Z 23:00", "30 10:00Z 00:00", "30 11:00Z 01:00", "30 12:00Z 02:00",
    ]  # fmt: skip


ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Apia", "UTC"]
CHANGES = [
    "2026-03-29T01:00", "2026-10-25T01:00", "2026-03-08T07:00", "2026-11-01T06:00", "2026-10-03T15:30",
    "2026-04-04T15:00", "2026-02-15T02:00", "2026-03-22T02:00", "2011-12-30T10:00", "2011-09-24T14:00",
    "2026-06-01T00:00",
]  # fmt: skip
MINUTES = st.sampled_from(["*", "*/15", "0", "30", "5,45", "10-20"])
HOURS = st.sampled_from(["*", "*/2", "0-23", "2", "1", "0,3", "1-3", "23"])
DAYS = st.sampled_from(["*", "30", "29,4", "1-8"])


def listed(field: str, size: int) -> set[int]:
    """Expand one field, by other means than the code under test."""
    numbers: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = (f"0-{size - 1}" if span == "*" else span).partition("-")
        numbers |= set(range(int(low), int(high or low) + 1, int(step or 1)))
    return numbers


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(MINUTES, HOURS, DAYS, st.sampled_from(ZONES), st.sampled_from(CHANGES), st.integers(-200, 200))
@example("30", "2", "*", "Pacific/Apia", "2011-12-30T10:00", 0)
def test_fires_are_what_watching_the_wall_clock_minute_by_minute_finds(
    minutes: str, hours: str, days: str, zone_name: str, change: str, shift: int
) -> None:
    zone = zoneinfo.ZoneInfo(zone_name)
    after = utc(change) + (shift - 400) * MINUTE
    until = after + 26 * HOUR
    wanted = (listed(minutes, 60), listed(hours, 24), listed(days, 32))

    def matches(wall: dt.datetime) -> bool:
        return all(part in allowed for part, allowed in zip((wall.minute, wall.hour, wall.day), wanted, strict=True))

    expected = []
    watched_from = after - 3 * HOUR  # longer than these zones ever repeat, so the highest reading so far is known
    highest = watched_from.astimezone(zone).replace(tzinfo=None)
    for instant in (watched_from + n * MINUTE for n in range(1, int((until - watched_from) / MINUTE) + 1)):
        reading = instant.astimezone(zone).replace(tzinfo=None)
        if len(wanted[1]) == 24 or hours.startswith("*"):
            due = matches(reading)
        else:
            newly_reached = int((reading - highest) / MINUTE)
            due = any(matches(highest + n * MINUTE) for n in range(1, newly_reached + 1))
        highest = max(highest, reading)
        if due and instant > after:
            expected.append(instant)
    assert CronExpression.parse(f"{minutes} {hours} {days} * *", zone_name).due(after, until, 10_000) == expected


@given(
    st.sampled_from(
        ["30 2 * * *", "30 1 * * *", "*/15 * * * *", "0 * * * *", "0 0 29 2 *", "* * * * * *", "0 */6 * * 1-5"]
    ),
    st.sampled_from(ZONES),
    st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),  # noqa: DTZ001  with a zone
    st.timedeltas(dt.timedelta(0), dt.timedelta(days=400)),
)
def test_fires_strictly_increase_and_a_later_question_never_has_an_earlier_answer(
    text: str, zone: str, instant: dt.datetime, later: dt.timedelta
) -> None:
    expression = CronExpression.parse(text, zone)
    fire = expression.next_after(instant)
    assert fire > instant
    assert fire.microsecond == 0
    assert fire.tzinfo is dt.UTC
    assert fire < expression.next_after(fire)
    assert expression.next_after(instant + later) >= fire
    if fire > instant + later:
        assert expression.next_after(instant + later) == fire


@pytest.mark.slow
@given(
    st.sampled_from(["30 2 * * *", "*/15 * * * *", "7 */5 * * *", "0 9 * * 1", "*/7 * 2 * * *"]),
    st.sampled_from(ZONES),
    st.datetimes(dt.datetime(2000, 1, 1), dt.datetime(2040, 1, 1), timezones=st.just(dt.UTC)),  # noqa: DTZ001  with a zone
    st.timedeltas(dt.timedelta(0), dt.timedelta(days=3)),
)
def test_the_latest_due_fire_is_the_last_of_the_due_ones(
    text: str, zone: str, after: dt.datetime, span: dt.timedelta
) -> None:
    expression = CronExpression.parse(text, zone)
    due = expression.due(after, after + span, 10_000)
    assert expression.latest_due(after, after + span) == (due[-1] if due else None)


def test_due_fires_include_the_end_and_not_the_beginning() -> None:
    hourly = CronExpression.parse("0 * * * *")
    assert hourly.due(utc("2026-01-01T00:00"), utc("2026-01-01T02:00")) == [
        utc("2026-01-01T01:00"),
        utc("2026-01-01T02:00"),
    ]
    assert hourly.due(utc("2026-01-01T02:00"), utc("2026-01-01T00:00")) == []


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_due_fires_stop_at_the_limit(limit: int) -> None:
    every_second = CronExpression.parse("* * * * * *")
    start = utc("2026-01-01T00:00")
    due = every_second.due(start, start + 365 * DAY, limit)
    assert due == [start + dt.timedelta(seconds=n) for n in range(1, limit + 1)]


@pytest.mark.parametrize("text", ["0 0 1 1 *", "0 * * * *", "0 0 29 2 *"])
def test_the_end_of_the_calendar_is_an_error_and_not_a_loop(text: str) -> None:
    for zone in ZONES:
        with pytest.raises(ValidationError, match="does not fire after"):
            CronExpression.parse(text, zone).next_after(dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC))


def test_jitter_spreads_schedules_and_fires() -> None:
    nominal = utc("2026-01-01T00:00")
    assert len({jitter_seconds(f"job-{n}", nominal, 60) for n in range(100)}) == 100
    assert len({jitter_seconds("job", nominal + n * HOUR, 60) for n in range(100)}) == 100


@given(st.text(max_size=20), st.datetimes(timezones=st.just(dt.UTC)), st.floats(1e-6, 1e6))
def test_jitter_stays_below_its_maximum(name: str, nominal: dt.datetime, most: float) -> None:
    assume(name.isprintable())
    assert 0 <= jitter_seconds(name, nominal, most) < most
    assert jitter_seconds(name, nominal, 0) == 0


def test_jitter_is_the_same_in_every_process_and_zone() -> None:
    nominal = utc("2026-01-01T00:00")
    program = (
        "import datetime as dt; from awa_actors.core.cron import jitter_seconds;"
        "print(repr(jitter_seconds('nightly', dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 60)))"
    )
    here = jitter_seconds("nightly", nominal.astimezone(zoneinfo.ZoneInfo("Asia/Kathmandu")), 60)
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))}
        run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        assert float(run.stdout) == here


@pytest.mark.parametrize("most", [-1.0, float("nan"), float("inf")])
def test_a_maximum_of_jitter_that_is_no_duration_is_refused(most: float) -> None:
    with pytest.raises(ValidationError, match=r"^\$\.jitter"):
        jitter_seconds("nightly", utc("2026-01-01T00:00"), most)
