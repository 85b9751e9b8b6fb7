"""LISTEN on a connection that is used for nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from awa_actors.store.pool import Session


async def listen(
    session: Session, channels: Sequence[str], notified: Callable[[str, str], None], lost: Callable[[], None]
) -> int:
    """Subscribe; returns the server process that listens for us, which is not what a pooler says it is.

    Args:
        session: owned by the caller, outside a transaction.
        channels: what to listen to.
        notified: called with (channel, payload) in the loop; must not wait.
        lost: called when the connection ends.
    """

    def on_notification(connection: Any, pid: int, channel: str, payload: object) -> None:
        notified(channel, str(payload))

    session.raw.add_termination_listener(lambda connection: lost())
    for channel in channels:
        await session.call(session.raw.add_listener(channel, on_notification))
    pid: int = await session.fetchval("SELECT pg_backend_pid()")
    return pid
