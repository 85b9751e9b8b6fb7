"""The key of a unique job and the mask of states that hold it."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.core.unique import DEFAULT_MASK, UPSTREAM_DEFAULT_MASK, mask_bits, state_mask, unique_key
from awa_actors.errors import ValidationError
from awa_actors.jobs import JobState

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=4), inner, max_size=4
        )
    ),
    max_leaves=10,
)
ARGS: dict[str, Any] = {"to": "a@b.com", "n": 1}


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


def test_the_key_is_the_digest_that_producers_in_other_languages_compute() -> None:
    assert unique_key("send_email").hex() == "bee8bfbcd9d48e51f79059a523039018"
    assert unique_key("send_email", args=ARGS).hex() == "5fe1cd6e834a441ee75129690aa87321"
    assert unique_key("send_email", queue="default", args=ARGS, period=1000).hex() == "6451ef8cd55d81e70f54c8d3649388b4"


def test_args_may_be_given_as_their_canonical_json() -> None:
    assert unique_key("send_email", args=b'{"n":1,"to":"a@b.com"}') == unique_key("send_email", args=ARGS)


def test_an_int_a_float_a_string_a_boolean_and_null_are_five_different_values() -> None:
    keys = {unique_key("k", args={"a": value}) for value in (1, 1.0, "1", True, None)}
    assert len(keys) == 5
    assert unique_key("k", args={"a": None}) != unique_key("k", args={})


def test_empty_args_match_only_empty_args() -> None:
    assert unique_key("k", args={}) != unique_key("k", args={"a": 1})
    assert unique_key("k", args={}) != unique_key("k")


def test_text_is_hashed_unescaped() -> None:
    assert unique_key("k", args={"ü": "😀"}) == unique_key("k", args='{"ü":"😀"}'.encode())


@given(JSON)
def test_the_order_of_keys_does_not_matter_at_any_depth(value: Any) -> None:
    if value is not None:
        assert unique_key("k", args=value) == unique_key("k", args=shuffled(value))


def test_the_key_does_not_depend_on_the_process() -> None:
    program = (
        "from awa_actors.core.unique import unique_key;"
        "print(unique_key('k', queue='q', args={'b': [1, {'d': 1, 'c': 2}], 'a': 'x'}).hex())"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(keys) == 1


@pytest.mark.parametrize("args", [{"x": float("nan")}, {"x": b""}, {1: 1}])
def test_args_that_are_not_json_have_no_key(args: object) -> None:
    with pytest.raises(ValidationError, match=r"^\$\.args"):
        unique_key("k", args=args)


@pytest.mark.parametrize("period", [-(2**63), -1, 0, 2**63 - 1])
def test_a_period_is_any_signed_64_bit_integer(period: int) -> None:
    assert len(unique_key("k", period=period)) == 16


@pytest.mark.parametrize("period", [-(2**63) - 1, 2**63])
def test_a_period_beyond_64_bits_is_refused(period: int) -> None:
    with pytest.raises(ValidationError, match="64-bit"):
        unique_key("k", period=period)


def test_the_bit_of_a_state_is_its_place_in_the_enum() -> None:
    assert [state.value for state in JobState] == [
        "scheduled", "available", "running", "completed", "retryable", "failed", "cancelled", "waiting_external",
    ]  # fmt: skip
    assert [state_mask([state]) for state in JobState] == [1, 2, 4, 8, 16, 32, 64, 128]


def test_the_first_state_is_the_leftmost_bit() -> None:
    first_four = list(JobState)[:4]
    assert mask_bits(state_mask(first_four)) == "11110000"
    assert mask_bits(UPSTREAM_DEFAULT_MASK) == "11111000"


def test_by_default_a_job_that_waits_for_a_callback_holds_its_claim() -> None:
    assert mask_bits(DEFAULT_MASK) == "11111001"
    assert state_mask(set(JobState) - {JobState.FAILED, JobState.CANCELLED}) == DEFAULT_MASK


def test_a_mask_without_states_is_refused() -> None:
    with pytest.raises(ValidationError, match="no state"):
        state_mask([])


@pytest.mark.parametrize("mask", [-1, 256])
def test_a_mask_of_more_than_eight_bits_is_refused(mask: int) -> None:
    with pytest.raises(ValidationError, match="8 bits"):
        mask_bits(mask)


@given(st.integers(0, 255))
def test_bits_read_backwards_are_the_mask(mask: int) -> None:
    assert int(mask_bits(mask)[::-1], 2) == mask
