"""Scripts that machine and store follow side by side: for each guard of the store, a run in which it matters."""

from __future__ import annotations

from model.machine import Args

Story = tuple[tuple[str, Args], ...]


def enqueued(*jobs: int, state: str = "available") -> Story:
    """Jobs are enqueued and committed."""
    return (*(("insert", (0, j, state)) for j in jobs), ("commit", (0,)))


def claimed(j: int, i: int = 0) -> Story:
    """A job is claimed by an instance, committed."""
    return (("claim", (0, i, j, 0)), ("commit", (0,)))


STORIES: dict[str, Story] = {
    "an attempt of another instance with the same run_lease is stale": (
        *enqueued(0), ("claim", (0, 0, 0)), ("abort", (0,)), *claimed(0, 1),
        ("complete", (1, 0, 1, 0)), ("settle", (1, 0, 1, 0, "retryable")), ("complete", (1, 0, 1, 1)), ("commit", (1,)),
    ),
    "an earlier attempt of the same instance is stale": (
        *enqueued(0), *claimed(0), ("settle", (0, 0, 1, 0, "retryable")), ("promote", (0,)), ("commit", (0,)),
        *claimed(0),
        ("complete", (1, 0, 1, 0)), ("settle", (1, 0, 1, 0, "failed")), ("complete", (1, 0, 2, 0)), ("commit", (1,)),
    ),
    "a lease that was carried away is completed": (
        *enqueued(0), *claimed(0), ("carry", (1, "leases")), ("commit", (1,)), ("complete", (0, 0, 1, 0)),
        ("commit", (0,)),
    ),
    "a completion waits for the carrier and finds the lease": (
        *enqueued(0), *claimed(0), ("carry", (1, "leases")), ("complete", (0, 0, 1, 0)), ("commit", (1,)),
        ("commit", (0,)),
    ),
    "an end waits for the carrier of its lease and finds it": (
        *enqueued(0), *claimed(0), ("carry", (1, "leases")), ("settle", (0, 0, 1, 0, "retryable")), ("commit", (1,)),
        ("commit", (0,)),
    ),
    "an end waits for the carrier of a body and finds it": (
        *enqueued(0), *claimed(0), ("carry", (1, "bodies")), ("settle", (0, 0, 1, 0, "retryable")), ("commit", (1,)),
        ("commit", (0,)),
    ),
    "a claim goes around what another transaction has claimed": (
        *enqueued(0, 1), ("claim", (0, 0, 0)), ("claim", (1, 1, 1)), ("abort", (0,)), ("commit", (1,)), *claimed(0),
    ),
    "a claim goes around what an operator is about to cancel": (
        *enqueued(0, 1), ("cancel", (0, 0)), ("claim", (1, 1, 1)), ("commit", (0,)), ("commit", (1,)),
    ),
    "claims follow the order of positions, with a hint from there": (
        *enqueued(2, 0, 1), ("claim", (0, 0, 0, 1)), *claimed(2), ("claim", (1, 0, 1, 0)), ("commit", (1,)),
    ),
    "what was never started goes back to its place, uncounted": (
        *enqueued(0, 1), *claimed(0), ("settle", (0, 0, 1, 0, "give_back")), ("commit", (0,)), *claimed(0), *claimed(1),
    ),
    "what was interrupted or snoozed is not counted": (
        *enqueued(0, 1), *claimed(0), *claimed(1), ("settle", (0, 0, 1, 0, "interrupted")),
        ("settle", (0, 1, 1, 0, "scheduled")), ("commit", (0,)),
    ),
    "promotion goes around what another transaction holds": (
        *enqueued(0, 1, state="scheduled"), ("cancel", (0, 0)), ("promote", (1,)), ("commit", (1,)), ("commit", (0,)),
    ),
    "a deferred job is cancelled once": (
        *enqueued(0, state="scheduled"), ("cancel", (0, 0)), ("commit", (0,)), ("cancel", (1, 0)),
    ),
    "only the dead lose their jobs, and the rescue is not counted as an attempt": (
        *enqueued(0, 1), *claimed(0, 0), *claimed(1, 1), ("bury", (0,)), ("rescue", (1,)), ("commit", (1,)),
    ),
    "a job that was rescued too often fails": (
        *enqueued(0), *claimed(0, 0), ("bury", (0,)), ("rescue", (1,)), ("promote", (1,)), ("commit", (1,)),
        *claimed(0, 1),
        ("bury", (1,)), ("rescue", (1,)), ("commit", (1,)),
    ),
    "rescue goes around an end that is under way": (
        *enqueued(0, 1), *claimed(0), *claimed(1), ("bury", (0,)), ("complete", (0, 0, 1, 0)), ("rescue", (1,)),
        ("commit", (0,)), ("commit", (1,)),
    ),
    "carrying goes around an end that is under way": (
        *enqueued(0, 1), *claimed(0), *claimed(1), ("settle", (0, 0, 1, 0, "retryable")), ("carry", (1, "leases")),
        ("commit", (0,)), ("commit", (1,)),
    ),
    "carried bodies survive the truncation of where they were": (
        *enqueued(0, 1), *claimed(0), ("carry", (1, "bodies")), ("commit", (1,)), ("truncate", ()), *claimed(1),
        ("complete", (0, 0, 1, 0)), ("settle", (0, 1, 1, 0, "retryable")), ("commit", (0,)),
    ),
    "a segment with a ready row is not truncated": (
        *enqueued(0), ("turn", ("segments",)), ("truncate", ()), *claimed(0), ("complete", (0, 0, 1, 0)),
        ("commit", (0,)),
    ),
    "a segment with a lease is not truncated": (
        *enqueued(0), *claimed(0), ("turn", ("segments",)), ("truncate", ()), ("settle", (0, 0, 1, 0, "failed")),
        ("commit", (0,)),
    ),
    "a segment that is being written to is passed over": (
        ("insert", (0, 0, "available")), ("turn", ("segments",)), ("turn", ("ready",)), ("truncate", ()),
        ("commit", (0,)),
        *claimed(0),
    ),
    "run_lease goes on growing after a retry": (
        *enqueued(0), *claimed(0), ("settle", (0, 0, 1, 0, "failed")), ("retry", (0, 0)), ("commit", (0,)), *claimed(0),
    ),
    "a retry waits for a cancellation and finds the cancelled job": (
        *enqueued(0), ("cancel", (0, 0)), ("retry", (1, 0)), ("commit", (0,)), ("commit", (1,)),
    ),
    "a cancellation waits for a claim and finds the running job": (
        *enqueued(0), ("claim", (0, 0, 0)), ("cancel", (1, 0)), ("commit", (0,)), ("commit", (1,)),
        ("complete", (0, 0, 1, 0)),
    ),
    "who waits for a transaction that is killed goes on": (
        *enqueued(0), *claimed(0), ("settle", (0, 0, 1, 0, "failed")), ("complete", (1, 0, 1, 0)), ("abort", (0,)),
        ("commit", (1,)),
    ),
}  # fmt: skip
