"""What makes two jobs duplicates, and in which states a job holds its claim."""

from collections.abc import Iterable

import blake3

from awa_actors.core.json_text import canonical_json
from awa_actors.core.text import shown
from awa_actors.errors import ValidationError
from awa_actors.jobs import JobState

KEY_BYTES = 16
"""Length of a derived key."""

UPSTREAM_DEFAULT_MASK = 0b0001_1111
"""scheduled, available, running, completed, retryable: what older producers send, so a parked job holds no claim."""

DEFAULT_MASK = UPSTREAM_DEFAULT_MASK | 1 << JobState.WAITING_EXTERNAL.bit
"""Every state but failed and cancelled: a job that waits for a callback still holds its claim."""

_MASK_BITS = len(JobState)
_LOWEST_BUCKET, _HIGHEST_BUCKET = -(2**63), 2**63 - 1


def unique_key(kind: str, *, queue: str | None = None, args: object | None = None, period: int | None = None) -> bytes:
    """Derive the key that two duplicates share: a digest of the kind and of whatever else was chosen.

    The args are compared as canonical JSON (compact, keys sorted at every level, UTF-8 unescaped), never by
    containment, so ``{}`` matches only ``{}`` and the order of keys does not matter. **Numbers are compared as they
    are written**: an int, a float, a string and a boolean are four values, so ``{"a": 1}``, ``{"a": 1.0}``,
    ``{"a": "1"}`` and ``{"a": true}`` give four keys, and ``{"a": null}`` is not ``{}``. The key is the same in every
    process and every language.

    Args:
        kind: a valid kind.
        queue: part of the key when given.
        args: a JSON value, or its canonical JSON as bytes, part of the key when not None (``b"null"`` is the JSON
            null).
        period: the number of a time bucket, a signed 64-bit integer, part of the key when given.

    Returns:
        16 bytes.

    Raises:
        ValidationError: `args` is not JSON, or `period` is out of range.

    Source: facts I8, I14; field reports 078, 079.
    """
    parts = [kind.encode()]
    if queue is not None:
        parts.append(queue.encode())
    if args is not None:
        parts.append(args if isinstance(args, bytes) else canonical_json(args, path="$.args"))
    if period is not None:
        # A float is the likely mistake: time.time() // 3600 is one.
        whole = isinstance(period, int) and not isinstance(period, bool)
        if not whole or not _LOWEST_BUCKET <= period <= _HIGHEST_BUCKET:
            raise ValidationError(f"must be a 64-bit integer, not {shown(period)}", path="$.unique.by_period")
        parts.append(period.to_bytes(8, "little", signed=True))
    return blake3.blake3(b"\x00".join(parts)).digest(length=KEY_BYTES)


def state_mask(states: Iterable[JobState]) -> int:
    """Pack the states in which a job holds its claim; the bit of a state is its position in the enum.

    Raises:
        ValidationError: not states, or none at all, which would look like uniqueness and never find a duplicate.

    Source: facts J1, I11; field report 100.
    """
    mask = 0
    for state in states:
        if not isinstance(state, JobState):
            raise ValidationError(f"must hold awa.JobState values, not {shown(state)}", path="$.unique.states")
        mask |= 1 << state.bit
    if mask == 0:
        raise ValidationError(
            "names no state, so no job would ever hold its key: name some, or leave it out", path="$.unique.states"
        )
    return mask


def mask_bits(mask: int) -> str:
    """Write a mask as the text of a ``bit(8)`` value, bit 0 (scheduled) leftmost.

    Raises:
        ValidationError: the mask does not fit in eight bits.

    Source: fact I9.
    """
    if not 0 <= mask < 1 << _MASK_BITS:
        raise ValidationError(f"a mask of states has {_MASK_BITS} bits, not {shown(mask)}", path="$.unique.states")
    return f"{mask:0{_MASK_BITS}b}"[::-1]
