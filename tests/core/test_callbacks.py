"""What a payload means, and what of it is kept."""

from __future__ import annotations

from typing import Any

import pytest

from awa_actors.core.callbacks import (
    Complete,
    DefaultAction,
    Fail,
    Ignore,
    check_callback_id,
    check_expressions,
    decide,
    default_action,
    payload_text,
)
from awa_actors.errors import UsageError, ValidationError


def scripted(**answers: Any) -> Any:
    """An evaluator whose expressions are their own names."""

    def evaluate(expression: str, payload: Any) -> Any:
        answer = answers[expression]
        if isinstance(answer, Exception):
            raise answer
        return answer(payload) if callable(answer) else answer

    return evaluate


ALL = {name: name for name in ("filter", "on_fail", "on_complete")}


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"filter": False, "on_fail": True, "on_complete": True}, Ignore),
        ({"filter": True, "on_fail": True, "on_complete": True}, Fail),
        ({"filter": True, "on_fail": False, "on_complete": True}, Complete),
        ({"filter": True, "on_fail": False, "on_complete": False}, Ignore),
        ({"filter": RuntimeError(), "on_fail": False, "on_complete": True}, Complete),
        ({"filter": "yes", "on_fail": 1, "on_complete": True}, Complete),
        ({"filter": True, "on_fail": KeyError("x"), "on_complete": "true"}, Ignore),
    ],
)
def test_expressions_are_asked_in_order_and_never_decide_by_breaking(answers: dict[str, Any], expected: type) -> None:
    assert isinstance(decide(ALL, 1, DefaultAction.IGNORE, scripted(**answers)), expected)


@pytest.mark.parametrize(
    ("action", "expected"),
    [("complete", Complete({"n": 1})), ("fail", "by default"), ("ignore", "no expression matched")],
)
def test_the_default_decides_last(action: str, expected: Any) -> None:
    decided = decide({}, {"n": 1}, default_action(action), scripted())
    assert decided == expected or expected in str(decided)


def test_a_transform_makes_the_result_and_a_broken_one_leaves_the_payload() -> None:
    for answer, result in ((lambda payload: payload + 1, 2), (RuntimeError(), 1), (lambda payload: b"bytes", 1)):
        assert decide({"transform": "t"}, 1, DefaultAction.COMPLETE, scripted(t=answer)) == Complete(result)


def test_a_failure_names_its_rule() -> None:
    decided = decide({"on_fail": "payload.bad"}, 1, DefaultAction.IGNORE, scripted(**{"payload.bad": True}))
    assert decided == Fail("callback matched on_fail: payload.bad")


def test_an_unknown_default_is_refused() -> None:
    with pytest.raises(UsageError, match="complete, fail or ignore"):
        default_action("maybe")


@pytest.mark.parametrize("wrong", ["", " ", "x", None, 7, "a" * 10_000, "\x00"])
def test_what_is_no_uuid_is_no_callback_id(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="not a UUID"):
        check_callback_id(wrong)


def test_a_callback_id_has_one_spelling() -> None:
    one = "6E1C2A54-7C6B-4B7C-9A37-0D5C8F6D1B11"
    assert check_callback_id(one) == check_callback_id(one.lower()) == check_callback_id(f"{{{one}}}") == one.lower()


def test_text_that_cannot_be_stored_is_mended_in_a_payload() -> None:
    assert payload_text({"a\x00": ["\ud800", ("b\x00",)]}) == '{"a\ufffd":["\ufffd",["b\ufffd"]]}'


@pytest.mark.parametrize("wrong", [float("nan"), {1: 2}, b"bytes", "x" * 101])
def test_what_is_no_json_or_too_large_is_refused_in_a_payload(wrong: Any) -> None:
    with pytest.raises(ValidationError, match="payload"):
        payload_text(wrong, limit=100)


def test_a_payload_that_is_too_deep_is_refused() -> None:
    deep: list[Any] = ["\x00"]
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(ValidationError):
        payload_text(deep)


def compiles(expression: str) -> None:
    if expression == "broken":
        raise ValidationError("does not compile")


def test_expressions_are_checked_by_name() -> None:
    assert check_expressions({"filter": None, "on_fail": "x"}, compiles) == '{"on_fail":"x"}'
    assert check_expressions({"filter": None}, compiles) is None
    for wrong in ("broken", "", " ", "x" * 5_000, "nul\x00"):
        with pytest.raises(ValidationError):
            check_expressions({"transform": wrong}, compiles)
