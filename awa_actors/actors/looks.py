"""Where a claimer starts to look in each lane of its queue. Time is an argument."""

from __future__ import annotations

import attrs

LAG = 0.25
"""Seconds by which a claimer that may not look at everything starts behind the place it has come to: what commits late
is there. One that leaves work behind goes on for as long from where it ended."""
FREE = 0.001
"""Seconds that the server may take to find the heads of all lanes without anybody minding: some thousand dead rows."""
SHARE = 0.02
"""Of a claimer's time, at most, for such looks that take longer. The claim that follows walks as far once more."""
LONGEST = 5.0
"""Seconds at most from one of those to the next: a server may have been slow for another reason."""


@attrs.define(eq=False)
class Looks:
    """Positions to start from, so that a claim does not walk over everything that was claimed before.

    Deleted rows stay in the index for as long as any session's snapshot needs them, and a look from the beginning walks
    over them all. Usually they are few, and every claim that does not simply go on where the last one ended looks from
    the beginning. Where that costs the server something it is done at intervals in proportion, and in between a claim
    starts where this claimer was a moment ago, since producers do not commit in the order of their positions. What lies
    further back waits for the next look from the beginning, which :meth:`wait` sees to.
    """

    _newest: list[int] = attrs.field(factory=list)
    _lately: list[int] = attrs.field(factory=list)
    _lagging: list[int] = attrs.field(factory=list)
    _lately_since: float = 0.0
    _looked_at: float = -LAG
    _interval: float = 0.0
    _hints: list[int] = attrs.field(factory=list)
    _goes_on: bool = False

    def start(self, now: float) -> list[int]:
        """Positions for a claim that begins now; none to look from the beginning."""
        if now - self._lately_since >= LAG:
            self._lagging, self._lately, self._lately_since = self._lately, self._newest, now
        if now - self._looked_at >= (max(self._interval, LAG) if self._goes_on else self._interval):
            self._hints = []
        else:
            self._hints = self._newest if self._goes_on else self._lagging
        return self._hints

    def came(self, found: list[int], *, is_full: bool, looked: float, now: float) -> None:
        """Note what the claim found.

        Args:
            found: its positions by lane; none when it found nothing.
            is_full: whether there may be more.
            looked: seconds that the server took to find where to begin.
            now: when the answer was there.
        """
        if not any(self._hints):
            self._looked_at, self._interval = now, min(looked / SHARE, LONGEST) if looked > FREE else 0.0
        if found:
            known = self._newest if len(self._newest) == len(found) else [0] * len(found)
            self._newest = [place or before for place, before in zip(found, known, strict=True)]
        self._goes_on = is_full

    def wait(self, now: float) -> float:
        """Most seconds to wait before the next claim: what the last one skipped must not wait for longer."""
        return max(0.0, self._looked_at + self._interval - now) if any(self._hints) else float("inf")
