"""What a refusal of the database means, by SQLSTATE: one table for every driver, so this imports none of them."""

from __future__ import annotations

from awa_actors.errors import (
    AwaError,
    SchemaNotMigrated,
    StaleAttempt,
    StorageGateClosed,
    StoreError,
    TransientStoreError,
    UniqueConflict,
    ValidationError,
)


class HasFollowUps(StoreError):
    """A statement that stands alone would have left out follow-ups: nothing was changed, use a transaction."""


UNIQUE_CONSTRAINT = "idx_awa_jobs_unique"
STORAGE_GATE = "awa_storage_gate"
"""What a closed gate of a storage transition names as its constraint: the SQLSTATE alone is not ours."""

# The session cannot be trusted any more: read-only after a failover, shut down, crashed, cannot connect now.
POISONED = frozenset({"25006", "57P01", "57P02", "57P03", "57P05", "08000", "08003", "08006"})
# The same call may succeed later: serialization, deadlock, lock and statement timeouts, resources, moments of a server.
TRANSIENT = (
    frozenset({"40001", "40P01", "55P03", "57014", "25P03", "53000", "53100", "53200", "53300", "55006"}) | POISONED
)
MISSING_OBJECTS = frozenset({"3F000", "42P01", "42883", "42704"})


def error_of(state: str, message: str, constraint: str | None = None, detail: str | None = None) -> AwaError:
    """Give the error of our tree for what a server said.

    Args:
        state: the SQLSTATE.
        message: the server's primary message.
        constraint: the constraint it names, if any.
        detail: its detail line, if any; for a taken unique key that is the id of the job which holds it.

    Source: field report 007 (25006 and 57P01 to 57P03), fact J34 (23505).
    """
    if state == "23505" and constraint == UNIQUE_CONSTRAINT:
        return UniqueConflict(message, int(detail) if detail and detail.isdigit() else None)
    if state == "AWA04":
        return StaleAttempt(message)
    if state == "AWA07":
        return HasFollowUps(message)
    if state == "55000" and constraint == STORAGE_GATE:
        return StorageGateClosed(message)
    if state in TRANSIENT or state.startswith("08"):
        return TransientStoreError(f"{message} (SQLSTATE {state}); try again")
    if state in MISSING_OBJECTS and "awa" in message:
        return SchemaNotMigrated(f"{message}: run 'awa-actors migrate'")
    if state.startswith("22") or state in ("23514", "23502"):
        return ValidationError(f"{message} (SQLSTATE {state})")
    if state == "42501":
        return StoreError(f"{message} (SQLSTATE {state}): 'awa-actors doctor' says what this role lacks")
    return StoreError(f"{message} (SQLSTATE {state})")
