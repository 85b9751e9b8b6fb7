"""The canonical plane as tests speak to it: the verbs of `queue_plane`, on an installation that has not moved yet."""

from typing import Any, LiteralString, TypeVar

import attrs
import psycopg
from psycopg import sql
from psycopg.rows import dict_row
from queue_plane import Plane
from storage_states import make_canonical

SAID_HERE = {
    "awa_queue.deferred_jobs": "awa.scheduled_jobs",
    "awa_queue.leases": "awa.jobs_hot",
    "awa_queue.rescue_stale(": "awa.rescue_canonical_stale(",
    "awa_queue.rescue_deadlines(": "awa.rescue_canonical_deadlines(",
}
"""What tests of the queue plane say of its tables and sweeps, and what that is called here."""
P = TypeVar("P", bound="CanonicalPlane")


@attrs.define(eq=False)
class CanonicalPlane(Plane):
    """One session that claims from both planes, as every worker does until the transition is over."""

    both: bool | None = True


@attrs.define(eq=False)
class TranslatedPlane(CanonicalPlane):
    """One on which tests of the queue plane find what they name."""

    def rows(self, statement: LiteralString | sql.Composed, *values: object) -> list[dict[str, Any]]:
        """Run one statement; returns its rows."""
        if isinstance(statement, str):
            text: str = statement
            for there, here in SAID_HERE.items():
                text = text.replace(there, here)
            statement = sql.Composed([sql.SQL(text)])
        return super().rows(statement, *values)


def open_canonical(url: str, made: type[P]) -> P:
    """Open a session on a database that is canonical from now on."""
    make_canonical(url)
    return made(psycopg.connect(url, autocommit=True, row_factory=dict_row))


def flip(session: Plane) -> None:
    """Enter the mixed transition at once; its gates have tests of their own."""
    session.rows(
        "UPDATE awa.storage_transition_state SET state = 'mixed_transition', prepared_engine = 'queue_storage'"
    )
