"""Leadership is a cancel scope over a lease row.

A term runs under a scope whose deadline is the time a renewal was SENT plus trust. A good renewal moves it; a lost
connection cuts it at once; a failed or unknown renewal counts as loss. Safety does not rest on this: every
maintenance write is its own guard.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable

import attrs
import trio

from awa_actors.core.leadership import LeaseTiming
from awa_actors.errors import StoreError
from awa_actors.store.connection import OwnConnection
from awa_actors.store.leadership import MAINTENANCE, acquire, look, renew, resign
from awa_actors.store.pool import Pool, Session

LOOK_EVERY = 0.5
"""Seconds between a candidate's looks: a killed holder is replaced within a second."""
RESIGN_BOUND = 1.0
"""Seconds that giving the lease back may take."""

logger = logging.getLogger("awa_actors.maintenance")


@attrs.define(eq=False)
class Leader:
    """One candidate.

    Args:
        pool: opens its connection.
        holder: this process's instance.
        timing: of the lease.
        hold: what runs during a term; cancelled as a whole with it.
        name: of the lease that it stands for.
    """

    pool: Pool
    holder: Callable[[], uuid.UUID]
    timing: LeaseTiming
    hold: Callable[[int], Awaitable[None]]
    name: str = MAINTENANCE
    term: int | None = None
    terms: int = 0
    _elected: trio.Event = attrs.field(factory=trio.Event, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)
    _scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    _stand_aside: bool = attrs.field(default=False, init=False)

    def wake(self) -> None:
        """Something about leadership was announced: look now."""
        self._wake.set()

    async def wait_leader(self) -> int:
        """Wait until this process leads; returns the term."""
        while self.term is None:
            await self._elected.wait()
        return self.term

    def give_up(self) -> None:
        """End the current term and let another process win the next. Without a term there is nothing to give up."""
        if self._scope is not None:
            self._stand_aside = True
            self._scope.cancel()

    async def run(self) -> None:
        """Stand, hold, stand again, until cancelled. Resigning is the last act; whoever stops never campaigns again."""
        async with OwnConnection(self.pool, f"{self.name} leader") as connection:
            while True:
                try:
                    session = await connection.session()
                    sent = trio.current_time()
                    term = await self._stand(session)
                except StoreError as error:
                    logger.warning("cannot stand for election (%s): %s", self.name, error)
                    await trio.sleep(1.0)
                    continue
                if term is None:
                    await self._wait(LOOK_EVERY)
                    continue
                await self._hold(session, term, sent)
                await self._rest()

    async def _stand(self, session: Session) -> int | None:
        lease = await look(session, self.name)
        if lease is not None and not lease.is_free:
            return None
        return await acquire(session, self.holder(), self.timing.lease, self.name)

    async def _rest(self) -> None:
        if self._stand_aside:
            self._stand_aside = False
            await trio.sleep(self.timing.lease)

    async def _wait(self, seconds: float) -> None:
        """Rest until woken; what is announced after this returns, during the look that follows, cuts the next rest."""
        with trio.move_on_after(seconds):
            await self._wake.wait()
        self._wake = trio.Event()

    async def _hold(self, session: Session, term: int, sent: float) -> None:
        holder, scope = self.holder(), trio.CancelScope(deadline=self.timing.trusted_until(sent))

        def cut(connection: object) -> None:
            scope.cancel()

        try:
            with scope:
                self._scope, self.term, self.terms = scope, term, self.terms + 1
                session.raw.add_termination_listener(cut)
                self._elected.set()
                logger.info("elected: term %d (%s)", term, self.name)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._renew, session, holder, term, scope, name="renew lease")
                    await self.hold(term)
                    nursery.cancel_scope.cancel()
        finally:
            self._scope, self.term, self._elected = None, None, trio.Event()
            session.raw.remove_termination_listener(cut)
            logger.info("term %d is over (%s)", term, self.name)
            with trio.move_on_after(RESIGN_BOUND, shield=True):
                await self._resign(session, holder, term)

    async def _renew(self, session: Session, holder: uuid.UUID, term: int, scope: trio.CancelScope) -> None:
        while True:
            await self._wait(self.timing.renew)
            sent = trio.current_time()
            try:
                asked = await renew(session, holder, term, self.timing.lease, self.name)
            except StoreError as error:
                logger.warning("term %d: the lease could not be renewed: %s", term, error)
                scope.cancel()
                return
            if asked is None:
                logger.warning("term %d: the lease belongs to somebody else", term)
                scope.cancel()
                return
            if asked:
                logger.info("term %d: asked to resign", term)
                self.give_up()
                return
            scope.deadline = self.timing.trusted_until(sent)

    async def _resign(self, session: Session, holder: uuid.UUID, term: int) -> None:
        if session.broken or session.raw.is_closed():
            return
        try:
            await resign(session, holder, term, self.name)
        except StoreError as error:
            logger.info("term %d was not given back, it expires: %s", term, error)
