"""The one mapping from what the driver raises to our tree, and what each failure says about its connection."""

import asyncpg
import pytest

from awa_actors.errors import (
    SchemaNotMigrated,
    StaleAttempt,
    StoreError,
    TransientStoreError,
    UniqueConflict,
    ValidationError,
)
from awa_actors.store.failures import is_poisoned, translate


def said_by_the_server(sqlstate: str, message: str = "no", **fields: str) -> asyncpg.PostgresError:
    """An error as the driver makes it from the server's message."""
    error = asyncpg.PostgresError.new({"C": sqlstate, "M": message, "S": "ERROR", **fields})
    assert isinstance(error, asyncpg.PostgresError)
    return error


@pytest.mark.parametrize(
    ("sqlstate", "becomes", "poisoned"),
    [
        ("25006", TransientStoreError, True),
        ("57P01", TransientStoreError, True),
        ("57P02", TransientStoreError, True),
        ("57P03", TransientStoreError, True),
        ("08006", TransientStoreError, True),
        ("40001", TransientStoreError, False),
        ("40P01", TransientStoreError, False),
        ("55P03", TransientStoreError, False),
        ("57014", TransientStoreError, False),
        ("53300", TransientStoreError, False),
        ("AWA04", StaleAttempt, False),
        ("22P05", ValidationError, False),
        ("23514", ValidationError, False),
        ("42501", StoreError, False),
        ("XX000", StoreError, False),
    ],
)
def test_each_sqlstate_has_one_meaning(sqlstate: str, becomes: type[Exception], poisoned: bool) -> None:
    error = said_by_the_server(sqlstate)
    assert type(translate(error)) is becomes
    assert is_poisoned(error) is poisoned


def test_a_taken_unique_key_names_the_job_that_holds_it() -> None:
    error = said_by_the_server("23505", "taken", n="idx_awa_jobs_unique", D="42")
    translated = translate(error)
    assert isinstance(translated, UniqueConflict)
    assert translated.existing_job_id == 42


def test_a_missing_schema_says_what_to_run() -> None:
    translated = translate(said_by_the_server("42P01", 'relation "awa.jobs" does not exist'))
    assert isinstance(translated, SchemaNotMigrated)
    assert "awa-actors migrate" in str(translated)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("gone"),
        TimeoutError(),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lost_connection_is_transient_and_thrown_away_and_says_something(error: Exception) -> None:
    translated = translate(error)
    assert isinstance(translated, TransientStoreError)
    assert not str(translated).endswith(": ")
    assert is_poisoned(error)


@pytest.mark.parametrize("error", [asyncpg.DataError("invalid input"), ValueError("lone surrogate"), TypeError("no")])
def test_what_was_never_sent_leaves_the_connection_alone(error: Exception) -> None:
    assert not is_poisoned(error)


def test_an_error_that_is_not_the_drivers_comes_back_as_it_is() -> None:
    error = RuntimeError("a bug")
    assert translate(error) is error
