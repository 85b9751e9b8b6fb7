"""The cron lane: one job per schedule and nominal time, for the schedules that this process declares."""

from __future__ import annotations

import datetime as dt
import logging
import time

import attrs

from awa_actors.actors.lane import StepReport
from awa_actors.core.cron import FIRES_PER_PASS, CronExpression, MissedFire, decided_until, jitter_seconds, plan_fires
from awa_actors.errors import AwaError, TransientStoreError
from awa_actors.registry import Registry
from awa_actors.store import cron
from awa_actors.store.cron import Fired, Schedule
from awa_actors.store.pool import Session

DECLARE_EVERY = 60.0
"""Seconds between signs that a schedule is still declared."""
LOOK_AGAIN = 1.0
"""Seconds after a fire that was locked, or that another evaluator decided."""
SHORTEST_WAIT = 0.005
"""Seconds: a timer that fires a hair early must not turn into a hot loop."""
NAMED = 5
"""Schedules whose trouble health names; the rest is counted."""

logger = logging.getLogger("awa_actors.maintenance")


@attrs.frozen
class Upcoming:
    """The first fire after a mark, with everything that it was computed from."""

    digest: str
    mark: dt.datetime | None
    times: CronExpression
    fire: dt.datetime


@attrs.define(eq=False)
class Cron:
    """One pass declares what is due to be declared and decides every fire that has come due by the database's clock.

    A definition that this process declares replaces an older one of the same application once, in its first pass; what
    a newer process declares afterwards stands. What another application owns is left alone.

    Args:
        registry: whose schedules these are.
        interval: seconds between looks; the lane wakes earlier for a fire.

    Source: facts M48 to M53; field reports 015, 092, 093, 095.
    """

    registry: Registry
    interval: float
    name: str = "cron"
    _declared_at: float | None = attrs.field(default=None, init=False)
    _undeclared: dict[str, str] = attrs.field(factory=dict, init=False)
    _upcoming: dict[str, Upcoming] = attrs.field(factory=dict, init=False)
    _trouble: dict[str, str] = attrs.field(factory=dict, init=False)

    async def run(self, session: Session, rows: int) -> StepReport:
        """One pass; `rows` bounds the jobs of each schedule."""
        await self._declare(session)
        trouble = dict(self._undeclared)
        stored = await cron.read(session, list(self.registry.schedules))
        seen = time.monotonic()
        done, more, waits = 0, False, [self.interval]
        for schedule in stored:
            if schedule.application != self.registry.application:
                trouble[schedule.name] = (
                    f"belongs to application {schedule.application!r}: rename it here, or remove it there and then "
                    f"with 'awa-actors cron remove {schedule.name}'"
                )
            elif not schedule.paused:
                try:
                    enqueued, again, wait = await self._evaluate(session, schedule, rows, seen, trouble)
                except TransientStoreError:
                    raise
                except AwaError as error:  # whatever is wrong with one schedule, the others fire
                    trouble[schedule.name] = str(error)
                    continue
                done, more = done + enqueued, more or again
                waits.append(wait)
        self._tell(trouble)
        return StepReport(done, more, max(SHORTEST_WAIT, min(waits)), _summary(trouble))

    async def _declare(self, session: Session) -> None:
        now = time.monotonic()
        if self._declared_at is not None and now - self._declared_at < DECLARE_EVERY:
            return
        self._undeclared = {}
        for spec in list(self.registry.schedules.values()):
            try:
                await cron.declare(session, self.registry.application, spec, fresh=self._declared_at is None)
            except TransientStoreError:
                raise
            except AwaError as error:
                self._undeclared[spec.name] = f"cannot be declared: {error}"
        self._declared_at = now

    async def _evaluate(
        self, session: Session, schedule: Schedule, rows: int, seen: float, trouble: dict[str, str]
    ) -> tuple[int, bool, float]:
        """Decide the fires of one schedule; returns jobs, whether there is more, and the seconds until its next."""
        if schedule.last_error is not None:
            trouble[schedule.name] = f"its last fire was refused: {schedule.last_error}"
        upcoming = self._after(schedule)
        if upcoming.fire > schedule.read_at:
            return 0, False, (upcoming.fire - schedule.read_at).total_seconds() - (time.monotonic() - seen)
        policy, limit = MissedFire(schedule.missed_fire), max(1, min(rows, FIRES_PER_PASS))
        fires, mark = plan_fires(
            upcoming.times, schedule.mark, schedule.created_at, schedule.read_at, policy, limit=limit
        )
        if mark is None or mark == schedule.mark:
            return 0, False, self.interval
        delays = [jitter_seconds(schedule.name, nominal, schedule.jitter) for nominal in fires]
        fired = await cron.fire(session, schedule, mark, fires, delays)
        _log(schedule, fires, fired, limit)
        if fired.outcome != "fired":
            return 0, False, LOOK_AGAIN
        after = upcoming.times.next_after(mark)
        wait = (after - schedule.read_at).total_seconds() - (time.monotonic() - seen)
        return fired.enqueued, after <= schedule.read_at, wait

    def _after(self, schedule: Schedule) -> Upcoming:
        known = self._upcoming.get(schedule.name)
        if known is not None and (known.digest, known.mark) == (schedule.digest, schedule.mark):
            return known
        if known is not None and known.digest == schedule.digest:
            times = known.times
        else:
            times = CronExpression.parse(schedule.expression, schedule.timezone)
        fire = times.next_after(decided_until(schedule.mark, schedule.created_at))
        found = self._upcoming[schedule.name] = Upcoming(schedule.digest, schedule.mark, times, fire)
        return found

    def _tell(self, trouble: dict[str, str]) -> None:
        """Log what is new, once: a schedule in trouble is in health for as long as it is, not in every pass's log."""
        for name, what in trouble.items():
            if self._trouble.get(name) != what:
                logger.warning("schedule %r %s", name, what)
        self._trouble = trouble


def _log(schedule: Schedule, fires: list[dt.datetime], fired: Fired, limit: int) -> None:
    if fired.outcome == "busy":
        logger.info("schedule %r waits: somebody's open transaction holds its row or its unique key", schedule.name)
    elif fired.outcome == "fired" and len(fires) == limit > 1:
        logger.warning("schedule %r has missed more than %d fires; the next pass goes on", schedule.name, len(fires))
    elif fired.outcome == "fired" and len(fires) > 1:
        logger.info("schedule %r caught up with %d fires", schedule.name, len(fires))


def _summary(trouble: dict[str, str]) -> str | None:
    if not trouble:
        return None
    told = [f"schedule {name!r} {what}" for name, what in sorted(trouble.items())[:NAMED]]
    return "; ".join(told) + (f"; and {len(trouble) - NAMED} more" if len(trouble) > NAMED else "")
