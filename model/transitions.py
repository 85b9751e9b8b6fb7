"""Which transitions a log may show: from which state to which, by whom, and what becomes of run_lease.

The tests hold this table against the machines: whatever they do is in it, and nothing of it is impossible in both.
"""

from __future__ import annotations

import attrs

NOWHERE = ""
"""The state of a job that does not exist: before its insertion, and when its history has gone."""

ENDED = ("completed", "failed", "cancelled")
WAITING = ("available", "scheduled", "retryable")
LIVE = ("running", "waiting_external")
STATES = (*WAITING, *LIVE, *ENDED)


@attrs.frozen
class Rule:
    """What one actor may do.

    Args:
        before, after: states.
        lease: how much run_lease grows.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    lease: tuple[int, ...] = (0,)


JOBS: dict[str, Rule] = {
    "insert": Rule((NOWHERE,), ("available", "scheduled")),
    "claim": Rule(("available",), ("running",), (1,)),
    # The ends of an attempt that its worker records.
    "complete": Rule(("running",), ("completed",)),
    "retry": Rule(("running",), ("retryable", "failed")),
    "fail": Rule(("running",), ("failed",)),
    "snooze": Rule(("running",), ("scheduled",)),
    "cancel": Rule(("running",), ("cancelled",)),
    "park": Rule(("running",), ("waiting_external", "available", "failed")),
    "interrupt": Rule(("running",), ("available", "retryable", "failed")),
    "give_back": Rule(("running",), ("available",)),
    # What happens outside, through a callback.
    "resolve": Rule(LIVE, ("completed", "failed", "available", *LIVE)),
    "await": Rule(LIVE, LIVE),
    # What maintenance does.
    "promote": Rule(("scheduled", "retryable"), ("available", "failed")),
    "rescue": Rule(("running",), ("retryable", "failed")),
    "deadline": Rule(("running",), ("retryable", "failed")),
    "expire": Rule(LIVE, ("retryable", "failed")),
    "forget": Rule(ENDED, (NOWHERE,)),
    # What operators do.
    "admin_cancel": Rule((*WAITING, *LIVE), ("cancelled",)),
    "admin_retry": Rule(("failed", "cancelled", "waiting_external", *WAITING), ("available", "scheduled")),
    # What the store does instead when it cannot do what was asked.
    "duplicate": Rule((*WAITING, *LIVE, "failed", "cancelled"), ("cancelled",), (0, 1)),
    "postpone": Rule(("available", "scheduled", *LIVE, "failed", "cancelled"), ("scheduled",), (0, 1)),
    "unclaimable": Rule(("available",), ("failed",), (0, 1)),
    "unrecordable": Rule((*WAITING, *LIVE), ("failed",)),
}
"""By the name of who did it."""

ATTEMPT = {"complete", "retry", "fail", "snooze", "cancel", "park", "interrupt", "give_back"}
"""Steps of the process that claimed the job, which names itself as the attempt's instance."""
SILENT = {"insert", "unclaimable"}
"""Steps without a line: others insert too, and a claim does not tell what it had to write off."""

STORAGE: dict[str, Rule] = {
    "prepare": Rule(("canonical",), ("prepared",)),
    "enter": Rule(("prepared",), ("mixed_transition",)),
    "finish": Rule(("mixed_transition",), ("active",)),
    "go_back": Rule(("prepared", "mixed_transition"), ("canonical",)),
    "install": Rule((NOWHERE, "canonical"), ("active",)),
}
"""Lines without a job are about where jobs live."""
