"""What a process knows about where jobs live: asked until it is final, and never again after that."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from awa_actors.core.storage import FINAL, ClaimFrom, capability, claim_from
from awa_actors.store.pool import Session

LOOK_EVERY = 1.0
"""Seconds between looks while the transition is not over and nothing is notified."""
STATE = "SELECT state FROM awa.storage_transition_state"


@attrs.define(eq=False)
class Planes:
    """A cached state, shared by what runs in one process. Nothing but time depends on its being fresh.

    A claim that looks at a plane which is empty finds nothing there; what is written is decided by the database, under
    the lock of the transition.

    Args:
        role: ``auto`` or ``canonical``, see :mod:`awa_actors.core.storage`.
        state: the last one seen.
    """

    role: str = "auto"
    state: str | None = None
    _due_at: float = attrs.field(default=0.0, init=False)

    @classmethod
    def settled(cls) -> Planes:
        """Make one that has seen the end of the transition."""
        return cls(state=FINAL)

    @property
    def finalized(self) -> bool:
        """Whether the queue plane is all there is, for good."""
        return self.state == FINAL

    @property
    def claim_from(self) -> ClaimFrom:
        """Where a worker claims now."""
        return claim_from(self.role, self.state)

    def changed(self) -> None:
        """The transition took a step: look again at the next occasion."""
        self._due_at = 0.0

    def describe(self) -> dict[str, Any]:
        """What the instance row says."""
        return {"storage": capability(self.role, self.state), "storage_role": self.role}

    async def refresh(self, session: Session) -> None:
        """Look at the state, unless it is final or was looked at just now.

        Args:
            session: any.
        """
        if self.finalized or trio.current_time() < self._due_at:
            return
        self._due_at = trio.current_time() + LOOK_EVERY
        self.state = await session.fetchval(STATE)
