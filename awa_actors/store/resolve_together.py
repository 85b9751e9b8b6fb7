"""Completions that arrive together share a transaction: one round trip and one commit for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from awa_actors.errors import CallbackNotFound
from awa_actors.registry import Registry
from awa_actors.store.resolve import COMPLETE, Resolution, Resolved, Statements, read, resolve_alone

TOGETHER = "SELECT completed, answers, is_left FROM awa.complete_together($1::text[]::uuid[], $2, $3)"


@attrs.frozen
class Done:
    """A completion from which nothing follows. Its job is not read: no more is known of it than who completed it asks.

    Args:
        job_id: of the job.
    """

    job_id: int


Answer = Done | Resolved | CallbackNotFound | None


def may_share(resolution: Resolution) -> bool:
    """Whether it can be one of :func:`complete_together`."""
    return resolution.sql == COMPLETE


async def complete_together(session: Statements, registry: Registry, resolutions: Sequence[Resolution]) -> list[Answer]:
    """Complete many callbacks in a transaction of their own.

    Args:
        session: outside a transaction.
        registry: whose follow-ups must not be left out.
        resolutions: for which :func:`may_share` holds.

    Returns:
        For each what became of it, or None: nothing, it is to be resolved alone (something follows from it, somebody
        else holds its lock, or it failed).
    """
    if session.log is not None:  # whose lines are written as each is resolved
        return [None] * len(resolutions)
    followed = [f"{outcome}:{kind}" for outcome, kind in registry.follow_ups]
    callbacks = [resolution.arguments[0] for resolution in resolutions]
    payloads = [resolution.arguments[1] for resolution in resolutions]
    completed, texts, is_left = await session.fetchrow(TOGETHER, callbacks, payloads, followed)
    answers: list[Answer] = []
    for place, job_id in enumerate(completed):
        if job_id is not None:
            answers.append(Done(job_id))
        elif is_left[place]:
            answers.append(None)
        else:
            try:
                answers.append(read(texts[place], resolutions[place]))
            except CallbackNotFound as error:
                answers.append(error)
    return answers


async def resolve_one(session: Statements, registry: Registry, resolution: Resolution) -> Done | Resolved:
    """Resolve one in a transaction of its own, a completion as if others had come with it: that is cheaper.

    Raises:
        CallbackNotFound, FollowUpError: nothing was changed.
    """
    if may_share(resolution) and not registry.follow_ups:
        [answer] = await complete_together(session, registry, [resolution])
        if isinstance(answer, CallbackNotFound):
            raise answer
        if answer is not None:
            return answer
    return await resolve_alone(session, registry, resolution)
