"""Where live processes disagree about follow-ups: what commits without one, and what nobody ever evaluates."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

FROM_ATTEMPTS = frozenset({"completed", "retried", "exhausted", "waiting_for_callback"})
"""Outcomes that workers make; others are made by whoever cancels, rescues or resolves."""


@attrs.frozen
class Speaker:
    """One live process.

    Args:
        name: how people find it.
        kinds: it has handlers for.
        specs: it has, as (outcome, kind, name).
        leads: it is the maintenance leader.
    """

    name: str
    kinds: Collection[str]
    specs: Collection[tuple[str, str, str]]
    leads: bool = False


def drift(speakers: Sequence[Speaker]) -> list[str]:
    """Say in words what of the follow-ups is missing where it would be needed, or has no use where it is.

    Returns:
        One sentence per finding, in a stable order; none when all agree.

    Source: fact F5.
    """
    known = sorted({spec for speaker in speakers for spec in speaker.specs})
    found = []
    for outcome, kind, name in known:
        what = f"follow-up {name} of {outcome} {kind!r}"
        having = [speaker for speaker in speakers if (outcome, kind, name) in speaker.specs]
        workers = [speaker for speaker in speakers if kind in speaker.kinds]
        if outcome in FROM_ATTEMPTS and not workers:
            found.append(f"{what} is dormant: {_names(having)} have it, but no live worker has a handler for {kind!r}")
        movers = workers if outcome in FROM_ATTEMPTS else [s for s in speakers if outcome == "rescued" and s.leads]
        found.extend(
            f"{what} is missing in {mover.name}: what it commits has no follow-up, unlike in {_names(having)}"
            for mover in movers
            if mover not in having
        )
    return found


def _names(speakers: Sequence[Speaker]) -> str:
    return ", ".join(speaker.name for speaker in speakers)
