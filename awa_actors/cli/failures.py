"""How a command ends: the exit statuses, and the one line that an error becomes."""

from __future__ import annotations

import click

from awa_actors.errors import AwaError, TransientStoreError, UsageError

OK = 0
"""Asked, and nothing was lost."""
NO = 1
"""The answer is no: not found, blocked, not ready."""
USAGE = 2
"""The command line is wrong; nothing was done."""
UNREACHABLE = 69
"""The database cannot be reached, or refuses the role, the password or the database."""
STOPPED = 75
"""Ended by force or by a cap on time, with something left to do."""
INTERRUPTED = 130
"""Ctrl-C during a question, as shells report it."""


class Failure(click.ClickException):
    """One line for people and an exit status.

    Args:
        message: what is wrong and what to do.
        status: one of this module's.
    """

    exit_code: int = NO  # type: ignore[misc]  # click's is a class variable that its own subclasses set, too

    def __init__(self, message: str, status: int = NO) -> None:
        super().__init__(message)
        self.exit_code = status


def explained(error: BaseException) -> tuple[str, int]:
    """Give the one line and the exit status of whatever ended a command."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    match error:
        case click.UsageError():
            message, status = _with_hint(error), USAGE
        case click.ClickException():
            message, status = error.format_message(), error.exit_code
        case click.Abort() | KeyboardInterrupt():
            message, status = "interrupted", INTERRUPTED
        case UsageError():
            message, status = str(error), USAGE
        case TransientStoreError():
            message, status = str(error), UNREACHABLE
        case AwaError():
            message, status = str(error), NO
        case _:
            message, status = f"unexpected {type(error).__name__}: {error} (-v shows where)", NO
    return " ".join(message.split()), status


def _with_hint(error: click.UsageError) -> str:
    message = error.format_message()
    return message if error.ctx is None else f"{message.rstrip('.')} (see '{error.ctx.command_path} --help')"
