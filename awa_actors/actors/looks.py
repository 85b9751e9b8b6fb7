"""Where a claimer starts to look in each lane of its queue. Time is an argument."""

from __future__ import annotations

import attrs

LAG = 0.25
"""Seconds by which a claimer that keeps up starts behind the place it has come to: what commits late is there."""
SHARE = 0.05
"""Of a claimer's time, at most, for looks from the beginning."""
LONGEST = 5.0
"""Seconds at most from one of them to the next: one may have been slow for reasons of the network's or the server's."""


@attrs.define(eq=False)
class Looks:
    """Positions to start from, so that a claim does not walk over everything that was claimed before.

    Deleted rows stay in the index for as long as any session's snapshot needs them, and a look from the beginning walks
    over them all. So it is made at intervals that grow with what it costs. In between a claim starts where the last one
    ended when that was full, and otherwise where it was a moment ago, since producers do not commit in the order of
    their positions. What lies further back waits for the next look from the beginning, which :meth:`wait` sees to.
    """

    _newest: list[int] = attrs.field(factory=list)
    _lately: list[int] = attrs.field(factory=list)
    _lagging: list[int] = attrs.field(factory=list)
    _lately_since: float = 0.0
    _next_full: float = 0.0
    _began: float = 0.0
    _hints: list[int] = attrs.field(factory=list)
    _goes_on: bool = False

    def start(self, now: float) -> list[int]:
        """Positions for a claim that begins now; none to look from the beginning."""
        if now - self._lately_since >= LAG:
            self._lagging, self._lately, self._lately_since = self._lately, self._newest, now
        self._began = now
        if now >= self._next_full:
            self._hints = []
        else:
            self._hints = self._newest if self._goes_on else self._lagging
        return self._hints

    def came(self, found: list[int], *, is_full: bool, now: float) -> None:
        """Note what the claim found: its positions by lane (none: it found nothing), and whether there may be more."""
        if not any(self._hints):
            self._next_full = now + min(max(LAG, (now - self._began) / SHARE), LONGEST)
        if found:
            known = self._newest if len(self._newest) == len(found) else [0] * len(found)
            self._newest = [place or before for place, before in zip(found, known, strict=True)]
        self._goes_on = is_full

    def wait(self, now: float) -> float:
        """Most seconds to wait before the next claim: what the last one skipped must not wait for longer."""
        return max(0.0, self._next_full - now) if any(self._hints) else float("inf")
