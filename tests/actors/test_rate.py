"""The token bucket: how many attempts may start, with time as an argument."""

import pytest

from awa_actors.actors.rate import Bucket


def test_a_bucket_starts_full_and_refills_continuously() -> None:
    bucket = Bucket(10.0, 5)
    assert bucket.take(20, 0.0) == 5
    assert bucket.take(20, 0.0) == 0
    assert bucket.take(20, 0.25) == 2
    assert bucket.next_in(0.25) == pytest.approx(0.05)
    assert bucket.take(20, 0.30) == 1


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = Bucket(10.0, 5)
    bucket.take(5, 0.0)
    assert bucket.take(20, 1000.0) == 5


def test_a_window_sees_at_most_the_burst_and_what_came_in_meanwhile() -> None:
    bucket = Bucket(40.0, 5)
    starts = [(now / 1000, bucket.take(50, now / 1000)) for now in range(0, 2000, 7)]
    for begin, _ in starts:
        assert sum(taken for at, taken in starts if begin <= at < begin + 0.25) <= 5 + 10


def test_tokens_that_started_nothing_come_back() -> None:
    bucket = Bucket(1.0, 5)
    assert bucket.take(5, 0.0) == 5
    bucket.give_back(3)
    assert bucket.take(5, 0.0) == 3


@pytest.mark.parametrize("per_second", [0.1, 1.0, 2.5])
def test_without_a_burst_a_bucket_holds_one_second_but_at_least_one_start(per_second: float) -> None:
    bucket = Bucket(per_second)
    assert bucket.take(10, 0.0) == max(1, -(-per_second // 1))
    assert bucket.next_in(0.0) == pytest.approx(1 / per_second)
