"""Wake-ups: a producer notifies when somebody sleeps, and only then. The commit lock of NOTIFY is cluster-wide."""

import pytest
from queue_plane import Plane

CHANNEL = "awa:default"


@pytest.fixture
def sleeper(other: Plane) -> Plane:
    """A session that listens as an idle dispatcher does, but has not said yet that it sleeps."""
    other.rows('LISTEN "awa:default"')
    other.rows("LISTEN fence")
    return other


def lies_down(sleeper: Plane, seconds: float = 60.0) -> None:
    sleeper.rows(
        "INSERT INTO awa.sleepers VALUES ('default', clock_timestamp() + make_interval(secs => %s))"
        " ON CONFLICT (name) DO UPDATE SET until = excluded.until",
        seconds,
    )


def heard(sleeper: Plane, producer: Plane) -> list[str]:
    """Channels that were notified before now: notifications arrive in the order of their commits."""
    producer.rows("NOTIFY fence")
    channels: list[str] = []
    for notice in sleeper.connection.notifies(timeout=5.0):
        if notice.channel == "fence":
            return channels
        channels.append(notice.channel)
    raise AssertionError("the fence did not arrive")


def test_nobody_sleeps_and_nobody_is_notified(plane: Plane, sleeper: Plane) -> None:
    plane.insert(3)
    plane.job(metadata={"a": 1})
    assert heard(sleeper, plane) == []


def test_a_sleeper_is_woken(plane: Plane, sleeper: Plane) -> None:
    lies_down(sleeper)
    plane.insert(3)
    assert heard(sleeper, plane) == [CHANNEL]
    plane.job(metadata={"a": 1})
    assert heard(sleeper, plane) == [CHANNEL]


def test_a_mark_runs_out(plane: Plane, sleeper: Plane) -> None:
    lies_down(sleeper, -1.0)
    plane.insert()
    assert heard(sleeper, plane) == []


def test_other_queues_wake_nobody_here(plane: Plane, sleeper: Plane) -> None:
    lies_down(sleeper)
    plane.insert(queue="other")
    assert heard(sleeper, plane) == []


@pytest.mark.parametrize("way", ["promoted", "given back", "retried by hand", "interrupted"])
def test_whatever_makes_a_job_available_wakes(plane: Plane, sleeper: Plane, way: str) -> None:
    (job_id,) = plane.insert()
    attempt = plane.take(job_id)
    if way == "promoted":
        plane.retry(attempt)
    elif way == "retried by hand":
        plane.fail(attempt)
    lies_down(sleeper)
    if way == "promoted":
        plane.promote()
    elif way == "given back":
        plane.end(attempt, give_back=True)
    elif way == "interrupted":
        plane.end(attempt, state="available", uncount=True, interrupted=True)
    else:
        plane.rows("SELECT awa.retry_job(%s)", job_id)
    assert heard(sleeper, plane) == [CHANNEL]


def test_an_option_turns_it_off(plane: Plane, sleeper: Plane) -> None:
    lies_down(sleeper)
    plane.rows("SET awa.notify = off")
    plane.insert()
    assert heard(sleeper, plane) == []


def test_a_promoter_that_sleeps_is_told_of_what_is_due_earlier(plane: Plane, sleeper: Plane) -> None:
    sleeper.rows('LISTEN "awa:due"')
    sleeper.rows("INSERT INTO awa.sleepers VALUES ('awa:due', clock_timestamp() + interval '60 seconds')")
    plane.job(delay=3600.0)
    assert heard(sleeper, plane) == []
    plane.job(delay=5.0)
    assert heard(sleeper, plane) == ["awa:due"]
