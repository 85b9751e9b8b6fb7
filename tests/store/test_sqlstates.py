"""What a refusal of the database means."""

import pytest

import awa_actors as awa
from awa_actors.store.sqlstates import error_of


@pytest.mark.parametrize(
    ("state", "message", "expected"),
    [
        ("40001", "could not serialize access", awa.TransientStoreError),
        ("40P01", "deadlock detected", awa.TransientStoreError),
        ("55P03", "canceling statement due to lock timeout", awa.TransientStoreError),
        ("57P01", "terminating connection", awa.TransientStoreError),
        ("25006", "cannot execute INSERT in a read-only transaction", awa.TransientStoreError),
        ("08P01", "protocol violation", awa.TransientStoreError),
        ("53300", "too many connections", awa.TransientStoreError),
        ("3F000", 'schema "awa" does not exist', awa.SchemaNotMigrated),
        ("42883", "function awa.insert_jobs(text[]) does not exist", awa.SchemaNotMigrated),
        ("42P01", 'relation "orders" does not exist', awa.StoreError),
        ("22P05", "unsupported Unicode escape sequence", awa.ValidationError),
        ("23514", "violates check constraint", awa.ValidationError),
        ("23502", "null value in column", awa.ValidationError),
        ("23505", "duplicate key value", awa.StoreError),
        ("42501", "permission denied for schema awa", awa.StoreError),
        ("25P02", "current transaction is aborted", awa.StoreError),
        ("AWA04", "no attempt", awa.StaleAttempt),
    ],
)
def test_a_state_means_one_of_our_errors(state: str, message: str, expected: type[awa.AwaError]) -> None:
    error = error_of(state, message)
    assert type(error) is expected
    assert message in str(error)


@pytest.mark.parametrize(("detail", "holder"), [("17", 17), ("", None), (None, None), ("Key (x) exists", None)])
def test_a_taken_unique_key_names_its_holder_where_that_is_known(detail: str | None, holder: int | None) -> None:
    error = error_of("23505", "taken", "idx_awa_jobs_unique", detail)
    assert isinstance(error, awa.UniqueConflict)
    assert error.existing_job_id == holder
