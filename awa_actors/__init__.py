"""awa_actors: a Postgres-native job queue whose runtime is a tree of Trio actors.

The public names. Importing this imports neither asyncio nor any optional package.
"""

import importlib
from typing import TYPE_CHECKING, Any

from awa_actors import events
from awa_actors.config import (
    Budget,
    DatabaseSettings,
    MaintenanceSettings,
    QueueConfig,
    RateLimit,
    WorkerSettings,
)
from awa_actors.core.cron import MissedFire, Overlap
from awa_actors.core.leadership import LeaseTiming
from awa_actors.core.liveness import Liveness
from awa_actors.core.outcome import Outcome
from awa_actors.errors import (
    AlreadyRegistered,
    AwaError,
    CallbackExpired,
    CallbackNotFound,
    FollowUpError,
    JobNotFound,
    NotFound,
    SchemaNewerThanCode,
    SchemaNotMigrated,
    StaleAttempt,
    StorageGateClosed,
    StorageNotFinalized,
    StoreError,
    TerminalError,
    TransientStoreError,
    UniqueConflict,
    UnknownJobKind,
    UsageError,
    ValidationError,
)
from awa_actors.events import Event
from awa_actors.jobs import (
    CallbackToken,
    Cancel,
    Completion,
    Delivery,
    Enqueue,
    FinalizationReceipt,
    InsertedJob,
    InsertOpts,
    JobRow,
    JobState,
    OnConflict,
    RetryAfter,
    Snooze,
    UniqueOpts,
    Verdict,
    WaitForCallback,
)
from awa_actors.private_postgres import PrivatePostgres
from awa_actors.registry import Registry
from awa_actors.running_job import Job

if TYPE_CHECKING:
    from awa_actors.actors.maintenance import Maintenance
    from awa_actors.actors.worker import Worker
    from awa_actors.client import Client, Transaction, open_client
    from awa_actors.store.decided import ExternalOutcome

__all__ = [
    "AlreadyRegistered",
    "AwaError",
    "Budget",
    "CallbackExpired",
    "CallbackNotFound",
    "CallbackToken",
    "Cancel",
    "Client",
    "Completion",
    "DatabaseSettings",
    "Delivery",
    "Enqueue",
    "Event",
    "ExternalOutcome",
    "FinalizationReceipt",
    "FollowUpError",
    "InsertOpts",
    "InsertedJob",
    "Job",
    "JobNotFound",
    "JobRow",
    "JobState",
    "LeaseTiming",
    "Liveness",
    "Maintenance",
    "MaintenanceSettings",
    "MissedFire",
    "NotFound",
    "OnConflict",
    "Outcome",
    "Overlap",
    "PrivatePostgres",
    "QueueConfig",
    "RateLimit",
    "Registry",
    "RetryAfter",
    "SchemaNewerThanCode",
    "SchemaNotMigrated",
    "Snooze",
    "StaleAttempt",
    "StorageGateClosed",
    "StorageNotFinalized",
    "StoreError",
    "TerminalError",
    "Transaction",
    "TransientStoreError",
    "UniqueConflict",
    "UniqueOpts",
    "UnknownJobKind",
    "UsageError",
    "ValidationError",
    "Verdict",
    "WaitForCallback",
    "Worker",
    "WorkerSettings",
    "events",
    "open_client",
]

__version__ = "0.1.0"


# What needs Trio is imported when it is asked for: a Django or FastAPI producer that imports a bridge stays untouched.
_LAZY = {
    "Client": "awa_actors.client",
    "Transaction": "awa_actors.client",
    "open_client": "awa_actors.client",
    "ExternalOutcome": "awa_actors.store.decided",
    "Maintenance": "awa_actors.actors.maintenance",
    "Worker": "awa_actors.actors.worker",
}


def __getattr__(name: str) -> Any:
    """Import the names that need Trio on first use."""
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
