"""Judgements about who works: leader, lanes, processes, and what waits for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from awa_actors.core.doctor import Process, Verdict, ago, bad, fine, listed, skipped, warn, worst


@attrs.frozen
class Lease:
    """Who leads.

    Args:
        holder: instance, or None when it was given back.
        left: seconds until it expires; negative since it has.
        session_alive: the server still has the holder's session.
    """

    holder: str | None
    left: float
    session_alive: bool

    @property
    def is_held(self) -> bool:
        """Whether somebody leads."""
        return self.holder is not None and self.left > 0 and self.session_alive


@attrs.frozen
class QueueLook:
    """A queue that holds available jobs.

    Args:
        queue: its name.
        waiting: how many, counted up to `COUNTED`.
        oldest: seconds that the foremost job of any priority has waited.
        paused: whether claims are stopped.
        paused_by: by whom.
        running: attempts of it that run now.
        longest: seconds that the longest of them has run.
        longest_job: which job that is.
    """

    queue: str
    waiting: int
    oldest: float
    paused: bool = False
    paused_by: str | None = None
    running: int = 0
    longest: float = 0.0
    longest_job: int | None = None


COUNTED = 1000


@attrs.frozen
class Poisoned:
    """A job whose attempts end with their worker."""

    job_id: int
    kind: str
    rescues: int
    failed: bool


@attrs.frozen
class OutboxLook:
    """What waits in the outbox for one spec; `oldest` in seconds."""

    kind: str
    spec: str
    rows: int
    most_tries: int
    oldest: float
    error: str | None


@attrs.frozen
class ScheduleLook:
    """A schedule that is not paused.

    Args:
        name: its name.
        application: whose process decides its fires.
        decided: such a process holds the lease of it.
        declared: seconds since a deciding process last said that it has this schedule.
        stale: that is so long ago that none has.
    """

    name: str
    application: str
    decided: bool
    declared: float
    stale: bool


def judge_leader(lease: Lease | None, jobs_wait: bool, processes: Sequence[Process]) -> Verdict:
    """Somebody keeps the database moving."""
    if lease is not None and lease.is_held:
        names = [one.name for one in processes if one.id == lease.holder]
        return fine(f"{names[0] if names else lease.holder} leads, {lease.left:.0f} s left")
    if lease is None:
        what = "nobody has ever led"
    elif lease.holder is None:
        what = f"nobody leads: the last leader resigned {ago(-lease.left)} ago"
    elif lease.left > 0:
        what = f"the leader's session is gone ({lease.holder}), and nobody has taken over"
    else:
        what = f"nobody leads: the lease of {lease.holder} ran out {ago(-lease.left)} ago"
    cure = "run 'awa-actors --role maintenance', or a worker without --no-maintenance"
    if jobs_wait:
        return bad(f"{what}; due, retried and orphaned jobs stay where they are: {cure}")
    return warn(f"{what}; no job needs it yet: {cure}")


def judge_lanes(lease: Lease | None, processes: Sequence[Process]) -> Verdict:
    """The lanes of whoever leads them do their work; schedules may be led by another process than the rest."""
    led = [(name, lane) for one in processes if one.alive for name, lane in one.lanes.items()]
    if not led:
        held = lease is not None and lease.is_held
        return skipped("the leader has not published its lanes yet" if held else "nobody leads")
    found = []
    for name, lane in led:
        since = lane.get("last_success_age")
        last = f"last success {ago(since)} before its last report" if isinstance(since, float | int) else "no success"
        failures = lane.get("failures")
        if not lane.get("healthy"):
            why = lane.get("last_error") or f"its pass has not ended for {lane.get('running_for')} s"
            found.append(bad(f"lane {name} is wedged ({last}): {_first_line(why)}"))
        elif isinstance(failures, int) and failures:
            found.append(warn(f"lane {name} failed {failures} times ({last}): {_first_line(lane.get('last_error'))}"))
        elif blocked := lane.get("blocked"):
            found.append(warn(f"lane {name} is held up: {_first_line(blocked)}"))
    return worst(found, f"{len(led)} lanes, all well")


def judge_schedules(looks: Sequence[ScheduleLook]) -> Verdict:
    """Every schedule that is not paused has a live process that decides its fires, or ticks that do."""
    found = []
    for application in sorted({one.application for one in looks if one.stale}):
        stale = [one for one in looks if one.application == application and one.stale]
        names = listed(repr(one.name) for one in stale)
        since = ago(min(one.declared for one in stale))
        if any(one.decided for one in stale):
            found.append(
                warn(
                    f"nobody declares {names} any more, for {since}, though a process decides the schedules of"
                    f" {application!r}: 'awa-actors cron remove' what was given up"
                )
            )
        else:
            found.append(
                bad(
                    f"no live process decides {names} of {application!r}, for {since}: run one with that application"
                    " and maintenance, or 'awa-actors cron pause' or 'remove' what was given up"
                )
            )
    return worst(found, f"{len(looks)} schedules, all decided" if looks else "there is no schedule")


def judge_workers(processes: Sequence[Process], jobs_wait: bool) -> Verdict:
    """Registered processes beat, and there is a worker for waiting jobs."""
    live = [one for one in processes if one.alive]
    workers = [one for one in live if one.role == "worker"]
    found = [
        warn(f"{one.name} has been silent for {ago(one.beat_age)}: it is dead, frozen or cut off; its jobs are rescued")
        for one in processes
        if not one.alive
    ]
    if jobs_wait and not workers:
        found.insert(0, bad("jobs wait and no worker runs: start one with 'awa-actors --role worker --app …'"))
    return worst(found[:4], f"{len(workers)} workers and {len(live) - len(workers)} other processes beat")


def judge_listeners(processes: Sequence[Process], backends: Collection[int]) -> Verdict:
    """Each process that means to listen has a server process that does it for it.

    Args:
        processes: all that are registered.
        backends: pids of the server's processes.
    """
    meant = [one for one in processes if one.alive and one.details.get("listens")]
    found = []
    for one in meant:
        pid = one.details.get("listener")
        if pid in backends:
            continue
        gone = "does not listen" if pid is None else f"listens no more: its server process {pid} is gone"
        found.append(warn(f"{one.name} {gone}; jobs start and cancellations act at its poll interval: restart it"))
    return worst(found[:3], f"{len(meant)} processes listen")


def judge_queues(looks: Sequence[QueueLook], processes: Sequence[Process], patience: float) -> Verdict:
    """Queues that hold jobs are worked on."""
    return worst(
        [verdict for look in looks if (verdict := _queue(look, processes, patience)) is not None],
        f"{len(looks)} queues hold available jobs" if looks else "no job waits",
    )


def _queue(look: QueueLook, processes: Sequence[Process], patience: float) -> Verdict | None:
    held = f"queue {look.queue!r} holds {_counted(look.waiting)} jobs, the oldest for {ago(look.oldest)}"
    if look.paused:
        by = f" by {look.paused_by}" if look.paused_by else ""
        return warn(f"{held}, and is paused{by}: 'awa-actors queue resume {look.queue}'")
    serving = [one for one in processes if one.alive and one.state != "draining" and look.queue in one.queues]
    if not serving:
        return bad(f"{held}, and no live worker serves it: run one with --queue {look.queue}")
    if look.oldest < patience:
        return None
    slots = sum(one.queues[look.queue] for one in serving)
    if look.running >= slots and look.longest >= patience:
        return bad(
            f"{held}, and is stuck: all {slots} slots hold long attempts, job {look.longest_job} for"
            f" {ago(look.longest)}: cancel it, or give its kind a deadline"
        )
    if look.running == 0:
        return bad(f"{held}, and is stuck: {listed(one.name for one in serving)} serve it and claim nothing: restart")
    return warn(f"{held}: more comes in than {slots} slots work off; raise --queue {look.queue}=N or add workers")


def judge_kinds(waiting: Collection[str], processes: Sequence[Process], declared: Collection[str]) -> Verdict:
    """Live workers know the kinds of the jobs that wait.

    Args:
        waiting: kinds of jobs that wait.
        processes: all that are registered.
        declared: kinds that the application at hand has handlers for.
    """
    workers = [one for one in processes if one.alive and one.role == "worker"]
    if not workers:
        return skipped("no worker runs")
    known = {kind for one in workers for kind in one.kinds}
    found = []
    if unknown := sorted(set(waiting) - known):
        found.append(
            bad(f"no live worker has a handler for {listed(map(repr, unknown))}: deploy one, or cancel these jobs")
        )
    missing = sorted(set(declared) - known - set(unknown))
    if missing:
        found.append(warn(f"this application has {listed(map(repr, missing))}, which no live worker has: deploy it"))
    return worst(found, f"{len(waiting)} kinds wait, all known")


def judge_poison(jobs: Sequence[Poisoned]) -> Verdict:
    """No job takes its workers down."""
    living, dead = [one for one in jobs if not one.failed], [one for one in jobs if one.failed]
    found = []
    if living:
        found.append(
            bad(f"{_poison(living)}, its worker ended each time: cancel it, and look why its handler ends the process")
        )
    if dead:
        found.append(
            warn(f"{_poison(dead)} and failed for it: look why its handler ends the process before retrying it")
        )
    return worst(found, "no job was rescued often")


def _poison(jobs: Sequence[Poisoned]) -> str:
    names = listed(f"job {one.job_id} ({one.kind})" for one in jobs)
    return f"poison: {names} was rescued {max(one.rescues for one in jobs)} times"


def judge_follow_ups(drift: Sequence[str], failures: int, newest: str | None) -> Verdict:
    """Live processes agree about follow-ups, and none is missing."""
    found = [warn(line) for line in drift[:3]]
    if failures:
        found.insert(
            0,
            warn(
                f"{_counted(failures)} follow-ups failed and wait to be replayed, the newest {newest}:"
                " client.admin.replay_follow_up"
            ),
        )
    return worst(found, "live processes agree, and none has failed")


def judge_outbox(rows: Sequence[OutboxLook], specs: Collection[str], patience: float) -> Verdict:
    """Rescues that wait for their follow-ups get them.

    Args:
        rows: what waits, by spec.
        specs: names of the specs that live processes have.
        patience: seconds a row may wait.
    """
    found = []
    for one in rows:
        what = f"{one.rows} rescues of {one.kind!r} wait for follow-up {one.spec}, the oldest for {ago(one.oldest)}"
        if one.spec not in specs:
            found.append(bad(f"{what}, and no live process has it: deploy it, or client.admin.retire_outbox_spec"))
        elif one.most_tries > 1:
            found.append(warn(f"{what}; parked after {one.most_tries} tries: {_first_line(one.error)}"))
        elif one.oldest >= patience:
            found.append(warn(f"{what}: look at the log of the processes that have it"))
    return worst(found, "empty" if not rows else f"{sum(one.rows for one in rows)} rows on their way")


def _counted(count: int) -> str:
    return f"{COUNTED} or more" if count >= COUNTED else str(count)


def _first_line(text: object) -> str:
    return str(text).strip().splitlines()[-1][:200] if str(text or "").strip() else "without a reason"
