"""One mapping from what the driver raises to our exception tree, and what each failure says about the connection."""

from __future__ import annotations

import asyncio

import asyncpg

from awa_actors.errors import TransientStoreError, ValidationError
from awa_actors.store.sqlstates import POISONED, error_of

CONNECTION_ERRORS = (
    OSError,
    asyncpg.InterfaceError,
    # What the driver says when it is used after the server has said goodbye in the middle of nothing.
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncio.IncompleteReadError,
    EOFError,
)


def is_poisoned(error: BaseException) -> bool:
    """Whether the connection that raised this must be thrown away."""
    if isinstance(error, asyncpg.PostgresError):
        return error.sqlstate in POISONED
    # What could not be encoded was never sent.
    return not isinstance(error, ValueError | TypeError)


def translate(error: BaseException) -> BaseException:
    """Give the error of our tree for one of the driver's; others come back as they are."""
    if isinstance(error, asyncpg.PostgresError):
        message = str(error.args[0]) if error.args else str(error)
        return error_of(error.sqlstate or "", message, error.constraint_name, error.detail)
    if isinstance(error, ValueError):
        return ValidationError(f"the database cannot store this value: {error}")
    if isinstance(error, CONNECTION_ERRORS):
        return TransientStoreError(f"the connection to the database was lost: {str(error) or type(error).__name__}")
    return error
