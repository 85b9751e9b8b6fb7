"""JSON that jsonb holds, or an error that names the culprit."""

import dataclasses
import datetime as dt
import enum
import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from awa_actors.core.json_text import JSON_DEPTH, JSON_LIMIT, canonical_json, json_text
from awa_actors.errors import ValidationError

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
FINE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)
BAD = st.sampled_from(
    [math.nan, math.inf, -math.inf, 2**64, "\x00", "\udc00", b"", {1}, {1: 1}, {"\x00": 1}, 1j, object()]
)


class Weird(enum.Enum):
    """An enum whose values JSON cannot all hold."""

    FINE = "fine"
    NAN = math.nan


class Text(enum.StrEnum):
    """An enum of text, one of which cannot be stored."""

    FINE = "fine"
    NUL = "\x00"


@dataclasses.dataclass
class Point:
    """Something the encoder writes as an object."""

    x: float
    y: object = None


class FloatLike(float):
    """A float the encoder does not take for one."""


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def buried(value: object, steps: list[str | int]) -> Any:
    for step in reversed(steps):
        value = {"before": None, step: value} if isinstance(step, str) else [None] * step + [value]
    return value


@given(FINE)
def test_what_is_written_reads_back_as_the_same(value: Any) -> None:
    assert json.loads(json_text(value)) == value


@given(FINE)
def test_canonical_json_is_compact_and_sorted(value: Any) -> None:
    again = json.loads(canonical_json(value))
    assert again == value
    assert canonical_json(again) == canonical_json(value)


@given(BAD, st.lists(st.sampled_from(["a", "b_c"]) | st.integers(0, 3), max_size=5))
def test_a_culprit_is_found_wherever_it_is(bad: object, steps: list[str | int]) -> None:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    with pytest.raises(ValidationError) as raised:
        json_text(buried(bad, steps))
    assert raised.value.path == f"${path}"
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"x": math.nan}, "$.x: nan is not JSON: use None or a string"),
        ({"x": [1, -math.inf]}, "$.x[1]: -inf is not JSON: use None or a string"),
        ({"x": 10**5000}, "$.x: is an integer beyond 64 bits: pass it as a string"),
        ({"x": -(2**63) - 1}, "$.x: is an integer beyond 64 bits: pass it as a string"),
        ({"x": {1: 1}}, "$.x: key 1 is of type int: keys must be plain strings"),
        ({Text.FINE: 1}, "$: key <Text.FINE: 'fine'> is of type Text: keys must be plain strings"),
        ({"x": b"raw"}, "$.x: bytes is not a JSON type: convert it to text, a number, a list or an object"),
        ({"x": {1, 2}}, "$.x: set is not a JSON type: convert it to text, a number, a list or an object"),
        (
            {"x": dt.timedelta(1)},
            "$.x: timedelta is not a JSON type: convert it to text, a number, a list or an object",
        ),
        ({"x": FloatLike(1)}, "$.x: FloatLike is not a JSON type: convert it to text, a number, a list or an object"),
        ({"x": Point}, "$.x: type is not a JSON type: convert it to text, a number, a list or an object"),
        (
            {"items": [0, 1, 2, {"name": "a\x00b"}]},
            "$.items[3].name: contains a NUL character, which Postgres cannot store: remove it or encode it (base64)",
        ),
        ({"x": "\ud800"}, "$.x: contains a lone surrogate, which is not text: decode it properly or replace it"),
        (
            {"a\x00": 1},
            "$: key 'a\\x00' contains a NUL character, which Postgres cannot store: remove it or encode it (base64)",
        ),
        ({"two words": {"": math.nan}}, '$["two words"][""]: nan is not JSON: use None or a string'),
        ({"x": Weird.NAN}, "$.x: nan is not JSON: use None or a string"),
        ({"x": Point(math.nan)}, "$.x.x: nan is not JSON: use None or a string"),
        ({"x": Point(1, b"")}, "$.x.y: bytes is not a JSON type: convert it to text, a number, a list or an object"),
    ],
)
def test_the_error_names_the_culprit_and_what_to_do(value: object, message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        json_text(value)
    assert str(raised.value) == message


def test_the_path_of_an_error_begins_where_the_caller_says() -> None:
    with pytest.raises(ValidationError, match=r"^\$\.metadata\.x: nan"):
        json_text({"x": math.nan}, path="$.metadata")


def test_a_nul_inside_an_enum_of_text_is_found() -> None:
    with pytest.raises(ValidationError, match="NUL"):
        json_text({"x": Text.NUL})


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "null", 'annulled "null"', "\\u0001"])
def test_text_that_only_looks_suspicious_is_written(text: str) -> None:
    assert json.loads(json_text({"x": text, "n": None})) == {"x": text, "n": None}


def test_dates_uuids_enums_and_dataclasses_are_written_as_the_encoder_does() -> None:
    value = {
        "at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "id": uuid.UUID(int=1),
        "e": [Weird.FINE, Text.FINE],
        "p": Point(1.5),
        "t": (1, 2),
    }
    assert json.loads(json_text(value)) == {
        "at": "2026-01-02T00:00:00+00:00",
        "id": "00000000-0000-0000-0000-000000000001",
        "e": ["fine", "fine"],
        "p": {"x": 1.5, "y": None},
        "t": [1, 2],
    }


def test_the_deepest_nesting_is_written_and_one_level_more_is_refused() -> None:
    assert json_text(nested(JSON_DEPTH)).count("[") == JSON_DEPTH
    with pytest.raises(ValidationError, match="more than 254 levels of nesting"):
        json_text(nested(JSON_DEPTH + 1))


def test_a_nesting_of_a_hundred_thousand_levels_is_refused() -> None:
    with pytest.raises(ValidationError, match="levels of nesting") as raised:
        json_text(nested(100_000))
    assert len(str(raised.value)) < 200


def test_a_culprit_at_the_deepest_level_is_found() -> None:
    value: Any = math.nan
    for _ in range(JSON_DEPTH):
        value = [value]
    with pytest.raises(ValidationError, match="nan is not JSON"):
        json_text(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {"items": [{}]}
    value["items"][0]["parent"] = value
    with pytest.raises(ValidationError, match=r"^\$\.items\[0\]\.parent: refers back to a value that contains it"):
        json_text(value)


def test_a_culprit_is_found_behind_values_that_are_fine() -> None:
    shared = [[1], {"a": 2}]
    with pytest.raises(ValidationError, match=r"^\$\.last\[1\]: nan"):
        json_text({"one": shared, "two": [shared, shared], "last": [0, math.nan]})


def test_a_value_that_occurs_twice_is_not_a_cycle() -> None:
    shared = [None]
    assert json_text({"a": shared, "b": [shared, shared]}) == '{"a":[null],"b":[[null],[null]]}'


def test_a_document_over_the_limit_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValidationError, match=r"^\$: 1,048,577 bytes of JSON, at most 1,048,576 are stored"):
        json_text("x" * (JSON_LIMIT - 1))
    assert len(json_text("x" * (JSON_LIMIT - 2))) == JSON_LIMIT


def test_the_limit_counts_bytes() -> None:
    json_text("😀", limit=6)
    with pytest.raises(ValidationError, match="6 bytes"):
        json_text("😀", limit=5)
