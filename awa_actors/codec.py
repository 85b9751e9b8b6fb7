"""Job args to JSON and back: one strict converter, and what an args class says about itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import cattrs
import orjson
from cattrs.preconf.orjson import make_converter

from awa_actors.core.json_text import JSON_LIMIT, json_text
from awa_actors.core.kinds import derive_kind
from awa_actors.core.text import storable
from awa_actors.core.validation import check_kind, check_queue
from awa_actors.errors import UsageError, ValidationError
from awa_actors.jobs import DEFAULT_QUEUE

A = TypeVar("A")


@attrs.frozen
class ArgsType:
    """What an args class declares: where its jobs go and which handler they want."""

    cls: type[Any]
    kind: str
    queue: str


_known: dict[type[Any], ArgsType] = {}


def args_type(cls: type[Any]) -> ArgsType:
    """Read kind and queue off an args class (attrs or dataclass).

    Raises:
        UsageError: not such a class.
        ValidationError: its kind or queue cannot be stored.
    """
    if isinstance(cls, type) and cls in _known:
        return _known[cls]
    if not isinstance(cls, type) or not (attrs.has(cls) or hasattr(cls, "__dataclass_fields__")):
        raise UsageError(f"job args must be an attrs or dataclass class, not {cls!r}")
    kind = check_kind(vars(cls).get("kind", None) or derive_kind(cls.__name__))
    queue = check_queue(getattr(cls, "queue", DEFAULT_QUEUE))
    return _known.setdefault(cls, ArgsType(cls, kind, queue))


def _strict(expected: tuple[type, ...], name: str) -> Any:
    usual = expected[0]

    def structure(value: Any, _: Any) -> Any:
        if value.__class__ is usual:
            return value
        if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
            raise ValueError(f"must be {name}, not {type(value).__name__}")
        return value

    return structure


def _structure_float(value: Any, _: Any) -> float:
    if value.__class__ is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a number, not {type(value).__name__}")
    return float(value)


def _make() -> cattrs.Converter:
    converter = make_converter(detailed_validation=True)
    converter.register_structure_hook(int, _strict((int,), "an integer"))
    converter.register_structure_hook(str, _strict((str,), "text"))
    converter.register_structure_hook(bool, _strict((bool,), "true or false"))
    converter.register_structure_hook(float, _structure_float)
    return converter


_converter = _make()
# The same rules without collecting where an error is: the usual case pays for no paths.
_fast = _converter.copy(detailed_validation=False)
# By class: to look the way up anew for every job costs as much as to build a small one.
_ways: dict[type[Any], Callable[[Any, type[Any]], Any]] = {}


def to_json_value(args: Any) -> Any:
    """Turn args into plain JSON values (before encoding).

    Raises:
        ValidationError: they are nested without end.
    """
    try:
        return _converter.unstructure(args)
    except RecursionError:
        raise ValidationError("the args are nested too deeply, or contain themselves", "$") from None


def encode(args: Any, limit: int = JSON_LIMIT) -> str:
    """Encode args as JSON text.

    Args:
        args: an instance of an args class.
        limit: most bytes of the text.

    Raises:
        ValidationError: something in it cannot be stored; its path says what.
    """
    return json_text(to_json_value(args), limit=limit)


def decode(text: str, cls: type[A]) -> A:
    """Build args from their JSON text. Fields the class does not know are ignored, so that old workers run newer jobs.

    Raises:
        ValidationError: a field is missing or of another type; the path names it, e.g. ``$.user_id``.
    """
    try:
        way = _ways.get(cls)
        if way is None:
            way = _ways[cls] = _fast.get_structure_hook(cls)
        return way(orjson.loads(text), cls)  # type: ignore[no-any-return]
    except Exception:  # any shape of failure: ask again, this time for the path
        return structure(orjson.loads(text), cls)


def structure(value: Any, cls: type[A]) -> A:
    """Build args from plain JSON values.

    Raises:
        ValidationError: as :func:`decode`.
    """
    try:
        return _converter.structure(value, cls)
    except Exception as error:
        reasons = (
            cattrs.transform_error(error, format_exception=_reason) if isinstance(error, BaseExceptionGroup) else None
        )
        first = reasons[0] if reasons else f"{storable(error)} @ $"
        reason, _, path = first.rpartition(" @ ")
        raise ValidationError(f"{reason or first}: the args do not fit {cls.__name__}", path or "$") from error


def _reason(error: BaseException, _: type | None) -> str:
    if isinstance(error, KeyError):
        return f"required field {error.args[0]!r} is missing"
    if isinstance(error, cattrs.ForbiddenExtraKeysError):
        return f"unknown fields {sorted(error.extra_fields)}"
    return storable(error)
