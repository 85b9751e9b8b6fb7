"""Checks of what users hand in."""

import datetime as dt
import math
import zoneinfo
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.core.validation import (
    EARLIEST,
    LATEST,
    aware_datetime,
    check_kind,
    check_max_attempts,
    check_metadata,
    check_ordering_key,
    check_priority,
    check_queue,
    check_tags,
    positive_seconds,
)
from awa_actors.errors import ValidationError

NOT_NAMES = ["", " ", "\t\n", "a\x00b", "\ud800", None, 7, b"bytes", ["list"]]


@pytest.mark.parametrize("check", [check_kind, check_queue])
@pytest.mark.parametrize("value", NOT_NAMES)
def test_a_name_that_is_not_a_name_is_refused_on_one_line(check: Callable[[object], str], value: object) -> None:
    with pytest.raises(ValidationError, match=r"^\$\.(kind|queue): ") as raised:
        check(value)
    assert "\n" not in str(raised.value)


def test_a_kind_has_at_most_200_characters() -> None:
    assert check_kind("ü" * 200) == "ü" * 200
    with pytest.raises(ValidationError, match="has 201 characters, at most 200 are allowed"):
        check_kind("k" * 201)


def test_a_queue_has_at_most_200_bytes() -> None:
    assert check_queue("q" * 200) == "q" * 200
    assert check_queue("😀" * 50) == "😀" * 50
    with pytest.raises(ValidationError, match="has 201 bytes, at most 200 are allowed"):
        check_queue("q" * 201)
    with pytest.raises(ValidationError, match="has 204 bytes"):
        check_queue("😀" * 51)


def test_an_error_about_a_huge_name_is_short() -> None:
    with pytest.raises(ValidationError) as raised:
        check_queue("q" * 5_000_000)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("priority", [1, 2, 3, 4])
def test_a_priority_is_one_to_four(priority: int) -> None:
    assert check_priority(priority) == priority


@pytest.mark.parametrize("priority", [0, 5, -1, 2.0, "2", True, None, 10**5000], ids=lambda value: repr(type(value)))
def test_any_other_priority_is_refused(priority: object) -> None:
    with pytest.raises(ValidationError, match=r"^\$\.priority: must be an integer from 1 to 4, not "):
        check_priority(priority)


def test_attempts_are_limited_to_a_thousand() -> None:
    assert (check_max_attempts(1), check_max_attempts(1000)) == (1, 1000)
    for refused in (0, 1001, None, 1.5, False):
        with pytest.raises(ValidationError, match=r"^\$\.max_attempts: must be an integer from 1 to 1000"):
            check_max_attempts(refused)


def test_tags_keep_their_order() -> None:
    assert check_tags(["b", "a", "b"]) == ("b", "a", "b")
    assert check_tags(()) == ()
    assert len(check_tags(str(n) for n in range(20))) == 20


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("urgent", r"^\$\.tags: must be a list of strings, not 'urgent'"),
        ({"a": 1}, "must be a list of strings"),
        (None, "must be a list of strings"),
        ([str(n) for n in range(21)], "more than 20 tags"),
        (["ok", ""], r"^\$\.tags\[1\]: must not be empty"),
        (["ok", 3], r"^\$\.tags\[1\]: must be a string, not 3"),
        (["x" * 201], r"^\$\.tags\[0\]: has 201 characters"),
        (["a\x00"], "NUL"),
        (["\udfff"], "surrogate"),
    ],
)
def test_tags_that_cannot_be_stored_are_refused(tags: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        check_tags(tags)


def test_an_endless_stream_of_tags_is_refused() -> None:
    def endless() -> object:
        while True:
            yield "tag"

    with pytest.raises(ValidationError, match="more than 20"):
        check_tags(endless())


def test_metadata_is_the_users_except_for_reserved_keys() -> None:
    assert check_metadata({"tenant": 1, "awake": 2, "_awaits": 3}) == {"tenant": 1, "awake": 2, "_awaits": 3}


@pytest.mark.parametrize(
    "key", ["awa:x", "_awa_original_queue", "_awa_callback_result", "cron_name", "triggered_manually"]
)
def test_a_reserved_metadata_key_is_refused(key: str) -> None:
    with pytest.raises(ValidationError, match=rf"^\$\.metadata: key '{key}' is reserved"):
        check_metadata({key: 1})


def test_a_caller_may_bring_its_own_trace_context() -> None:
    assert check_metadata({"awa:traceparent": "00-0-0-00"}) == {"awa:traceparent": "00-0-0-00"}


@pytest.mark.parametrize("metadata", [None, [], "x", 3, {1: 2}])
def test_metadata_that_is_no_object_is_refused(metadata: object) -> None:
    with pytest.raises(ValidationError, match=r"^\$\.metadata: "):
        check_metadata(metadata)


@pytest.mark.parametrize(
    ("key", "stored"),
    [
        ("customer-1", b"customer-1"),
        ("ü", b"\xc3\xbc"),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"a"), b"a"),
        (memoryview(b"a"), b"a"),
    ],
)
def test_an_ordering_key_is_text_or_bytes(key: object, stored: bytes) -> None:
    assert check_ordering_key(key) == stored


@pytest.mark.parametrize("key", ["", " ", b"", "a\x00", "\ud800", None, 5, "x" * 1025, b"x" * 1025, "ü" * 513])
def test_an_ordering_key_that_orders_nothing_is_refused(key: object) -> None:
    with pytest.raises(ValidationError, match=r"^\$\.ordering_key: "):
        check_ordering_key(key)


def test_the_longest_ordering_key_is_1024_bytes() -> None:
    assert len(check_ordering_key("ü" * 512)) == 1024


def test_a_naive_run_at_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"^\$\.run_at: 2026-01-01T00:00:00 has no time zone"):
        aware_datetime(dt.datetime(2026, 1, 1))  # noqa: DTZ001  what is refused


@pytest.mark.parametrize("value", [dt.date(2026, 1, 1), "2026-01-01T00:00:00Z", 0, None])
def test_a_run_at_that_is_no_datetime_is_refused(value: object) -> None:
    with pytest.raises(ValidationError, match="must be a datetime"):
        aware_datetime(value)


def test_a_run_at_is_the_same_instant_in_utc() -> None:
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    first, second = (dt.datetime(2026, 10, 25, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1))
    assert aware_datetime(first) == dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC)
    assert aware_datetime(second) == dt.datetime(2026, 10, 25, 1, 30, tzinfo=dt.UTC)
    assert aware_datetime(first).tzinfo is dt.UTC


@pytest.mark.parametrize("zone", [dt.UTC, dt.timezone(dt.timedelta(hours=14)), dt.timezone(dt.timedelta(hours=-14))])
@pytest.mark.parametrize(
    "extreme",
    [dt.datetime.min, dt.datetime.max],  # noqa: DTZ901  the zone comes from the other parameter
)
def test_the_ends_of_the_calendar_are_refused(zone: dt.tzinfo, extreme: dt.datetime) -> None:
    with pytest.raises(ValidationError, match="is outside"):
        aware_datetime(extreme.replace(tzinfo=zone))


@given(st.datetimes(EARLIEST.replace(tzinfo=None), LATEST.replace(tzinfo=None)), st.integers(-23, 23))
def test_an_instant_in_range_is_kept_to_the_microsecond(wall: dt.datetime, hours: int) -> None:
    instant = wall.replace(tzinfo=dt.UTC)
    try:
        elsewhere = instant.astimezone(dt.timezone(dt.timedelta(hours=hours)))
    except OverflowError:
        return
    assert aware_datetime(elsewhere) == instant


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, None, "5", True])
def test_a_setting_in_seconds_is_finite_and_positive(seconds: object) -> None:
    assert positive_seconds(5, path="$.x") == 5.0
    with pytest.raises(ValidationError, match=r"^\$\.x: must be a finite number of seconds above 0"):
        positive_seconds(seconds, path="$.x")
