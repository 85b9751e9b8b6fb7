"""One mapping from what the driver raises to our exception tree, and what each failure says about the connection."""

from __future__ import annotations

import asyncio

import asyncpg

from awa_actors.errors import (
    SchemaNotMigrated,
    StaleAttempt,
    StoreError,
    TransientStoreError,
    UniqueConflict,
    ValidationError,
)

UNIQUE_CONSTRAINT = "idx_awa_jobs_unique"

# The session cannot be trusted any more: read-only after a failover, shut down, crashed, cannot connect now.
POISONED = frozenset({"25006", "57P01", "57P02", "57P03", "57P05", "08000", "08003", "08006"})
# The same call may succeed later: serialization, deadlock, lock and statement timeouts, resources, moments of a server.
TRANSIENT = (
    frozenset({"40001", "40P01", "55P03", "57014", "25P03", "53000", "53100", "53200", "53300", "55006"}) | POISONED
)
MISSING_OBJECTS = frozenset({"3F000", "42P01", "42883", "42704"})

CONNECTION_ERRORS = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncio.IncompleteReadError,
    EOFError,
)


def is_poisoned(error: BaseException) -> bool:
    """Whether the connection that raised this must be thrown away."""
    if isinstance(error, asyncpg.PostgresError):
        return error.sqlstate in POISONED
    return not isinstance(error, (asyncpg.DataError, ValueError, TypeError)) or isinstance(error, CONNECTION_ERRORS)


def translate(error: BaseException) -> BaseException:
    """Give the error of our tree for one of the driver's; others come back as they are.

    Source: field report 007 (25006 and 57P01 to 57P03), fact J34 (23505).
    """
    if isinstance(error, asyncpg.UniqueViolationError) and error.constraint_name == UNIQUE_CONSTRAINT:
        detail = str(error.detail or "")
        return UniqueConflict(str(error.args[0]), int(detail) if detail.isdigit() else None)
    if isinstance(error, asyncpg.PostgresError):
        return _translate_sqlstate(error)
    if isinstance(error, asyncpg.DataError | UnicodeEncodeError):
        return ValidationError(f"the database cannot store this value: {error}")
    if isinstance(error, CONNECTION_ERRORS):
        return TransientStoreError(f"the connection to the database was lost: {error or type(error).__name__}")
    return error


def _translate_sqlstate(error: asyncpg.PostgresError) -> BaseException:
    state, message = error.sqlstate or "", str(error.args[0]) if error.args else str(error)
    if state == "AWA04":
        return StaleAttempt(message)
    if state in TRANSIENT or state.startswith("08"):
        return TransientStoreError(f"{message} (SQLSTATE {state}); try again")
    if state in MISSING_OBJECTS and "awa" in message:
        return SchemaNotMigrated(f"{message}: run 'awa-actors migrate'")
    if state.startswith("22") or state in ("23514", "23502"):
        return ValidationError(f"{message} (SQLSTATE {state})")
    if state == "42501":
        return StoreError(f"{message} (SQLSTATE {state}): see the documented grants")
    return StoreError(f"{message} (SQLSTATE {state})")
