"""Names of NOTIFY channels."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.core.channels import (
    CALLBACK_CHANNEL,
    CANCEL_CHANNEL,
    DUE_CHANNEL,
    LEADER_CHANNEL,
    RESERVED_NAMES,
    STORAGE_CHANNEL,
    queue_channel,
)

CONTROL = {CANCEL_CHANNEL, DUE_CHANNEL, LEADER_CHANNEL, STORAGE_CHANNEL, CALLBACK_CHANNEL}
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=60)


def hashed(queue: str) -> str:
    return "awa#" + hashlib.md5(queue.encode(), usedforsecurity=False).hexdigest()


def test_a_queue_is_announced_under_its_own_name() -> None:
    assert queue_channel("email") == "awa:email"


def test_a_name_that_just_fits_is_kept_and_one_byte_more_is_hashed() -> None:
    assert queue_channel("q" * 59) == "awa:" + "q" * 59
    assert queue_channel("q" * 60) == hashed("q" * 60)


def test_the_longest_queue_name_has_a_channel_that_fits() -> None:
    assert len(queue_channel("q" * 200)) == 36


def test_a_character_on_the_limit_is_not_split() -> None:
    assert queue_channel("q" * 55 + "😀") == "awa:" + "q" * 55 + "😀"
    for start in (56, 57, 58, 59):
        name = "q" * start + "😀"
        assert queue_channel(name) == hashed(name)


@pytest.mark.parametrize("queue", sorted(RESERVED_NAMES))
def test_a_queue_named_like_a_control_channel_is_not_confused_with_it(queue: str) -> None:
    assert "awa:" + queue in CONTROL
    assert queue_channel(queue) == hashed(queue)


def test_every_control_channel_is_a_reserved_name() -> None:
    assert {"awa:" + name for name in RESERVED_NAMES} == CONTROL


@given(NAMES, NAMES)
def test_queues_never_share_a_channel_with_each_other_or_with_control(one: str, other: str) -> None:
    assert len(queue_channel(one).encode()) <= 63
    assert queue_channel(one) not in CONTROL
    assert (queue_channel(one) == queue_channel(other)) == (one == other)
