"""Ordering keys and shards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.core.ordering import ordering_hash, shard_of
from awa_actors.errors import ValidationError


@pytest.mark.parametrize(("key", "shard"), [(b"customer-1", 3), (b"customer-2", 4), (b"abc", 1), (b"", 5)])
def test_a_key_has_the_shard_that_other_producers_compute(key: bytes, shard: int) -> None:
    assert shard_of(key, 8) == shard


def test_the_hash_multiplies_and_adds() -> None:
    assert ordering_hash(b"customer-1") == 3941431770969791803
    assert ordering_hash(b"abc") == 15751086913964468521


@given(st.binary(max_size=1024), st.integers(1, 64))
def test_every_key_has_a_shard_of_the_queue(key: bytes, shards: int) -> None:
    assert 0 <= shard_of(key, shards) < shards


@pytest.mark.parametrize("shards", [0, -1])
def test_a_queue_without_shards_is_refused(shards: int) -> None:
    with pytest.raises(ValidationError, match="at least 1 shard"):
        shard_of(b"k", shards)
