"""What a follow-up closure must look like, checked when it is registered rather than in the middle of a transition."""

from __future__ import annotations

import collections.abc as abc
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from awa_actors.errors import UsageError
from awa_actors.events import OUTCOME_EVENTS, Event
from awa_actors.jobs import Cancel, Enqueue, FinalizationReceipt, RetryAfter, Snooze, WaitForCallback

_PLAIN = (str, bytes, int, float, bool, list, tuple, dict, set, frozenset)
_VERDICTS = (RetryAfter, Snooze, Cancel, WaitForCallback, FinalizationReceipt)
_WAITS = (abc.Coroutine, abc.Awaitable, abc.AsyncIterator, abc.AsyncGenerator, abc.Iterator, abc.Generator)


def check_takes_one(function: Callable[..., Any], rule: str) -> None:
    """Refuse what cannot be called with exactly one argument.

    Args:
        function: what was registered.
        rule: the sentence of the error, e.g. ``a handler takes one job``.

    Raises:
        UsageError: as said.
    """
    if not callable(function):
        raise UsageError(f"{rule}; {function!r} cannot be called")
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        raise UsageError(f"{rule}; {_name(function)!r} does not") from None
    except ValueError:  # builtins without a signature: nothing to check
        return


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await; objects with an async ``__call__`` included."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def check_closure(closure: Callable[..., Any], outcome: str, args: type[Any]) -> None:
    """Refuse a closure that cannot be the follow-up of an outcome, as far as its annotations tell.

    A closure always makes a job: there is no way to skip, so None is not a return type. Annotations that cannot be
    resolved at run time are left to the type checker.

    Args:
        closure: what was registered.
        outcome: one of `OUTCOME_EVENTS`.
        args: the class of the triggering job's args.

    Raises:
        UsageError: async, of another arity, returns no job args, or takes another event or another job's.
    """
    check_takes_one(closure, "a follow-up closure takes one event")
    if is_async(closure) or inspect.isgeneratorfunction(closure) or inspect.isasyncgenfunction(closure):
        raise UsageError("a follow-up closure is a plain function: it runs inside the transition and must not wait")
    hints = _hints(closure)
    for returned in _alternatives(hints.get("return", Any)):
        if (wrong := _no_job(returned)) is not None:
            raise UsageError(f"a follow-up closure returns job args or Enqueue(args), not {wrong}: {_name(closure)!r}")
    taken = next(iter(inspect.signature(closure).parameters), None)
    if taken in hints:
        _check_event(hints[taken], outcome, args, _name(closure))


def _no_job(hint: Any) -> str | None:
    origin = typing.get_origin(hint) or hint
    if hint in (None, type(None)):
        return "None"
    if not isinstance(origin, type) or issubclass(origin, Enqueue):
        return None
    return _name(origin) if issubclass(origin, _PLAIN + _VERDICTS + _WAITS) else None


def _check_event(hint: Any, outcome: str, args: type[Any], name: str) -> None:
    made = OUTCOME_EVENTS[outcome]
    origin = typing.get_origin(hint) or hint
    if not (isinstance(origin, type) and issubclass(origin, Event)):
        return
    if not issubclass(made, origin):
        raise UsageError(f"on_{outcome}_enqueue gives {made.__name__}, but {name!r} takes {origin.__name__}")
    for taken in typing.get_args(hint):
        if isinstance(taken, type) and not issubclass(args, taken):
            raise UsageError(f"{name!r} takes events of {taken.__name__}, but is registered for {args.__name__}")


def _hints(closure: Callable[..., Any]) -> dict[str, Any]:
    """Resolve each annotation on its own: one that names a local class must not hide the others."""
    function = closure if inspect.isroutine(closure) else type(closure).__call__
    module = getattr(inspect.unwrap(function), "__globals__", {})
    found: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        try:
            found[name] = eval(annotation, module) if isinstance(annotation, str) else annotation
        except Exception:  # a forward reference, a local class: the type checker's business
            found[name] = Any
    return found


def _alternatives(hint: Any) -> Iterator[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        yield from typing.get_args(hint)
    else:
        yield hint


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", value))
