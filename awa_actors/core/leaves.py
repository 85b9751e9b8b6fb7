"""What an exception group is really about."""

from __future__ import annotations


def sole_leaf(error: BaseException) -> BaseException | None:
    """Give the one exception that a group of groups holds, or None when it holds several.

    Args:
        error: a group, or any other exception, which is its own leaf.
    """
    while isinstance(error, BaseExceptionGroup):
        if len(error.exceptions) != 1:
            return None
        error = error.exceptions[0]
    return error
