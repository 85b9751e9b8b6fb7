"""--app module:registry: what an application declares, found in the working directory or where Python looks."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

from awa_actors.errors import UsageError
from awa_actors.registry import Registry


def load_registry(app: str) -> Registry:
    """Import a module and take its registry.

    Args:
        app: ``module:attribute``, each may be dotted.

    Raises:
        UsageError: one line that says what was wrong: the form, the module, an error in it, the attribute, its type.
    """
    name, colon, attribute = app.partition(":")
    if not (name and colon and attribute):
        raise UsageError(f"--app is written module:registry, for example shop.jobs:registry, not {app!r}")
    found = _attribute(_module(name), attribute, app)
    if not isinstance(found, Registry):
        raise UsageError(f"--app {app}: this is of type {type(found).__name__}, not an awa_actors.Registry")
    return found


def _module(name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"--app {name}: there is no module {error.name!r} in {here} or on Python's path"
            ) from error
        raise UsageError(f"--app {name}: importing it failed: {error}") from error
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise UsageError(f"--app {name}: importing it failed: {type(error).__name__}: {error}") from error


def _attribute(module: Any, attribute: str, app: str) -> Any:
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        there = [name for name, value in vars(module).items() if isinstance(value, Registry)]
        hint = f"; registries there: {', '.join(there)}" if there else ""
        raise UsageError(f"--app {app}: the module has no attribute {attribute!r}{hint}") from None
