"""The two storage planes, as a runtime sees them. Pure.

Every runtime serves both planes until the transition is over: what waits in the canonical plane is claimed first, and
any leader promotes, rescues and moves both. The setting ``canonical`` makes a runtime one that knew only the canonical
plane when it started: as a worker it claims nothing else.
"""

from __future__ import annotations

import enum

FINAL = "active"
"""The state that is never left: the queue plane is all there is."""

ROLES = ("auto", "canonical")
"""What a runtime can be told to be."""


class ClaimFrom(enum.Enum):
    """Which planes a worker claims from."""

    QUEUE = "queue"
    BOTH = "both"
    CANONICAL = "canonical"


def claim_from(role: str, state: str | None) -> ClaimFrom:
    """Decide where a worker claims; without a known state both planes are looked at, which is never wrong."""
    if role == "canonical":
        return ClaimFrom.CANONICAL
    return ClaimFrom.QUEUE if state == FINAL else ClaimFrom.BOTH


def capability(role: str, state: str | None) -> str:
    """Say what a runtime can do, for its instance row and the gates of the transition.

    Returns:
        ``queue_storage``: runs the queue plane. ``canonical``: only knows the canonical one, so new jobs must not go
        elsewhere. ``canonical_drain_only``: claims only what is left there, and is no hindrance to a transition that
        has been announced.
    """
    if role != "canonical":
        return "queue_storage"
    return "canonical" if state in (None, "canonical") else "canonical_drain_only"
