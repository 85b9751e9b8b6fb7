"""CEL, the language of callback expressions: one variable, `payload`, and no side effects. An optional package."""

from __future__ import annotations

import functools
import re
from typing import Any

from awa_actors.core.text import storable
from awa_actors.errors import UsageError, ValidationError

VARIABLE = "payload"
_TYPE_NAMES = frozenset({"bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"})
_BINDS = re.compile(r"\.(?:all|exists|exists_one|filter|map)\(\s*([A-Za-z_]\w*)\s*,")


@functools.lru_cache(maxsize=1024)
def _compiled(expression: str) -> Any:
    try:
        import cel
    except ImportError:
        raise UsageError("callback expressions need the 'cel' extra: pip install 'awa-actors[cel]'") from None
    return cel.compile(expression)


def compile_expression(expression: str) -> None:
    """Check that an expression compiles and refers to nothing but `payload`.

    Raises:
        ValidationError: it does not.
        UsageError: the extra is not installed.

    Source: fact C2.
    """
    try:
        program = _compiled(expression)
    except UsageError:
        raise
    except Exception as error:
        first = storable(error).partition("\n")[0]
        raise ValidationError(f"does not compile: {first}") from None
    free = set(program.variables()) - {VARIABLE} - _TYPE_NAMES - set(_BINDS.findall(expression))
    if free:
        raise ValidationError(f"may refer only to {VARIABLE!r}, not to {', '.join(sorted(free))}")


def evaluate(expression: str, payload: Any) -> Any:
    """Evaluate an expression over a payload; raises whatever the evaluation raises.

    Raises:
        UsageError: the extra is not installed.
    """
    return _compiled(expression).execute({VARIABLE: payload})


def require() -> None:
    """Say at once that the extra is missing, before an evaluation would take that for a broken expression.

    Raises:
        UsageError: it is not installed.
    """
    _compiled("true")
