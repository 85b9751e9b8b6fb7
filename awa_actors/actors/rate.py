"""A token bucket: starts full, refills continuously. Time is an argument."""

from __future__ import annotations

import math

import attrs

ROUNDING = 1e-9
"""Of a token: a wait for exactly one token must not end a hair before it is there."""


@attrs.define(eq=False)
class Bucket:
    """Starts per second of one queue in one process."""

    per_second: float
    burst: int | None = None
    _tokens: float = attrs.field(init=False)
    _at: float | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Start full."""
        self._tokens = float(self.capacity)

    @property
    def capacity(self) -> int:
        """Most tokens at once."""
        return self.burst or max(1, math.ceil(self.per_second))

    def take(self, wanted: int, now: float) -> int:
        """Take up to `wanted` tokens."""
        if self._at is not None:
            self._tokens = min(self.capacity, self._tokens + (now - self._at) * self.per_second)
        self._at = now
        got = min(wanted, int(self._tokens + ROUNDING))
        self._tokens = max(0.0, self._tokens - got)
        return got

    def give_back(self, unused: int) -> None:
        """Return tokens that started nothing."""
        self._tokens = min(self.capacity, self._tokens + unused)

    def next_in(self, now: float) -> float:
        """Seconds until a token is there."""
        return max(0.0, (1 - self._tokens) / self.per_second)
