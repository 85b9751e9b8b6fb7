"""Cron: when an expression fires, and which of the due fires are enqueued.

An expression has five fields (minute, hour, day of month, month, day of week) or six with seconds in front, in the
dialect of Debian's cron: names, ranges, lists, steps, ``L`` and ``#``; when both day fields are restricted either may
match.

**Where clocks change** there are two rules, chosen by the hour field:

- An hour field that begins with ``*`` or lists all 24 hours counts real time: the schedule fires at every instant whose
  wall clock reading matches. ``0 * * * *`` fires in each real hour, twice at 02:00 when clocks are set back over it.
- Any other hour field names fixed wall times: each fires once, at the first instant at which the wall clock has reached
  it. A time inside a gap fires at the first valid instant after the gap (with several, still once), a time that exists
  twice fires at its first occurrence.

Everything is computed in UTC from IANA zones; no clock is read here.

Source: fact M47; field report 089.
"""

import datetime as dt
import enum
import hashlib

import attrs
from cronsim import CronSim, CronSimError

from awa_actors.core.text import shown
from awa_actors.core.validation import positive_seconds
from awa_actors.core.wall_time import first_reached, load_zone, next_offset_change, offset_at, wall_reading
from awa_actors.errors import ValidationError

EXPRESSION_CHARACTERS = 256
"""Longest expression; beyond it parsing would be work and the text a mistake."""

FIRES_PER_PASS = 1000
"""Missed fires that one pass catches up on; the next pass continues."""

ON_TIME_SECONDS = 60.0
"""How late a fire may be enqueued and still count as on time: covers a change of leader."""

_SECOND = dt.timedelta(seconds=1)
_ANY_DAY = dt.datetime(2000, 1, 1)  # noqa: DTZ001  a wall reading, which has no zone


class MissedFire(enum.Enum):
    """What becomes of fires that came due while nobody was there to enqueue them."""

    COALESCE = "coalesce"
    """The latest due fire stands for all of them."""

    CATCH_UP = "catch_up"
    """Every one is enqueued, oldest first."""

    SKIP = "skip"
    """None is: only a fire that is still on time is enqueued."""


class Overlap(enum.Enum):
    """What becomes of a fire whose predecessor has not ended."""

    ALLOW = "allow"
    SKIP_IF_RUNNING = "skip_if_running"


@attrs.frozen
class CronExpression:
    """A parsed expression in its time zone; made by :meth:`parse` only, so one that exists does fire."""

    text: str
    timezone: str
    _zone: dt.tzinfo = attrs.field(eq=False, repr=False)
    _real_hours: bool = attrs.field(eq=False, repr=False)

    @classmethod
    def parse(cls, text: str, timezone: str = "UTC") -> "CronExpression":
        """Read an expression.

        Args:
            text: five or six fields.
            timezone: an IANA name.

        Raises:
            ValidationError: the expression is malformed, never fires (30 February), or the zone is unknown.
        """
        zone = load_zone(timezone)
        if not isinstance(text, str) or len(text) > EXPRESSION_CHARACTERS or len(text.split()) not in (5, 6):
            raise ValidationError(
                f"{shown(text)} is not a cron expression: write minute hour day month weekday (seconds may come first)",
                path="$.expression",
            )
        text = " ".join(text.split())
        try:
            walls = CronSim(text, _ANY_DAY)
            fires = next(walls, None) is not None
        except (CronSimError, ValueError) as error:
            raise ValidationError(f"{shown(text)} is not a cron expression: {error}", path="$.expression") from None
        if not fires:
            raise ValidationError(f"{shown(text)} never fires: no such date exists", path="$.expression")
        hours = text.split()[-4]
        return cls(text, timezone, zone, hours.startswith("*") or len(walls.hours) == 24)

    def next_after(self, instant: dt.datetime) -> dt.datetime:
        """Find the first fire later than an instant.

        Args:
            instant: any aware datetime.

        Returns:
            The nominal time, in UTC, on a whole second, strictly later than `instant`.

        Raises:
            ValidationError: `instant` is naive, or there is no fire before the calendar ends in year 9999.
        """
        if instant.utcoffset() is None:
            raise ValidationError(f"{instant.isoformat()} has no time zone: pass an aware datetime", path="$.instant")
        instant = instant.astimezone(dt.UTC)
        try:
            fire = self._next_reading(instant) if self._real_hours else self._next_wall_time(instant)
        except (OverflowError, ValueError):
            fire = None
        if fire is None:
            raise ValidationError(f"{shown(self.text)} does not fire after {instant.isoformat()}", path="$.expression")
        return fire

    def due(self, after: dt.datetime, until: dt.datetime, limit: int = FIRES_PER_PASS) -> list[dt.datetime]:
        """List the nominal times in (after, until], oldest first and at most `limit` of them."""
        fires: list[dt.datetime] = []
        while len(fires) < limit:
            fire = self.next_after(fires[-1] if fires else after)
            if fire > until:
                break
            fires.append(fire)
        return fires

    def latest_due(self, after: dt.datetime, until: dt.datetime) -> dt.datetime | None:
        """Find the last nominal time in (after, until], or None.

        By bisection, because a schedule of every second has a million fires behind it after a long outage.
        """
        latest = None
        fire = self.next_after(after)
        while fire <= until:
            latest = fire
            middle = latest + (until - latest) / 2
            fire = self.next_after(middle)
            if fire > until:
                # Nothing in the later half, so the last one is in the earlier half: shrink towards it.
                until = middle
                fire = self.next_after(latest)
        return latest

    def _next_reading(self, instant: dt.datetime) -> dt.datetime | None:
        start = instant
        while True:
            offset = offset_at(self._zone, start)
            # A change of offset is itself a candidate, an instant that was asked about is not.
            before = start if start is instant else start - _SECOND
            wall = next(CronSim(self.text, (before + offset).replace(tzinfo=None)), None)
            if wall is None:
                return None
            fire = wall.replace(tzinfo=dt.UTC) - offset
            change = next_offset_change(self._zone, start, fire)
            if change is None:
                return fire
            start = change

    def _next_wall_time(self, instant: dt.datetime) -> dt.datetime | None:
        # Readings up to the present one have been reached; while clocks repeat an hour, so have some later ones.
        for wall in CronSim(self.text, wall_reading(self._zone, instant)):
            fire = first_reached(self._zone, wall)
            if fire > instant:
                return fire
        return None


def plan_fires(
    expression: CronExpression,
    last_fire: dt.datetime | None,
    created_at: dt.datetime,
    now: dt.datetime,
    policy: MissedFire,
    *,
    limit: int = FIRES_PER_PASS,
    tolerance: float = ON_TIME_SECONDS,
) -> tuple[list[dt.datetime], dt.datetime | None]:
    """Decide which fires of a schedule are enqueued now, and where its mark stands afterwards.

    A schedule that has never fired looks back to `tolerance` before its creation and takes only the latest due fire,
    whatever its policy: nothing was missed before it existed.

    Args:
        expression: the schedule.
        last_fire: its mark: the nominal time up to which fires are decided, or None when it has never fired.
        created_at: when the schedule was first stored.
        now: the database's time.
        policy: what becomes of missed fires.
        limit: fires that one pass returns at most.
        tolerance: seconds that a fire may be late and still be on time.

    Returns:
        Fires in order, and the new mark: the last fire decided, enqueued or dropped. The mark is `last_fire` itself
        when nothing is due (None if there was none): nothing to write then.

    Raises:
        ValidationError: `tolerance` is not a finite number above 0.

    Source: facts M49, M51; field reports 092, 093.
    """
    late = dt.timedelta(seconds=positive_seconds(tolerance, path="$.tolerance"))
    decided = decided_until(last_fire, created_at, tolerance=tolerance)
    if policy is MissedFire.CATCH_UP and last_fire is not None:
        fires = expression.due(last_fire, now, limit)
        return fires, fires[-1] if fires else last_fire
    latest = expression.latest_due(decided, now)
    if latest is None:
        return [], last_fire
    if policy is MissedFire.SKIP and now - latest > late:
        return [], latest
    return [latest], latest


def decided_until(
    last_fire: dt.datetime | None, created_at: dt.datetime, *, tolerance: float = ON_TIME_SECONDS
) -> dt.datetime:
    """Tell the nominal time up to which the fires of a schedule are decided; the next one is later.

    Args:
        last_fire: its mark, or None when it has never fired.
        created_at: when the schedule was first stored.
        tolerance: seconds that a fire may be late and still be on time.
    """
    return created_at - dt.timedelta(seconds=tolerance) if last_fire is None else last_fire


def jitter_seconds(name: str, nominal: dt.datetime, max_jitter: float) -> float:
    """Spread the fires of many schedules: a delay that looks random and is the same in every process.

    Args:
        name: the schedule's name.
        nominal: the fire's nominal time; the instant counts, not the zone it is written in.
        max_jitter: seconds, at least 0; 0 means no jitter.

    Returns:
        Seconds in [0, max_jitter).

    Raises:
        ValidationError: `max_jitter` is negative or not finite.

    Source: field report 079.
    """
    if max_jitter == 0:
        return 0.0
    seconds = positive_seconds(max_jitter, path="$.jitter")
    instant = nominal.astimezone(dt.UTC).isoformat(timespec="microseconds")
    digest = hashlib.sha256(f"{name}\x00{instant}".encode()).digest()
    # 53 bits, so that the fraction is exact and below 1.
    return seconds * (int.from_bytes(digest[:8], "big") >> 11) / 2**53
