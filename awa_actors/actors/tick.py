"""A bounded tick: the lanes' steps once, in order, for whoever calls. Needs no leader and is safe beside one."""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
import trio

from awa_actors.actors.lane import Step
from awa_actors.config import Budget
from awa_actors.errors import AwaError
from awa_actors.store.pool import Pool


@attrs.frozen
class TickReport:
    """What one tick did.

    Args:
        done: rows moved, by step.
        remaining: steps that have more to do, or were not reached within the budget.
        errors: what went wrong, by step; the other steps ran all the same.
        seconds: how long it took.
    """

    done: dict[str, int]
    remaining: tuple[str, ...]
    errors: dict[str, str]
    seconds: float


async def tick(pool: Pool, steps: Sequence[Step], budget: Budget) -> TickReport:
    """Run every step once, and again while there is more and budget left.

    Cancellation: every statement is its own transaction; what was done stays done.
    """
    began = time.monotonic()
    done = {step.name: 0 for step in steps}
    remaining = {step.name for step in steps}
    errors: dict[str, str] = {}
    left = budget.rows
    with trio.move_on_after(budget.seconds):
        for step in steps:
            try:
                async with pool.acquire() as session:
                    while left > 0:
                        report = await step.run(session, left)
                        done[step.name] += report.done
                        left -= report.done
                        if not report.more:
                            remaining.discard(step.name)
                            break
            except AwaError as error:
                errors[step.name] = str(error)
    return TickReport(
        done, tuple(step.name for step in steps if step.name in remaining), errors, time.monotonic() - began
    )
