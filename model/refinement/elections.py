"""The leadership machine beside the real lease row.

Every statement of the leader, on sessions that are killed for real.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import psycopg
from psycopg import Connection, RawCursor

from awa_actors.store.leadership import ACQUIRE, MAINTENANCE, RENEW, RESIGN
from model.explorer import Violation
from model.machine import Args
from model.machines.leadership import Election, Leadership
from model.refinement.sessions import end_session

UNIT = 3600.0
"""Seconds of the database's clock for one tick: far more than a test takes, so that only ticks make a lease expire."""


@attrs.define(eq=False)
class Elections:
    """Processes of the machine, each with a session; time passes by moving the row's expiry.

    Args:
        url: of a migrated database.
        machine: whose rules are followed.
    """

    url: str
    machine: Leadership
    observer: Connection[Any] = attrs.field(init=False)
    sessions: list[Connection[Any]] = attrs.field(init=False)
    holders: list[uuid.UUID] = attrs.field(init=False)
    terms: dict[int, int] = attrs.field(factory=dict)
    state: Election = attrs.field(init=False)
    _script: list[tuple[str, Args, Election]] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        """Connect."""
        self.state = next(self.machine.initial())
        self.observer = self._connect()
        self.sessions = [self._connect() for _ in range(self.machine.n_nodes)]
        self.holders = [uuid.uuid4() for _ in range(self.machine.n_nodes)]

    def _connect(self) -> Connection[Any]:
        return psycopg.connect(self.url, autocommit=True, cursor_factory=RawCursor)

    def close(self) -> None:
        """Disconnect."""
        for connection in (self.observer, *self.sessions):
            connection.close()

    def walk(self, pick: Callable[[int], int], length: int) -> None:
        """Take steps and compare the row after each.

        Args:
            pick: chooses a number below the one it is given.
            length: how many.

        Raises:
            AssertionError: the row is not what the machine says; the text is the script.
        """
        for _ in range(length):
            options = list(self.machine.steps(self.state))
            if not options:
                break
            self._take(*options[pick(len(options))])

    def follow(self, story: Iterable[tuple[str, Args]]) -> None:
        """Take the steps of a story.

        Raises:
            LookupError: the machine cannot take a step.
            AssertionError: the row is not what the machine says.
        """
        for name, args in story:
            found = next((step for step in self.machine.steps(self.state) if step[:2] == (name, args)), None)
            if found is None:
                raise LookupError(f"{name}{args} is not possible now")
            self._take(*found)

    def _take(self, name: str, args: Args, after: Election) -> None:
        self._script.append((name, args, after))
        try:
            self._step(self.state, name, args, after)
            self._compare(after)
        except AssertionError as error:
            told = Violation("refinement", str(error), next(self.machine.initial()), self._script)
            raise AssertionError(f"the lease row and the machine differ\n{told}") from error
        self.state = after

    def _step(self, before: Election, name: str, args: Args, after: Election) -> None:
        match name:
            case "run" if before.nodes[args[0]].request == "acquire":
                self._acquire(args[0], won=bool(after.nodes[args[0]].answer))
            case "run":
                assert self._renew(args[0], self.terms[args[0]]) == bool(after.nodes[args[0]].answer), "a renewal"
            case "run_late":
                self._renew(args[0], self.terms[args[0]])
            case "resign" if not before.nodes[args[0]].killed:
                self._resign(args[0], self.terms[args[0]])
            case "kill_session":
                self._kill(args[0])
            case "tick":
                self.observer.execute("UPDATE awa.leadership SET expires_at = expires_at - interval '1 hour'")

    def _acquire(self, n: int, *, won: bool) -> None:
        values = [MAINTENANCE, self.holders[n], self.machine.lease * UNIT, True]
        row = self.sessions[n].execute(ACQUIRE, values).fetchone()
        assert (row is not None) == won, f"the machine says that the lease is {'taken' if won else 'not taken'}"
        if row is None:
            return
        before = self.terms.get(n)
        self.terms[n] = row[0]
        if before is not None:
            assert not self._renew(n, before), "a term that is over was renewed"
            self._resign(n, before)

    def _renew(self, n: int, term: int) -> bool:
        values = [MAINTENANCE, self.holders[n], term, self.machine.lease * UNIT]
        return self.sessions[n].execute(RENEW, values).fetchone() is not None

    def _resign(self, n: int, term: int) -> None:
        self.sessions[n].execute(RESIGN, [MAINTENANCE, self.holders[n], term])

    def _kill(self, n: int) -> None:
        end_session(self.observer, self.sessions[n].info.backend_pid)
        self.sessions[n].close()
        self.sessions[n] = self._connect()

    def _compare(self, s: Election) -> None:
        row = self.observer.execute(
            "SELECT holder, expires_at > clock_timestamp(), EXISTS (SELECT FROM pg_stat_activity a"
            " WHERE a.pid = l.backend_pid AND a.backend_start = l.backend_start) FROM awa.leadership l"
        ).fetchone()
        found = None if row is None or row[0] is None else (self.holders.index(row[0]), row[1], row[2])
        wanted = None if s.holder is None else (s.holder, s.left > 0, s.session)
        assert found == wanted, f"the row says {found} (holder, not expired, session alive)"


LEADS: tuple[tuple[str, Args], ...] = (("stand", (0,)), ("run", (0,)), ("hear", (0,)))
"""The first process becomes leader."""

ELECTIONS: dict[str, tuple[tuple[str, Args], ...]] = {
    "of two that stand at once, one is elected": (
        ("stand", (0,)), ("stand", (1,)), ("run", (0,)), ("run", (1,)), ("hear", (0,)),
    ),
    "a renewal that comes after the expiry is refused": (
        *LEADS, ("tick", ()), ("renew", (0,)), ("freeze", (0,)), ("tick", ()), ("tick", ()), ("thaw", (0,)),
        ("run", (0,)),
    ),
    "a renewal extends the lease": (*LEADS, ("tick", ()), ("renew", (0,)), ("run", (0,)), ("hear", (0,))),
    "a lease whose session is gone is taken at once": (
        *LEADS, ("kill_session", (0,)), ("stand", (1,)), ("run", (1,)), ("hear", (1,)), ("notice", (0,)),
        ("resign", (0,)),
    ),
    "a frozen leader is replaced, and its resignation changes nothing": (
        *LEADS, ("freeze", (0,)), ("tick", ()), ("tick", ()), ("tick", ()), ("stand", (1,)), ("run", (1,)),
        ("thaw", (0,)), ("step_down", (0,)), ("resign", (0,)), ("hear", (1,)),
    ),
    "who stops resigns, and another is elected at once": (
        ("stand", (1,)), ("run", (1,)), ("hear", (1,)), ("stop", (1,)), ("step_down", (1,)), ("resign", (1,)), *LEADS,
    ),
}  # fmt: skip
