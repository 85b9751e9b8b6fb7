"""Completions that arrive together share a transaction: one round trip and one commit for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from awa_actors.errors import CallbackNotFound
from awa_actors.registry import Registry
from awa_actors.store.resolve import COMPLETE, Resolution, Resolved, Statements, read

TOGETHER = "SELECT answers, is_left FROM awa_queue.complete_together($1::text[]::uuid[], $2, $3)"


def may_share(resolution: Resolution) -> bool:
    """Whether it can be one of :func:`complete_together`."""
    return resolution.sql == COMPLETE


async def complete_together(
    session: Statements, registry: Registry, resolutions: Sequence[Resolution]
) -> list[Resolved | CallbackNotFound | None]:
    """Complete many callbacks in a transaction of their own.

    Args:
        session: outside a transaction.
        registry: whose follow-ups must not be left out.
        resolutions: for which :func:`may_share` holds.

    Returns:
        For each what became of it, or None: nothing, it is to be resolved alone (something follows from it, somebody
        else holds its lock, or it failed).
    """
    followed = [f"{outcome}:{kind}" for outcome, kind in registry.follow_ups]
    callbacks, payloads = zip(*(resolution.arguments for resolution in resolutions), strict=True)
    row = await session.fetchrow(TOGETHER, callbacks, payloads, followed)
    answers: list[Resolved | CallbackNotFound | None] = []
    for resolution, answer, is_left in zip(resolutions, row["answers"], row["is_left"], strict=True):
        try:
            answers.append(None if is_left else read(answer, resolution))
        except CallbackNotFound as error:
            answers.append(error)
    return answers
