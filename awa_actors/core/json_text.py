"""JSON that jsonb can hold and that reads back as what was written, or an error that names the culprit.

The encoder is trusted on the fast path; only when it refuses, or its output holds something that may be wrong, is the
value walked to find out where.
"""

import dataclasses
import datetime as dt
import enum
import json
import math
import uuid
from collections.abc import Iterator
from typing import Any

import orjson

from awa_actors.core.text import shown
from awa_actors.errors import ValidationError

JSON_LIMIT = 1_048_576
"""Bytes of one JSON document (args, metadata, progress, results) unless the caller sets another limit."""

JSON_DEPTH = 254
"""Levels of nesting that the encoder can write."""

# Tuples of classes: isinstance() with a union is several times slower, and these are on the hot path.
_NEVER_BECOME_NULL = (str, int, type(None))
_ARRAYS = (list, tuple)
_LOWEST_INT = -(2**63)
_HIGHEST_INT = 2**64 - 1


def json_text(value: object, *, path: str = "$", limit: int = JSON_LIMIT) -> str:
    """Encode a value as JSON text for jsonb.

    Refused are the things that would be stored as something else or not at all: NaN and infinity (the encoder would
    write null), NUL and lone surrogates (Postgres has no such text), keys that are not strings, integers beyond 64
    bits, cycles, more than 254 levels, types that are not JSON, and documents over the limit.

    Args:
        value: what to encode. Dates, times, UUIDs, enums and dataclasses are written in the encoder's usual form.
        path: the JSON path of `value` itself, the beginning of every path in an error.
        limit: bytes of UTF-8 at most.

    Raises:
        ValidationError: with the JSON path of the culprit.

    Source: field reports 074, 076.
    """
    encoded = _encode(value, path, 0)
    if len(encoded) > limit:
        raise ValidationError(
            f"{len(encoded):,} bytes of JSON, at most {limit:,} are stored: pass a reference to large data instead",
            path=path,
        )
    return encoded.decode()


def canonical_json(value: object, *, path: str = "$") -> bytes:
    """Encode a value in the one form that is hashed: compact, keys sorted at every level, UTF-8 unescaped.

    Args:
        value: what to encode; refused is what :func:`json_text` refuses, but for the size.
        path: the JSON path of `value` itself.

    Raises:
        ValidationError: with the JSON path of the culprit.

    Source: fact I14.
    """
    return _encode(value, path, orjson.OPT_SORT_KEYS)


def _encode(value: object, path: str, option: int) -> bytes:
    try:
        encoded = orjson.dumps(value, option=option)
    except (TypeError, ValueError) as refusal:
        where, reason = _culprit(value) or ([], str(refusal))
        raise ValidationError(reason, path=_rendered(path, where)) from None
    # Both are hints only: a field may well be None, and an escaped backslash may be followed by u0000. To look for a
    # single byte takes a tenth of the time.
    if (b"null" in encoded and not _is_clearly_finite(value)) or (b"\\" in encoded and b"\\u0000" in encoded):
        found = _culprit(value)
        if found is not None:
            raise ValidationError(found[1], path=_rendered(path, found[0]))
    return encoded


def _is_clearly_finite(value: object) -> bool:
    """Tell quickly that no number in a value can have become null; False means look closely, not that one did.

    Optional fields make null common on the hot path, where the careful walk would cost more than the insert.
    """
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, _NEVER_BECOME_NULL):
            continue
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, _ARRAYS):
            pending.extend(item)
        elif not isinstance(item, float) or not math.isfinite(item):
            return False
    return True


def _culprit(value: object) -> tuple[list[str | int], str] | None:
    """Find the first thing in a value that must not be stored, as (steps from the top, what is wrong).

    Iterative, because the value may be deeper than the interpreter's stack or contain itself.
    """
    steps: list[str | int] = []
    above: list[int] = []
    levels = [iter([("", value)])]
    while levels:
        for step, wrapped in levels[-1]:
            child = _unwrapped(wrapped)
            fault = _fault(child)
            if fault is None and id(child) in above:
                fault = "refers back to a value that contains it, which JSON cannot say"
            if fault is not None:
                return [*steps, step][1:], fault
            inner = _children(child)
            if inner is None:
                continue
            if len(above) == JSON_DEPTH:
                return [*steps, step][1:4], f"holds more than {JSON_DEPTH} levels of nesting"
            steps.append(step)
            above.append(id(child))
            levels.append(inner)
            break
        else:
            levels.pop()
            del steps[-1:], above[-1:]
    return None


def _unwrapped(value: object) -> object:
    while isinstance(value, enum.Enum):
        value = value.value
    return value


def _children(value: object) -> Iterator[tuple[Any, Any]] | None:
    if isinstance(value, dict):
        return iter(value.items())
    if isinstance(value, list | tuple):
        return iter(enumerate(value))
    if dataclasses.is_dataclass(value):
        return iter([(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)])
    return None


def _fault(value: object) -> str | None:
    match value:
        case None | bool() | list() | dt.date() | dt.time() | uuid.UUID():
            return None
        case str():
            return _text_fault(value)
        case int():
            within = _LOWEST_INT <= value <= _HIGHEST_INT
            return None if within else "is an integer beyond 64 bits: pass it as a string"
        case float() if type(value) is float:
            return None if math.isfinite(value) else f"{value} is not JSON: use None or a string"
        case dict():
            return next(filter(None, map(_key_fault, value)), None)
    if type(value) is tuple or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return None
    return f"{type(value).__name__} is not a JSON type: convert it to text, a number, a list or an object"


def _key_fault(key: object) -> str | None:
    if type(key) is not str:
        return f"key {shown(key, 40)} is of type {type(key).__name__}: keys must be plain strings"
    fault = _text_fault(key)
    return None if fault is None else f"key {shown(key, 40)} {fault}"


def _text_fault(text: str) -> str | None:
    if "\x00" in text:
        return "contains a NUL character, which Postgres cannot store: remove it or encode it (base64)"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "contains a lone surrogate, which is not text: decode it properly or replace it"
    return None


def _rendered(path: str, steps: list[str | int]) -> str:
    parts = [path]
    for step in steps:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif step.isidentifier():
            parts.append(f".{step[:40]}")
        else:
            parts.append(f"[{json.dumps(step[:40])}]")
    return "".join(parts)
