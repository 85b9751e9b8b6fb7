"""Judgements about where jobs live: rings, history, copies of a database, the move between planes."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from awa_actors.core.doctor import Verdict, ago, bad, fine, listed, size, warn, worst
from awa_actors.core.doctor_server import Session


@attrs.frozen
class RingLook:
    """A ring: how many of its slots hold something, and how many bytes in all."""

    name: str
    used: int
    slots: int
    bytes: int


@attrs.frozen
class Copy:
    """What a copy of a database without its sequences, or its processes, looks like.

    Args:
        last_id: what the sequence of job ids stands at.
        highest: the highest id of any job.
        strangers: leases of instances that nobody knows.
    """

    last_id: int
    highest: int
    strangers: int


@attrs.frozen
class Plane:
    """Where jobs live, and how far a move between planes has come; `since` in seconds."""

    state: str
    current: str
    prepared: str | None
    since: float
    backlog: dict[str, int] = attrs.field(factory=dict)


def judge_rings(rings: Sequence[RingLook], holders: Sequence[Session]) -> Verdict:
    """The fast rings have room to turn."""
    found = []
    pinned = "".join(f"; {one.text} locks {one.what}: {one.cure}" for one in holders[:2])
    for ring in rings:
        if ring.name == "segments":
            continue
        if ring.used >= ring.slots:
            found.append(bad(f"every slot of the {ring.name} ring is in use, so nothing is truncated{pinned}"))
        elif ring.used == ring.slots - 1:
            found.append(warn(f"{ring.used} of {ring.slots} slots of the {ring.name} ring are in use{pinned}"))
    if not found and holders:
        found.append(warn("slots cannot be truncated" + pinned))
    return worst(found, ", ".join(f"{ring.name} {ring.used} of {ring.slots} slots" for ring in rings))


def judge_history(segments: RingLook | None, ended: int, dead: int) -> Verdict:
    """Completed history leaves room for what comes.

    Args:
        segments: the ring of bodies.
        ended: bytes of failed and cancelled jobs.
        dead: bytes of dead letters.
    """
    if segments is None:
        return fine("no segment yet")
    sizes = f"{size(segments.bytes)} of jobs in {segments.used} of {segments.slots} segments"
    if segments.used >= segments.slots:
        return bad(
            f"history fills the disk: {sizes}, so none can be dropped by retention in time: lower completed_retention,"
            " and see that maintenance runs"
        )
    return fine(f"{sizes}, {size(ended)} of failed and cancelled jobs, {size(dead)} of dead letters")


def judge_copy(copy: Copy) -> Verdict:
    """The database is not a copy that misses something."""
    found = []
    if copy.last_id < copy.highest:
        found.append(
            bad(
                f"restored without its sequences: the next job id would be {copy.last_id + 1}, and there are jobs up to"
                f" {copy.highest}: call setval('awa.job_id_seq', {copy.highest})"
            )
        )
    if copy.strangers:
        found.append(
            warn(
                f"{copy.strangers} attempts belong to processes that are unknown here, as after a restore: the leader"
                " rescues them; see that the original deployment is stopped"
            )
        )
    return worst(found, "ids and attempts are consistent")


def judge_storage(plane: Plane | None) -> Verdict:
    """Jobs live on one plane."""
    if plane is None:
        return bad("the row that says where jobs live is missing: restore awa.storage_transition_state")
    if plane.state == "active":
        return fine(f"active on {plane.current}")
    if plane.state == "canonical":
        return warn(f"jobs live on the {plane.current} plane: 'awa-actors storage prepare' begins the move")
    waiting = listed(f"{count} {state}" for state, count in plane.backlog.items())
    blocked = f"; still on the old plane: {waiting}" if waiting else ""
    return warn(
        f"the move to {plane.prepared} is {plane.state.replace('_', ' ')} since {ago(plane.since)}{blocked}:"
        " 'awa-actors storage status' shows what is next"
    )
