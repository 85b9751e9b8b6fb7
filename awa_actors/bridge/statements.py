"""What all bridges share: a driver's own placeholders, its errors in our tree, and the way to the right module."""

from __future__ import annotations

import re
from collections.abc import Iterator

from awa_actors.core.text import shown
from awa_actors.errors import AwaError, StoreError, TransientStoreError, UsageError
from awa_actors.store.sqlstates import error_of

DRIVERS = frozenset({"asyncpg", "psycopg", "sqlalchemy", "django"})
WITH_BOTH_FLAVOURS = frozenset({"psycopg", "sqlalchemy"})
_PLACEHOLDER = re.compile(r"\$(\d+)")


def positional(sql: str) -> str:
    """Rewrite ``$1, $2`` as ``%s, %s``, for statements that use each parameter once and in order."""
    return _PLACEHOLDER.sub("%s", sql)


def named(sql: str) -> str:
    """Rewrite ``$1`` as ``(:p1)``; the parentheses keep the name apart from a cast that follows."""
    return _PLACEHOLDER.sub(r"(:p\1)", sql)


def names(parameters: tuple[object, ...]) -> dict[str, object]:
    """Name parameters as :func:`named` does."""
    return {f"p{position}": value for position, value in enumerate(parameters, 1)}


def translated(error: BaseException, *, lost: bool) -> AwaError:
    """Give the error of our tree for one that a driver raised, or a library around it.

    Drivers are told apart by what their errors carry, so that no bridge imports another one's driver.

    Args:
        error: what was raised.
        lost: whether the connection is closed now, for errors that carry no SQLSTATE.
    """
    said = [link for link in _chain(error) if _sqlstate(link)]
    if said:
        innermost = said[-1]
        diagnosis = getattr(innermost, "diag", innermost)
        message = getattr(diagnosis, "message_primary", None) or _first_line(innermost)
        detail = getattr(diagnosis, "message_detail", None) or getattr(diagnosis, "detail", None)
        return error_of(_sqlstate(innermost), message, getattr(diagnosis, "constraint_name", None), detail)
    if lost:
        return TransientStoreError(f"the connection to the database was lost: {_first_line(error)}")
    return StoreError(_first_line(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        # SQLAlchemy keeps the driver's error as `orig`, its own adapters and Django as the cause.
        link = getattr(link, "orig", None) or link.__cause__


def _sqlstate(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


def wrong_connection(given: object, *, bridge: str, function: str, takes: str) -> UsageError:
    """Say which function takes a connection that this one does not.

    Args:
        given: what the caller passed.
        bridge: the module that was called.
        function: its function, for instance ``insert_many_async``.
        takes: what that function wants.
    """
    mistake = f"awa_actors.bridge.{bridge}.{function} takes {takes}, not {shown(type(given))}"
    home, is_async = _origin(type(given))
    if home == "django":
        return UsageError(f"{mistake}: awa_actors.bridge.django takes no connection, but its alias as using=…")
    name = function.removesuffix("_async") + ("_async" if is_async and home in WITH_BOTH_FLAVOURS else "")
    if home is None or (home, name) == (bridge, function):
        return UsageError(f"{mistake}: pass the connection that your transaction is on")
    return UsageError(f"{mistake}: use {'await ' if is_async else ''}awa_actors.bridge.{home}.{name}")


def _origin(cls: type) -> tuple[str | None, bool]:
    """The driver a class comes from, also by inheritance, and whether its methods are awaited."""
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if package in DRIVERS:
            return package, package == "asyncpg" or base.__name__.lower().startswith("async")
    return None, False
