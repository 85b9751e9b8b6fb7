"""Which of a schedule's due fires are enqueued, and where its mark stands afterwards."""

import datetime as dt
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.core.cron import CronExpression, MissedFire, Overlap, plan_fires
from awa_actors.errors import ValidationError

HOURLY = CronExpression.parse("0 * * * *")
SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
LONG_AGO = NOON - dt.timedelta(days=365)


def test_the_policies_are_stored_by_these_names() -> None:
    assert [policy.value for policy in MissedFire] == ["coalesce", "catch_up", "skip"]
    assert [policy.value for policy in Overlap] == ["allow", "skip_if_running"]


@pytest.mark.parametrize("policy", MissedFire)
def test_a_fire_that_is_due_now_is_enqueued_whatever_the_policy(policy: MissedFire) -> None:
    assert plan_fires(HOURLY, NOON - HOUR, LONG_AGO, NOON + SECOND, policy) == ([NOON], NOON)


@pytest.mark.parametrize("policy", MissedFire)
def test_nothing_due_leaves_the_mark(policy: MissedFire) -> None:
    assert plan_fires(HOURLY, NOON, LONG_AGO, NOON + HOUR - SECOND, policy) == ([], NOON)


@pytest.mark.parametrize("policy", MissedFire)
def test_a_clock_that_went_back_fires_nothing_again(policy: MissedFire) -> None:
    assert plan_fires(HOURLY, NOON, LONG_AGO, NOON - 5 * HOUR, policy) == ([], NOON)


def test_coalesce_takes_the_latest_of_the_missed_fires() -> None:
    now = NOON + 5 * HOUR + 30 * SECOND
    assert plan_fires(HOURLY, NOON, LONG_AGO, now, MissedFire.COALESCE) == ([NOON + 5 * HOUR], NOON + 5 * HOUR)


def test_catch_up_takes_every_missed_fire_in_order() -> None:
    fires, mark = plan_fires(HOURLY, NOON, LONG_AGO, NOON + 3 * HOUR, MissedFire.CATCH_UP)
    assert fires == [NOON + HOUR, NOON + 2 * HOUR, NOON + 3 * HOUR]
    assert mark == fires[-1]


def test_catch_up_continues_where_the_limit_stopped_it() -> None:
    now, mark, seen = NOON + 10 * HOUR, NOON, []
    while True:
        fires, new_mark = plan_fires(HOURLY, mark, LONG_AGO, now, MissedFire.CATCH_UP, limit=4)
        if not fires or new_mark is None:
            break
        assert len(fires) <= 4
        seen += fires
        mark = new_mark
    assert seen == [NOON + n * HOUR for n in range(1, 11)]


def test_skip_drops_what_was_missed_and_moves_the_mark_past_it() -> None:
    now = NOON + 5 * HOUR + 61 * SECOND
    assert plan_fires(HOURLY, NOON, LONG_AGO, now, MissedFire.SKIP) == ([], NOON + 5 * HOUR)


def test_skip_keeps_a_fire_that_is_late_within_the_tolerance() -> None:
    now = NOON + 5 * HOUR + 60 * SECOND
    assert plan_fires(HOURLY, NOON, LONG_AGO, now, MissedFire.SKIP) == ([NOON + 5 * HOUR], NOON + 5 * HOUR)
    assert plan_fires(HOURLY, NOON, LONG_AGO, now, MissedFire.SKIP, tolerance=59) == ([], NOON + 5 * HOUR)


@pytest.mark.parametrize("policy", MissedFire)
def test_a_new_schedule_fires_only_for_its_latest_due_time(policy: MissedFire) -> None:
    created = NOON - 3 * HOUR
    assert plan_fires(HOURLY, None, created, NOON + SECOND, policy) == ([NOON], NOON)


@pytest.mark.parametrize("policy", MissedFire)
def test_a_new_schedule_with_nothing_due_has_no_mark(policy: MissedFire) -> None:
    created = NOON + 61 * SECOND
    assert plan_fires(HOURLY, None, created, created + SECOND, policy) == ([], None)


def test_a_schedule_stored_a_moment_late_still_fires() -> None:
    created = NOON + 20 * SECOND
    assert plan_fires(HOURLY, None, created, created, MissedFire.COALESCE) == ([NOON], NOON)


@pytest.mark.parametrize("policy", MissedFire)
def test_a_year_of_missed_seconds_is_planned_at_once(policy: MissedFire) -> None:
    every_second = CronExpression.parse("* * * * * *", "Europe/Berlin")
    begun = time.perf_counter()
    fires, mark = plan_fires(every_second, LONG_AGO, LONG_AGO, NOON, policy)
    assert len(fires) == (1000 if policy is MissedFire.CATCH_UP else 1)
    assert mark == fires[-1]
    assert time.perf_counter() - begun < 10  # a walk over 31 million fires takes minutes


def test_a_silence_after_two_million_fires_is_planned_at_once() -> None:
    every_second_of_january = CronExpression.parse("* * * * 1 *")
    begun = time.perf_counter()
    december = NOON - dt.timedelta(days=10)
    last_of_january = dt.datetime(2025, 1, 31, 23, 59, 59, tzinfo=dt.UTC)
    planned = plan_fires(every_second_of_january, LONG_AGO, LONG_AGO, december, MissedFire.COALESCE)
    assert planned == ([last_of_january], last_of_january)
    assert time.perf_counter() - begun < 10  # as above


@pytest.mark.parametrize("tolerance", [0, -1, float("nan"), float("inf")])
def test_a_tolerance_that_is_no_duration_is_refused(tolerance: float) -> None:
    with pytest.raises(ValidationError, match=r"^\$\.tolerance"):
        plan_fires(HOURLY, None, NOON, NOON, MissedFire.SKIP, tolerance=tolerance)


@given(
    st.sampled_from(["0 * * * *", "*/7 * * * *", "30 2 * * *", "*/20 * * * * *"]),
    st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"]),
    st.sampled_from(MissedFire),
    st.lists(st.timedeltas(dt.timedelta(0), dt.timedelta(hours=9)), max_size=8),
    st.integers(1, 5),
)
def test_however_irregular_the_passes_no_nominal_time_is_fired_twice(
    text: str, zone: str, policy: MissedFire, pauses: list[dt.timedelta], limit: int
) -> None:
    expression = CronExpression.parse(text, zone)
    now, mark, seen = NOON, None, []
    for pause in pauses:
        now += pause
        fires, new_mark = plan_fires(expression, mark, NOON, now, policy, limit=limit)
        assert len(fires) <= limit
        assert all(fire <= now for fire in fires)
        assert mark is None or (new_mark is not None and new_mark >= mark)
        seen += fires
        mark = new_mark
    assert seen == sorted(set(seen))
    if policy is MissedFire.CATCH_UP and seen and mark is not None:
        assert seen == expression.due(seen[0] - SECOND, mark, 100_000)
