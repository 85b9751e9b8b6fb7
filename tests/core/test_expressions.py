"""CEL expressions over a payload, and what is said where the extra is missing."""

from __future__ import annotations

import sys

import pytest

from awa_actors.core import expressions
from awa_actors.errors import UsageError, ValidationError

pytest.importorskip("cel")


def test_an_expression_sees_the_payload_and_nothing_else() -> None:
    assert expressions.evaluate("payload.a == 1 && size(payload.b) == 2", {"a": 1, "b": [1, 2]}) is True
    with pytest.raises(ValidationError, match="not to other"):
        expressions.compile_expression("payload.a == other")


@pytest.mark.parametrize(
    "fine", ["payload.items.all(i, i.x > 1)", "payload.exists(e, e.map(f, f) == [])", "type(payload) == map", "true"]
)
def test_names_that_an_expression_binds_itself_are_its_own(fine: str) -> None:
    expressions.compile_expression(fine)


@pytest.mark.parametrize("broken", ["payload ==", "payload.all(", "'", "payload.x == `"])
def test_what_does_not_compile_is_refused(broken: str) -> None:
    with pytest.raises(ValidationError, match="does not compile"):
        expressions.compile_expression(broken)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    expressions._compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "cel", None)
    missing = r"pip install 'awa-actors\[cel\]'"
    with pytest.raises(UsageError, match=missing):
        expressions.compile_expression("true")
    with pytest.raises(UsageError, match=missing):
        expressions.require()
