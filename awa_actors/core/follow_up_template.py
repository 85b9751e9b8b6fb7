"""Follow-ups declared as data: the args of the next job, written as a template over the job that triggers it.

``"${args.user_id}"`` is the value itself, ``"user ${args.user_id}"`` text with the value in it, ``"$${"`` a literal
``${``. What stands between the braces is a path (``args.items[0].name``), or a CEL expression when the declaration says
so. The roots are ``args``, ``job`` and ``outcome``.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from awa_actors.errors import UsageError, ValidationError
from awa_actors.events import OUTCOME_EVENTS
from awa_actors.jobs import Delivery

ROOTS = ("args", "job", "outcome")
OPTIONS = frozenset({"priority", "max_attempts", "delay", "deadline", "tags", "metadata", "unique", "ordering_key"})
"""What a declared follow-up may set beside its queue."""

_HOLE = re.compile(r"\$(\$\{|\{([^}]*)\})")
_PATH = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*|\[\d+\])*")
_STEP = re.compile(r"[A-Za-z_]\w*|\d+")

Evaluate = Callable[[str, Mapping[str, Any]], Any]


@attrs.frozen
class DeclaredFollowUp:
    """One follow-up as data.

    Args:
        application: who owns it; two applications never overwrite each other's.
        name: unique within the application.
        version: a higher one replaces a lower one.
        kind: of the job that triggers it.
        outcome: which transition of that job.
        enqueue: kind of the follow-up.
        queue: where the follow-up goes.
        args: template of its args.
        cel: expressions are CEL instead of paths.
        options: see `OPTIONS`; ``delay`` and ``deadline`` in seconds, ``unique`` true for unique by args.
        delivery: of rescued follow-ups.
    """

    application: str
    name: str
    version: int
    kind: str
    outcome: str
    enqueue: str
    queue: str
    args: Any
    cel: bool = False
    options: Mapping[str, Any] = attrs.field(factory=dict)
    delivery: Delivery = Delivery.BEST_EFFORT

    def definition(self) -> dict[str, Any]:
        """What is stored of it beside its key, version and trigger."""
        return {
            "enqueue": self.enqueue,
            "queue": self.queue,
            "args": self.args,
            "cel": self.cel,
            "options": dict(self.options),
            "delivery": self.delivery.value,
        }

    def check(self) -> None:
        """Refuse what could never be evaluated.

        Raises:
            UsageError: an unknown outcome or option, a version below 1, or a delivery that only rescues have.
            ValidationError: an expression that is no path (or no CEL), with the path of the template's place.
        """
        if self.outcome not in OUTCOME_EVENTS:
            raise UsageError(f"there is no outcome {self.outcome!r}; choose from {', '.join(OUTCOME_EVENTS)}")
        if self.version < 1:
            raise UsageError(f"version must be at least 1, got {self.version}")
        if self.delivery is Delivery.OUTBOX and self.outcome != "rescued":
            raise UsageError(
                "delivery 'outbox' is for rescued follow-ups; every other outcome commits with its follow-up"
            )
        if unknown := sorted(set(self.options) - OPTIONS):
            raise UsageError(f"unknown options {', '.join(unknown)}; choose from {', '.join(sorted(OPTIONS))}")
        render(self.args, {}, _check_cel if self.cel else _check_path)

    def render(self, scope: Mapping[str, Any]) -> Any:
        """The args of the follow-up.

        Args:
            scope: values of `ROOTS`, as plain JSON.

        Raises:
            ValidationError: the scope lacks what an expression names.
            UsageError: the declaration wants CEL, and the extra is not installed.
        """
        return render(self.args, scope, _cel if self.cel else _look_up)


def render(template: Any, scope: Mapping[str, Any], evaluate: Evaluate, path: str = "$") -> Any:
    """Fill the holes of a template, wherever in it they are."""
    if isinstance(template, Mapping):
        return {key: render(value, scope, evaluate, f"{path}.{key}") for key, value in template.items()}
    if isinstance(template, list | tuple):
        return [render(value, scope, evaluate, f"{path}[{place}]") for place, value in enumerate(template)]
    if not isinstance(template, str):
        return template
    try:
        whole = _HOLE.fullmatch(template)
        if whole is not None and whole[2] is not None:
            return evaluate(whole[2].strip(), scope)
        return _HOLE.sub(lambda hole: _filled(hole, scope, evaluate), template)
    except LookupError as error:
        raise ValidationError(str(error.args[0]), path) from None


def _filled(hole: re.Match[str], scope: Mapping[str, Any], evaluate: Evaluate) -> str:
    if hole[2] is None:
        return "${"
    value = evaluate(hole[2].strip(), scope)
    return value if isinstance(value, str) else json.dumps(value)


def _check_path(expression: str, scope: Mapping[str, Any]) -> None:
    if _PATH.fullmatch(expression) is None or _STEP.findall(expression)[0] not in ROOTS:
        raise LookupError(f"{expression!r} is not a path that begins with {', '.join(ROOTS)}")


def _look_up(expression: str, scope: Mapping[str, Any]) -> Any:
    _check_path(expression, scope)
    value: Any = scope
    for step in _STEP.findall(expression):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (LookupError, TypeError, ValueError):
            raise LookupError(f"the job has no {expression!r}: nothing at {step!r}") from None
    return value


def _engine() -> Any:
    try:
        return importlib.import_module("cel")
    except ImportError:
        raise UsageError(
            "a declared follow-up uses CEL: install awa-actors[cel] in every process that moves jobs"
        ) from None


def _check_cel(expression: str, scope: Mapping[str, Any]) -> None:
    engine = _engine()
    try:
        engine.compile(expression)
    except Exception as error:  # whatever the engine calls a syntax error
        raise LookupError(f"{expression!r} is not CEL: {error}") from None


def _cel(expression: str, scope: Mapping[str, Any]) -> Any:
    engine = _engine()
    try:
        return engine.evaluate(expression, dict(scope))
    except Exception as error:  # whatever the engine raises for a missing key or a wrong type
        raise LookupError(f"{expression!r} cannot be evaluated: {error}") from None
