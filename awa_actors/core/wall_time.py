"""Instants and what the clock on the wall shows: the arithmetic of zone changes, done in UTC."""

import datetime as dt
import zoneinfo

from awa_actors.core.text import shown
from awa_actors.errors import ValidationError

_SECOND = dt.timedelta(seconds=1)
_STRIDE = dt.timedelta(days=1)  # no zone has kept an offset for less than this
_MACHINE_DEPENDENT = frozenset({"localtime", "Factory", "posixrules"})


def load_zone(name: object, *, path: str = "$.timezone") -> zoneinfo.ZoneInfo:
    """Find an IANA time zone by name.

    Raises:
        ValidationError: no such zone on this machine, or a name that means another zone on each machine.
    """
    advice = "pass an IANA name such as Europe/Berlin or UTC"
    if not isinstance(name, str) or name in _MACHINE_DEPENDENT:
        raise ValidationError(f"{shown(name)} is not a time zone: {advice}", path=path)
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        # A folder of zones, an absolute path or an overlong name each fail in a way of their own.
        raise ValidationError(f"{shown(name)} is not a time zone known here: {advice}", path=path) from None


def wall_reading(zone: dt.tzinfo, instant: dt.datetime) -> dt.datetime:
    """Tell what a wall clock in the zone shows at an instant, as a naive datetime."""
    return instant.astimezone(zone).replace(tzinfo=None)


def offset_at(zone: dt.tzinfo, instant: dt.datetime) -> dt.timedelta:
    """Tell how far a wall clock in the zone is ahead of UTC at an instant given in UTC."""
    return wall_reading(zone, instant) - instant.replace(tzinfo=None)


def next_offset_change(zone: dt.tzinfo, after: dt.datetime, until: dt.datetime) -> dt.datetime | None:
    """Find the first instant in (after, until] from which the zone's offset is another one.

    Args:
        zone: any zone whose changes fall on whole seconds.
        after: in UTC.
        until: in UTC, on a whole second.

    Returns:
        The instant in UTC, or None when the offset stays.
    """
    offset = offset_at(zone, after)
    same = after.replace(microsecond=0)
    while same < until:
        probe = same + min(_STRIDE, until - same)
        if offset_at(zone, probe) != offset:
            return _narrowed(zone, same, probe)
        same = probe
    return None


def _narrowed(zone: dt.tzinfo, same: dt.datetime, other: dt.datetime) -> dt.datetime:
    offset = offset_at(zone, same)
    while other - same > _SECOND:
        middle = same + (other - same) // 2
        middle = middle.replace(microsecond=0)
        if offset_at(zone, middle) == offset:
            same = middle
        else:
            other = middle
    return other


def first_reached(zone: dt.tzinfo, wall: dt.datetime) -> dt.datetime:
    """Find the first instant at which a wall clock in the zone has reached a reading.

    That is the reading itself where it exists, its first occurrence where clocks are set back and it exists twice, and
    the first instant after the gap where clocks are set forward over it.

    Args:
        zone: the zone.
        wall: a naive datetime on a whole second.

    Returns:
        An instant in UTC.
    """
    # In a gap fold=0 counts with the offset before it and so lands behind it; fold=1 lands before it.
    instant = wall.replace(tzinfo=zone, fold=0).astimezone(dt.UTC)
    if wall_reading(zone, instant) == wall:
        return instant
    before_gap = wall.replace(tzinfo=zone, fold=1).astimezone(dt.UTC)
    return next_offset_change(zone, before_gap, instant) or instant
