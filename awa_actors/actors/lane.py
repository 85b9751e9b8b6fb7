"""A lane is a step and an interval: one bounded pass, run again and again, alone with its connection and failures."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import attrs
import trio

from awa_actors.actors.meters import Meters
from awa_actors.core.text import error_text
from awa_actors.errors import StoreError
from awa_actors.store.connection import OwnConnection
from awa_actors.store.pool import Pool, Session

DUTY = 0.5
"""A slow lane rests at least this share of what its pass took, so it keeps most of its duty and never spins."""
BACKOFF_FIRST, BACKOFF_MOST = 0.2, 10.0

logger = logging.getLogger("awa_actors.maintenance")


@attrs.frozen
class StepReport:
    """What one pass did.

    Args:
        done: rows it moved, rescued, truncated …
        more: there is more to do right now.
        wait: seconds until the next pass is useful, if sooner than the interval.
        blocked: what keeps it from doing its work, in words, or None.
        over: there will never be anything to do again.
        rest: seconds to leave to others first, although there is more to do.
    """

    done: int = 0
    more: bool = False
    wait: float | None = None
    blocked: str | None = None
    over: bool = False
    rest: float = 0.0


class Step(Protocol):
    """One bounded pass; knows nothing of time and may be run by anybody, beside anybody."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def interval(self) -> float: ...  # noqa: D102
    async def run(self, session: Session, rows: int) -> StepReport: ...  # noqa: D102


@attrs.define(eq=False)
class LaneHealth:
    """What health says of a lane. Times are seconds of Trio's clock."""

    last_success: float | None = None
    last_error: str | None = None
    blocked: str | None = None
    failures: int = 0
    passes: int = 0
    done: int = 0
    began: float | None = None
    over: bool = False

    def describe(self, interval: float) -> dict[str, Any]:
        """As published: ages in seconds."""
        now = trio.current_time()
        running_for = None if self.began is None else round(now - self.began, 3)
        return {
            "healthy": self.failures < 3 and (running_for is None or running_for < 60.0 + 10 * interval),
            "last_success_age": None if self.last_success is None else round(now - self.last_success, 3),
            "last_error": self.last_error,
            "blocked": self.blocked,
            "failures": self.failures,
            "passes": self.passes,
            "done": self.done,
            "running_for": running_for,
        }


class LaneDown(Exception):
    """A lane that the term depends on keeps failing: another process should lead."""


@attrs.define(eq=False)
class Lane:
    """Runs one step. A pass that fails backs off and is tried again, on a fresh connection where needed.

    Args:
        step: what to run.
        pool: opens the lane's own connection.
        rows: budget of one pass.
        vital: without it nothing moves; after `failures_allowed` failures in a row the term is given up.
        failures_allowed: see `vital`.
        health: outlives the term.
        role: whose lane this is, for the name of its connection.
        meters: told of every pass.
    """

    step: Step
    pool: Pool
    rows: int
    vital: bool
    failures_allowed: int
    health: LaneHealth
    role: str = "maintenance"
    meters: Meters = attrs.field(factory=Meters)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    def wake(self) -> None:
        """Look now rather than at the end of the interval."""
        self._wake.set()

    async def run(self) -> None:
        """Run until cancelled, or until there is nothing left to do for good.

        Raises:
            LaneDown: a vital lane kept failing.

        Cancellation: a pass is one transaction per statement; cancelled between them nothing has half happened.
        """
        async with OwnConnection(self.pool, f"{self.role} {self.step.name}") as connection:
            while not self.health.over:
                self._wake = trio.Event()
                await self._rest(await self._pass(connection))

    async def _pass(self, connection: OwnConnection) -> float:
        """One pass; returns the seconds to rest."""
        self.health.began = began = trio.current_time()
        try:
            report = await self.step.run(await connection.session(), self.rows)
        except Exception as error:  # whatever broke, only this lane is affected
            self._tell(began, None, error)
            return await self._failed(error)
        finally:
            self.health.began = None
            self.health.passes += 1
        if self.health.failures >= 3:
            logger.warning("lane %s has recovered", self.step.name)
        self.health.failures, self.health.last_error = 0, None
        self.health.last_success, self.health.blocked = trio.current_time(), report.blocked
        self.health.done += report.done
        self.health.over = report.over
        self._tell(began, report.done, None)
        if report.more or report.over:
            return report.rest
        rest = self.step.interval if report.wait is None else min(self.step.interval, max(0.0, report.wait))
        return max(rest, DUTY * (trio.current_time() - began) if report.wait is None else 0.0)

    def _tell(self, began: float, done: int | None, error: Exception | None) -> None:
        seconds = trio.current_time() - began
        self.meters.passed(self.step.name, self.step.interval, seconds, done)
        if self.meters.tracing is not None and (done or error is not None):
            self.meters.tracing.passed(self.step.name, seconds, done or 0, None if error is None else str(error))

    async def _failed(self, error: Exception) -> float:
        self.health.failures += 1
        self.health.last_error = str(error) if isinstance(error, StoreError) else error_text(error)
        if self.health.failures == 3:
            logger.error("lane %s is unhealthy: %s", self.step.name, self.health.last_error)
        else:
            logger.warning(
                "lane %s failed (%d): %s", self.step.name, self.health.failures, str(error) or type(error).__name__
            )
        if self.vital and self.health.failures >= self.failures_allowed:
            raise LaneDown(f"{self.step.name}: {self.health.last_error}")
        return min(BACKOFF_MOST, BACKOFF_FIRST * 2.0 ** min(self.health.failures - 1, 10))

    async def _rest(self, seconds: float) -> None:
        if seconds <= 0:
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_after(seconds):
            await self._wake.wait()
