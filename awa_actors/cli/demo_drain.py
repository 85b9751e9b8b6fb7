"""demo --drain: an installation moves from the canonical plane to the queue plane while its jobs go on."""

from __future__ import annotations

import datetime as dt
import functools
import logging
import signal
import time
from collections.abc import Awaitable, Callable

import attrs
import trio

from awa_actors.cli import logs
from awa_actors.cli.demo_drain_app import Heartbeat, Import, Mail, Order, Payment, Reminder, registry
from awa_actors.cli.demo_drain_view import DrainView, Scene, drain_view
from awa_actors.cli.failures import INTERRUPTED, NO, OK, Failure
from awa_actors.cli.output import write_json
from awa_actors.cli.placement import Shared
from awa_actors.cli.process import Stop, first, signals
from awa_actors.client import Client, open_client
from awa_actors.config import DatabaseSettings, MaintenanceSettings, QueueConfig, WorkerSettings
from awa_actors.jobs import InsertOpts, JobRow, JobState
from awa_actors.private_postgres import PrivatePostgres

QUEUE = QueueConfig("demo", max_workers=50, poll_interval=0.2)
TIME_LIMIT = 25.0
"""Seconds from the beginning to the end of the show, so that with its cleaning up it stays under thirty."""
LOOK_EVERY = 0.15
PRODUCE_EVERY = 0.1
MOVER_ROWS = 250.0
"""Rows per second that the mover is held to: without that there would be nothing to see."""
HEARTBEATS, REMINDERS, MAILS, PAYMENTS, IMPORTS = 20, 400, 60, 20, 4


@attrs.define
class Course:
    """How far it has come.

    Args:
        before: the jobs as they were before the move.
        state: of the transition.
        moved_in: seconds from the flip to an empty canonical plane.
        lost: jobs that are not there any more.
    """

    began: float
    seeds: list[int] = attrs.field(factory=list)
    before: dict[int, JobRow] = attrs.field(factory=dict)
    state: str = "canonical"
    canonical: dict[str, int] = attrs.field(factory=dict)
    largest: int = 0
    heartbeats: dict[int, int] = attrs.field(factory=dict)
    produced: int = 0
    flipped_at: float | None = None
    moved_in: float | None = None
    kept: bool | None = None
    went_on: bool = False
    problem: str | None = None

    @property
    def backlog(self) -> int:
        """Live jobs of the canonical plane."""
        return sum(self.canonical.values())

    @property
    def converged(self) -> bool:
        """Whether the canonical plane is given up, empty, with every job kept and the snoozers at work."""
        return self.state == "active" and self.backlog == 0 and bool(self.kept) and self.went_on

    def outcome(self, seconds: float) -> dict[str, object]:
        """Give it under names that stay."""
        return {
            "ok": self.converged and self.problem is None,
            "problem": self.problem,
            "seconds": round(seconds, 1),
            "state": self.state,
            "jobs": len(self.seeds),
            "canonical_live_backlog": self.backlog,
            "largest_backlog": self.largest,
            "drained_in": None if self.moved_in is None else round(self.moved_in, 2),
            "jobs_kept": self.kept,
            "snoozers_went_on": self.went_on,
            "produced": self.produced,
        }


@attrs.define(eq=False)
class Drain:
    """The show."""

    client: Client
    view: DrainView
    course: Course
    _looked: trio.Event = attrs.field(factory=trio.Event)

    async def play(self) -> None:
        """From a canonical installation at work to the end of the move."""
        storage, course = self.client.admin.storage, self.course
        await self._enqueue()
        await self._until(lambda: len(course.heartbeats) == HEARTBEATS and min(course.heartbeats.values()) > 0)
        await self._until_asleep()
        await self.client.insert_many([Import(n) for n in range(IMPORTS)])
        self.view.say(f"all {course.backlog} live jobs are on the canonical plane; new jobs go there, too")
        await storage.throttle_mover(MOVER_ROWS)
        await self._enter()
        course.flipped_at = time.monotonic()
        self.view.say(
            "storage enter-mixed-transition: from now on new jobs go to the queue plane, and the others follow"
        )
        self.view.say(f"storage mover throttle {MOVER_ROWS:g}: slowly, so that one can watch")
        self.view.say("storage finalize --wait")
        await storage.finalize_when_ready(look_every=0.3)
        runs = dict(course.heartbeats)
        self.view.say("finalized; the jobs that snooze for ever go on, now on the queue plane")
        await self._until(lambda: all(course.heartbeats[job] > count for job, count in runs.items()))
        course.went_on = True
        await self._compare()

    async def _enqueue(self) -> None:
        next_year = InsertOpts(run_at=dt.timedelta(days=365))
        for text, jobs, opts in (
            ("snooze for ever", [Heartbeat(n) for n in range(HEARTBEATS)], None),
            ("are due next year", [Reminder(f"no. {n}") for n in range(REMINDERS)], next_year),
            ("fail and are tried again tomorrow", [Mail(n) for n in range(MAILS)], None),
            ("wait for a callback", [Payment(n) for n in range(PAYMENTS)], None),
        ):
            self.course.seeds += [job.id for job in await self.client.insert_many(jobs, opts)]
            self.view.say(f"enqueued {len(jobs)} jobs that {text}")

    async def _until_asleep(self) -> None:
        """Wait until everything that will sleep does, and remember how it lies."""
        asleep = {JobState.RETRYABLE.value: MAILS, JobState.WAITING_EXTERNAL.value: PAYMENTS}
        await self._until(lambda: asleep.items() <= self.course.canonical.items())
        self.course.before = {job.id: job for job in await self._sleepers()}

    async def _sleepers(self) -> list[JobRow]:
        return [
            job
            for kind in ("reminder", "mail", "payment")
            for job in await self.client.admin.jobs(kind=kind, limit=1000)
        ]

    async def _compare(self) -> None:
        """Check that every job that slept is as it was, its id and callback included."""
        self.course.kept = {job.id: job for job in await self._sleepers()} == self.course.before
        if not self.course.kept:
            raise Failure("a job is not what it was before it moved")

    async def _enter(self) -> None:
        while True:
            if not (await self.client.admin.storage.status()).blockers["enter_mixed_transition"]:
                await self.client.admin.storage.enter_mixed_transition()
                return
            await self._look_at()

    async def produce(self) -> None:
        """Enqueue jobs all the time, as applications do."""
        while True:
            await self.client.insert(Order(self.course.produced))
            self.course.produced += 1
            await trio.sleep(PRODUCE_EVERY)

    async def watch(self) -> None:
        """See how things stand, and draw it."""
        course = self.course
        while True:
            beats = await self.client.admin.jobs(kind="heartbeat", limit=1000)
            course.heartbeats = {job.id: job.snoozes for job in beats}
            now = await self.client.admin.storage.status()
            canonical, queue = await self.client.admin.storage.planes()
            queued = sum(rows for table, rows in queue.items() if table != "done")
            course.state, course.canonical = now.state, canonical
            course.largest = max(course.largest, course.backlog)
            if course.flipped_at is not None and course.backlog == 0 and course.moved_in is None:
                course.moved_in = time.monotonic() - course.flipped_at
                self.view.say(f"the canonical plane is empty, {course.moved_in:.1f} s after the flip")
            most = max(course.largest, queued)
            self.view.draw(
                Scene(now.state, course.backlog, queued, most, sum(course.heartbeats.values()), course.produced)
            )
            self._looked.set()
            self._looked = trio.Event()
            await trio.sleep(LOOK_EVERY)

    async def _look_at(self) -> None:
        await self._looked.wait()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._look_at()


def demonstrate(shared: Shared) -> int:
    """Run the demo; the exit status is 0 only if the move converged."""
    logs.configure(shared.log_format, verbose=shared.verbose, level=logging.ERROR)
    course = Course(time.monotonic())
    # Hanging up is a way to end a demo, too.
    with signals(signal.SIGHUP) as stop, drain_view(silent=shared.json) as view:
        view.say("starting a private Postgres")
        with PrivatePostgres().running() as url:
            trio.run(_perform, url, view, stop, course)
        view.say("workers, leader and server are gone" if course.converged or course.problem else "stopped")
    seconds = time.monotonic() - course.began
    if shared.json:
        write_json(course.outcome(seconds))
    if course.problem is not None:
        raise Failure(f"the demo failed: {course.problem}", NO)
    if not course.converged:
        raise Failure("interrupted; nothing is left running", INTERRUPTED)
    if not shared.json:
        print(
            f"\nConverged: {course.largest} live jobs left the canonical plane in {course.moved_in or 0:.1f} s, "
            f"none was lost or changed, and all {HEARTBEATS} snoozers went on ({seconds:.1f} s in all)."
        )
    return OK


async def _perform(url: str, view: DrainView, stop: Stop, course: Course) -> None:
    stop.attach()
    with trio.move_on_after(TIME_LIMIT - (time.monotonic() - course.began)) as limit:
        await first(functools.partial(_play, url, view, course), functools.partial(stop.wait, 1))
    if limit.cancelled_caught:
        course.problem = f"not done after {TIME_LIMIT:.0f} s: {course.state}, {course.backlog} live canonical jobs"


async def _play(url: str, view: DrainView, course: Course) -> None:
    async with open_client(url, registry=registry, settings=DatabaseSettings(pool_size=4)) as client:
        await client.migrate(storage="canonical")
        await client.admin.storage.prepare()
        view.say("made an installation on the canonical plane, and prepared the move")
        old = WorkerSettings(storage="canonical")
        async with trio.open_nursery() as nursery:
            # The leader, too, is one that started before the move.
            lanes = MaintenanceSettings(promote_interval=0.2)
            await nursery.start(functools.partial(client.run_maintenance, settings=lanes, life=old))
            for settings in (old, WorkerSettings()):
                run = functools.partial(client.run_worker, QUEUE, maintenance=False, settings=settings)
                await nursery.start(run)
            view.say("started a leader, a worker that knows only the canonical plane, and one that serves both")
            drain = Drain(client, view, course)
            try:
                await _together(drain.play, drain.watch, drain.produce)
            except Failure as failure:
                course.problem = failure.message
            nursery.cancel_scope.cancel()


async def _together(play: Callable[[], Awaitable[None]], *others: Callable[[], Awaitable[None]]) -> None:
    """Run until the first has ended; the first failure ends all."""
    failures: list[Failure] = []
    async with trio.open_nursery() as nursery:

        async def run(part: Callable[[], Awaitable[None]]) -> None:
            try:
                await part()
            except Failure as failure:
                failures.append(failure)
            nursery.cancel_scope.cancel()

        for part in (play, *others):
            nursery.start_soon(run, part)
    if failures:
        raise failures[0]
