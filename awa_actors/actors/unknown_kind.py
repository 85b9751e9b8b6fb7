"""A job whose kind this process does not know goes back, visibly and uncounted: another worker may know it."""

from __future__ import annotations

import logging
from typing import Any

import orjson

from awa_actors.actors.attempt import Attempt
from awa_actors.core.outcome import Decision, Outcome
from awa_actors.jobs import Completion
from awa_actors.registry import WorkerSpec

GIVEN_BACK_KEY = "awa:given_back"
WHY = "its worker has no handler for this kind"
LONGEST_WAIT = 60.0
"""Seconds: the wait doubles from one second up to this each time nobody knew the kind."""

logger = logging.getLogger("awa_actors.worker")


async def _never_called(job: Any) -> None:
    """Stands where a handler is missing."""


UNKNOWN = WorkerSpec("", "", object, _never_called, True, Completion.RUNTIME)


def given_back(attempt: Attempt) -> Decision:
    """Put the job off for a while, with the reason in its metadata."""
    claimed = attempt.claimed
    extras = {} if claimed.extras is None else orjson.loads(claimed.extras)
    times = ((extras.get("metadata") or {}).get(GIVEN_BACK_KEY) or {}).get("times", 0) + 1
    delay = min(LONGEST_WAIT, 2.0 ** min(times - 1, 10))
    reason = f"no handler for kind {claimed.kind!r} in instance {attempt.instance}"
    if times == 1:
        logger.warning("job %d goes back for %.0f s: %s", claimed.job_id, delay, reason)
    note = {"reason": reason, "times": times}
    fields = {"state": "scheduled", "delay": delay, "uncount": True, "ended_as": "given_back", "why": WHY}
    return Decision(Outcome.GIVEN_BACK, {**fields, "metadata": {GIVEN_BACK_KEY: note}})
