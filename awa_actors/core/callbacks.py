"""What becomes of a callback: the payload that is kept, and the verdict of its expressions. Pure."""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from awa_actors.core.json_text import JSON_DEPTH, JSON_LIMIT, json_text
from awa_actors.core.text import shown, storable
from awa_actors.errors import UsageError, ValidationError

EXPRESSION_CHARACTERS = 4096
RESULT_KEY = "awa:callback_result"
"""Metadata key under which a resumed job finds the payload."""

_USUAL_ID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
"""What a UUID reads as when it has been read and written; others need both."""

Evaluate = Callable[[str, Any], Any]
"""Evaluates one expression over the payload; raises whatever it likes."""


class DefaultAction(enum.Enum):
    """What happens when no expression decides."""

    COMPLETE = "complete"
    FAIL = "fail"
    IGNORE = "ignore"


@attrs.frozen
class Complete:
    """The job completes with this result."""

    payload: Any


@attrs.frozen
class Fail:
    """The job fails for good."""

    error: str


@attrs.frozen
class Ignore:
    """Nothing changes: the callback stays open."""

    reason: str


def check_callback_id(callback_id: object) -> str:
    """Check that a callback id can be one.

    Raises:
        ValidationError: not a UUID.
    """
    if isinstance(callback_id, str) and _USUAL_ID.fullmatch(callback_id):
        return callback_id
    try:
        return str(uuid.UUID(callback_id if isinstance(callback_id, str) else str(callback_id)))
    except ValueError:
        raise ValidationError(f"is not a UUID: {shown(callback_id, 50)}", "$.callback_id") from None


def payload_text(payload: Any, *, limit: int = JSON_LIMIT) -> str:
    """Encode what the outside world answered.

    Its work is done when it answers, so text that Postgres cannot hold is mended rather than refused (NUL and lone
    surrogates become U+FFFD): a job whose answer came always gets an end.

    Raises:
        ValidationError: not JSON, or too large.

    Source: field report 074.
    """
    try:
        return json_text(payload, path="$.payload", limit=limit)
    except ValidationError:
        return json_text(_mended(payload, 0), path="$.payload", limit=limit)


def _mended(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return storable(value, max(len(value), 1))
    if depth > JSON_DEPTH:
        return value
    if isinstance(value, dict):
        return {_mended(key, depth + 1): _mended(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mended(item, depth + 1) for item in value]
    return value


def check_expressions(expressions: Mapping[str, str | None], compile_expression: Callable[[str], None]) -> str | None:
    """Check a callback's expressions and give them as the JSON text that is stored, or None when there are none.

    Args:
        expressions: by name: filter, on_complete, on_fail, transform; None for those that are not wanted.
        compile_expression: raises a ValidationError for what does not compile.

    Raises:
        ValidationError: one cannot be stored or does not compile; the path names it.
    """
    given = {name: text for name, text in expressions.items() if text is not None}
    for name, text in given.items():
        if not isinstance(text, str) or not text.strip() or len(text) > EXPRESSION_CHARACTERS:
            raise ValidationError(f"must be an expression of 1 to {EXPRESSION_CHARACTERS} characters", f"$.{name}")
        try:
            compile_expression(text)
        except ValidationError as error:
            raise ValidationError(error.reason, f"$.{name}") from None
    return json_text(given) if given else None


def default_action(action: str | DefaultAction) -> DefaultAction:
    """Read a default action.

    Raises:
        UsageError: none of complete, fail, ignore.
    """
    try:
        return DefaultAction(action)
    except ValueError:
        raise UsageError(f"default_action is complete, fail or ignore, not {shown(action)}") from None


def decide(
    expressions: Mapping[str, str], payload: Any, default: DefaultAction, evaluate: Evaluate
) -> Complete | Fail | Ignore:
    """Decide what a payload means for a callback.

    In this order: `filter` (false: ignored), `on_fail` (true: failed), `on_complete` (true: completed), then the
    default. A completion's result goes through `transform`. An expression that breaks never decides against the sender:
    a broken or non-boolean filter lets the payload through, the other two count as false, a broken transform changes
    nothing.

    Source: facts C15, C16.
    """
    if "filter" in expressions and _truth(expressions["filter"], payload, evaluate) is False:
        return Ignore("the filter is false for this payload")
    if "on_fail" in expressions and _truth(expressions["on_fail"], payload, evaluate) is True:
        return Fail(f"callback matched on_fail: {expressions['on_fail']}")
    decided = "on_complete" in expressions and _truth(expressions["on_complete"], payload, evaluate) is True
    if decided or default is DefaultAction.COMPLETE:
        return Complete(_transformed(expressions.get("transform"), payload, evaluate))
    if default is DefaultAction.FAIL:
        return Fail("callback failed by default: no expression matched its payload")
    return Ignore("no expression matched this payload")


def _truth(expression: str, payload: Any, evaluate: Evaluate) -> bool | None:
    try:
        value = evaluate(expression, payload)
    except Exception:  # an expression may fail in any way, and then says nothing
        return None
    return value if isinstance(value, bool) else None


def _transformed(expression: str | None, payload: Any, evaluate: Evaluate) -> Any:
    if expression is None:
        return payload
    try:
        value = evaluate(expression, payload)
        payload_text(value)
    except Exception:  # as above; a value that cannot be stored is a failed transform too
        return payload
    return value
