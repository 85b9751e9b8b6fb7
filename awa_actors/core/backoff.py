"""How long a job waits before its next attempt."""

import datetime as dt
import math

from awa_actors.core.text import shown
from awa_actors.core.validation import positive_seconds
from awa_actors.errors import ValidationError

JITTER_SHARE = 0.25
"""Largest part of the plain delay that jitter adds."""

DAY = 86_400.0
"""Default ceiling of a retry delay, in seconds."""

LONGEST_DELAY = 10 * 366 * DAY
"""Ten years in seconds: the ceiling of a delay that a user asks for, so that now + delay stays a date."""

_HIGHEST_ATTEMPT = 32_767  # what the attempt column can hold


def retry_delay(attempt: int, *, base: float = 1.0, factor: float = 2.0, cap: float = DAY, jitter: float) -> float:
    """Compute the delay after a failed attempt: exponential, with jitter, capped after the jitter.

    With the defaults the first retry waits 2 to 2.5 s, the second 4 to 5 s, and from the 17th on every one waits a day.
    Any attempt number gives a delay: the exponent is bounded before it is used, and a power beyond floats is the cap.

    Args:
        attempt: attempts counted so far, the failed one included; below 0 counts as 0.
        base: seconds, above 0.
        factor: growth per attempt, at least 1.
        cap: longest delay in seconds, above 0.
        jitter: a random number in [0, 1), drawn by the caller.

    Returns:
        Seconds, above 0 and at most `cap`.

    Raises:
        ValidationError: a setting is not a finite number in its range.

    Source: fact J22 without its overflow; field report 081.
    """
    base = positive_seconds(base, path="$.base")
    cap = positive_seconds(cap, path="$.cap")
    if not 1 <= factor < math.inf:
        raise ValidationError(f"must be a finite number of at least 1, not {shown(factor)}", path="$.factor")
    if not 0 <= jitter < 1:
        raise ValidationError(f"must be a number in [0, 1), not {shown(jitter)}", path="$.jitter")
    exponent = min(max(attempt, 0), _HIGHEST_ATTEMPT)
    try:
        grown = base * float(factor) ** exponent
    except OverflowError:
        return cap
    return min(cap, grown * (1 + JITTER_SHARE * jitter))


def clamp_delay(delay: float | dt.timedelta, *, path: str = "$.delay") -> float:
    """Turn a delay that a user gave (snooze, retry-after, deadline, expiry) into seconds that can be added to now.

    Too long is not an error: a delay above ten years is ten years, because nobody can tell the difference and a refused
    verdict would cost the attempt.

    Args:
        delay: seconds, or a timedelta.
        path: how errors name the value.

    Returns:
        Seconds, 0 to ``LONGEST_DELAY``.

    Raises:
        ValidationError: not a number, NaN, infinite, or negative.

    Source: field reports 033, 081, 084.
    """
    seconds = delay.total_seconds() if isinstance(delay, dt.timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValidationError(f"a delay is a number of seconds or a timedelta, not {shown(delay)}", path=path)
    # NaN fails every comparison, and an int too large for a float still compares exactly.
    if not 0 <= seconds < math.inf:
        raise ValidationError(f"a delay is finite and not negative, not {shown(delay)}", path=path)
    return float(min(seconds, LONGEST_DELAY))
