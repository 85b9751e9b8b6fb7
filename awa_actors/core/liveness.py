"""How old a beat may become, and what follows from it."""

import attrs

from awa_actors.core.validation import positive_seconds
from awa_actors.errors import ValidationError

_ROUNDING = 1e-9  # 0.1 + 0.2 is a third of 0.9


def _a_sixth(liveness: "Liveness") -> float:
    return positive_seconds(liveness.stale_after, path="$.stale_after") / 6


@attrs.frozen
class Liveness:
    """The limit after which an instance counts as dead, and a beat that stays well inside it.

    What is compared with the limit is the worst age of the STORED beat: a beat that is sent at its interval and lands
    only as its statement times out. Two timers of half the limit each would make a healthy process look dead.

    Args:
        stale_after: seconds without a stored beat after which the instance's attempts are rescued.
        beat_every: seconds between beats; default a sixth of the limit.
        beat_timeout: seconds one beat's statement may take; default a sixth of the limit.

    Raises:
        ValidationError: a setting is not a finite number above 0, or ``beat_every + beat_timeout`` is more than a
            third of the limit.

    Source: field report 040.
    """

    stale_after: float = 30.0
    beat_every: float = attrs.field(default=attrs.Factory(_a_sixth, takes_self=True))
    beat_timeout: float = attrs.field(default=attrs.Factory(_a_sixth, takes_self=True))

    def __attrs_post_init__(self) -> None:
        """Check the settings."""
        for name, value in attrs.asdict(self).items():
            positive_seconds(value, path=f"$.{name}")
        if self.worst_age > self.stale_after / 3 * (1 + _ROUNDING):
            raise ValidationError(
                f"beat_every + beat_timeout ({self.worst_age} s) must be at most "
                f"a third of stale_after ({self.stale_after} s)",
                path="$.beat_every",
            )

    @property
    def worst_age(self) -> float:
        """Seconds: the oldest a healthy process's stored beat can be."""
        return self.beat_every + self.beat_timeout

    @property
    def stop_claiming_after(self) -> float:
        """Seconds since the last good beat after which the process claims nothing more: two thirds of the limit."""
        return self.stale_after * 2 / 3
