"""awa_actors: a Postgres-native job queue whose runtime is a tree of Trio actors.

The public names. Importing this imports neither trio_asyncio nor any optional package.
"""

from typing import TYPE_CHECKING, Any

from awa_actors import events
from awa_actors.client import Client, Transaction, open_client
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
    Job,
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

if TYPE_CHECKING:
    from awa_actors.actors.maintenance import Maintenance
    from awa_actors.actors.worker import Worker

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Give the handles of running actors, whose modules import the driver's loop, only to those who ask."""
    if name == "Worker":
        from awa_actors.actors.worker import Worker

        return Worker
    if name == "Maintenance":
        from awa_actors.actors.maintenance import Maintenance

        return Maintenance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
