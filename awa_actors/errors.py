"""The exception tree.

::

    AwaError
    ├── UsageError            nothing was written: the call itself is wrong
    │   ├── UnknownJobKind
    │   ├── AlreadyRegistered
    │   └── ValidationError   carries the path of the culprit, e.g. "$.to"
    ├── StoreError            the database said no
    │   ├── TransientStoreError    the same call may succeed later
    │   ├── UniqueConflict         carries .existing_job_id
    │   ├── SchemaNotMigrated
    │   ├── SchemaNewerThanCode
    │   ├── StorageNotFinalized
    │   └── StorageGateClosed
    ├── NotFound
    │   ├── JobNotFound
    │   └── CallbackNotFound
    │       └── CallbackExpired
    ├── StaleAttempt          raised only where a caller-owned transaction must abort
    ├── FollowUpError         a user's follow-up closure or its insert failed
    └── TerminalError         raised BY handlers: fail now, no retry

Every message is one line that says what to do.
"""


class AwaError(Exception):
    """Base of everything this package raises on purpose."""


class UsageError(AwaError):
    """The call is wrong; nothing was written."""


class UnknownJobKind(UsageError):
    """No handler, or no args class, is registered for a kind."""


class AlreadyRegistered(UsageError):
    """A registry already holds an entry of this name."""


class ValidationError(UsageError):
    """A value cannot be stored or does not fit its class.

    Args:
        message: what is wrong and what to do.
        path: where, in the notation of JSON paths (``$.items[3].name``).
    """

    def __init__(self, message: str, path: str | None = None) -> None:
        self.path = path
        self.reason = message
        super().__init__(message if path is None else f"{path}: {message}")


class StoreError(AwaError):
    """The database refused or could not be asked."""


class TransientStoreError(StoreError):
    """The connection or the moment was bad; the same call may succeed later."""


class UniqueConflict(StoreError):
    """Another job holds the unique key.

    Args:
        existing_job_id: the job that holds it, where the database could still tell.
    """

    def __init__(self, message: str, existing_job_id: int | None = None) -> None:
        self.existing_job_id = existing_job_id
        super().__init__(message)


class SchemaNotMigrated(StoreError):
    """The database has no schema of ours, or an older one: run ``awa-actors migrate``."""


class SchemaNewerThanCode(StoreError):
    """The database was migrated by a newer release: upgrade this process."""


class StorageNotFinalized(StoreError):
    """The step needs a storage transition that has ended."""


class StorageGateClosed(StoreError):
    """A storage transition step was asked for whose precondition does not hold."""


class NotFound(AwaError):
    """What was asked for does not exist (any more)."""


class JobNotFound(NotFound):
    """No job of this id, or it is gone with its retention."""


class CallbackNotFound(NotFound):
    """No open callback of this id: unknown, already resolved, replaced, or its attempt has ended."""


class CallbackExpired(CallbackNotFound):
    """Nobody resolved the callback in time; raised where a handler waits for it."""


class StaleAttempt(AwaError):
    """The attempt is no longer this process's: abort the transaction that belongs to it."""


class FollowUpError(AwaError):
    """A follow-up closure or the insert of its job failed; the transition was rolled back."""


class TerminalError(AwaError):
    """Raised by a handler: fail this job now, without a retry."""
