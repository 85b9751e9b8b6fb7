"""demo: jobs of every sort on a private Postgres, with real processes, one of which is killed."""

from __future__ import annotations

import functools
import logging
import signal
import time

import attrs
import click
import trio

from awa_actors.cli import logs
from awa_actors.cli.demo_plan import STEPS, Step, Track
from awa_actors.cli.demo_processes import Processes, open_processes
from awa_actors.cli.demo_view import View, view
from awa_actors.cli.failures import INTERRUPTED, NO, OK, Failure
from awa_actors.cli.output import write_json
from awa_actors.cli.placement import Command, Shared
from awa_actors.cli.process import Stop, first, signals
from awa_actors.client import Client, open_client
from awa_actors.config import DatabaseSettings
from awa_actors.jobs import JobState
from awa_actors.private_postgres import PrivatePostgres

TIME_LIMIT = 25.0
"""Seconds from the beginning to the end of the show, so that with its cleaning up it stays under thirty."""
LOOK_EVERY = 0.08
"""Seconds between looks: handlers take several of these, so that no state goes by unseen."""
KILL_AFTER = 0.5
"""Seconds that the long job runs before its worker is killed."""
NEXT = """
What to try next:
  awa-actors --embedded migrate                            a Postgres of your own, which stays
  awa-actors --embedded --role worker --app shop:registry  your jobs; the README shows a registry
  awa-actors --embedded health                             who leads, what waits
  awa-actors --help                                        all of it; with a database: --database-url or DATABASE_URL"""


@click.command("demo", cls=Command)
@click.pass_obj
def demo(shared: Shared) -> int:
    """Watch jobs of every sort at work. Needs no database, and leaves nothing behind."""
    if shared.names_a_database():
        raise click.UsageError("the demo brings a Postgres of its own: leave the database out")
    logs.configure(shared.log_format, verbose=shared.verbose, level=logging.ERROR)
    began = time.monotonic()
    # Hanging up is a way to end a demo, too.
    with signals(signal.SIGHUP) as stop, view(silent=shared.json) as spectators:
        spectators.say("starting a private Postgres")
        with PrivatePostgres().running() as url:
            show = trio.run(_perform, url, spectators, stop, TIME_LIMIT - (time.monotonic() - began))
        spectators.say("the processes and the server are gone" if show.finished or show.problem else "stopped")
    return _conclude(shared, show, time.monotonic() - began)


@attrs.define
class _Show:
    """How far the demo has come."""

    tracks: dict[int, Track] = attrs.field(factory=dict)
    took: dict[str, float] = attrs.field(factory=dict)
    problem: str | None = None
    log: str = ""
    kill_at: float | None = None
    killed: bool = False

    @property
    def finished(self) -> bool:
        """Whether every job and every follow-up is where it should be."""
        notes = sum(track.step is None for track in self.tracks.values())
        planned = [track for track in self.tracks.values() if track.step is not None]
        return (
            len(planned) == len(STEPS)
            and notes == sum(step.follow_ups for step in STEPS)
            and all(track.as_expected for track in self.tracks.values())
        )


def _conclude(shared: Shared, show: _Show, seconds: float) -> int:
    if shared.json:
        write_json(
            {
                "ok": show.finished and show.problem is None,
                "problem": show.problem,
                "seconds": round(seconds, 1),
                "jobs": [
                    {"id": track.row.id, "kind": track.row.kind, "shows": track.title, "state": track.row.state,
                     "as_expected": track.as_expected, "story": track.story}
                    for track in show.tracks.values()
                ],
            }
        )  # fmt: skip
    if show.problem is not None:
        click.echo(show.log, err=True)
        raise Failure(f"the demo failed: {show.problem}", NO)
    if not show.finished:
        raise Failure("interrupted; nothing is left running", INTERRUPTED)
    if not shared.json:
        parts = ", ".join(f"{name} {length:.1f} s" for name, length in show.took.items())
        print(f"\nAll {len(show.tracks)} jobs went as they should, in {seconds:.1f} s ({parts}).{NEXT}")
    return OK


async def _perform(url: str, spectators: View, stop: Stop, seconds: float) -> _Show:
    stop.attach()
    show = _Show()
    with trio.move_on_after(seconds) as limit:
        await first(functools.partial(_play, url, spectators, show), functools.partial(stop.wait, 1))
    if limit.cancelled_caught:
        left = [f"{track.row.kind} {track.row.id} is {track.row.state.value}" for track in show.tracks.values()
                if not track.as_expected]  # fmt: skip
        show.problem = f"not done after {TIME_LIMIT:.0f} s: {', '.join(left) or 'follow-ups are missing'}"
    return show


async def _play(url: str, spectators: View, show: _Show) -> None:
    async with open_client(url, settings=DatabaseSettings(pool_size=2)) as client:
        began = time.monotonic()
        steps = await client.migrate()
        spectators.say(f"migrated it to schema version {steps[-1].version}")
        show.took["migration"] = time.monotonic() - began
        async with open_processes(url) as processes:
            try:
                began = time.monotonic()
                spectators.say("starting one maintenance process and two workers")
                await _until_up(client, processes)
                show.took["processes"], began = time.monotonic() - began, time.monotonic()
                await _enqueue(client, processes, spectators, show)
                while not show.finished:
                    await _look(client, processes, spectators, show)
                    await trio.sleep(LOOK_EVERY)
                show.took["jobs"] = time.monotonic() - began
            except Failure as failure:
                show.problem = failure.message
            finally:
                show.log = processes.last_words()


async def _until_up(client: Client, processes: Processes) -> None:
    """Wait until somebody leads and every process has registered."""
    while True:
        _check_alive(processes, allowed=0)
        lease, instances = await client.admin.leader(), await client.admin.instances()
        if lease is not None and not lease.is_free and len(instances) == len(processes.running):
            return
        await trio.sleep(LOOK_EVERY)


def _check_alive(processes: Processes, allowed: int) -> None:
    ended = processes.ended()
    if len(ended) > allowed:
        raise Failure(f"{' and '.join(ended)} ended unasked")


async def _enqueue(client: Client, processes: Processes, spectators: View, show: _Show) -> None:
    spectators.say(f"enqueuing {len(STEPS)} jobs")
    workers = await _workers(client, processes)
    for step in STEPS:
        job = await client.insert(step.args, step.opts)
        track = show.tracks[job.id] = Track(step, await client.admin.job(job.id))
        spectators.moved(track, track.began(workers))
        if step.twice:
            again = await client.insert(step.args, step.opts)
            if again.inserted or again.id != job.id:
                raise Failure(f"the unique job {job.id} was inserted again as {again.id}")
            track.story.append(f"again: still job {again.id}")


async def _look(client: Client, processes: Processes, spectators: View, show: _Show) -> None:
    """Take in how things stand, tell it, and kill the worker of the long job when it is in the middle of it."""
    _check_alive(processes, allowed=int(show.killed))
    workers = await _workers(client, processes)
    for row in reversed(await client.admin.jobs(limit=1000)):
        if row.id not in show.tracks:
            track = show.tracks[row.id] = Track(None, row)
            spectators.moved(track, track.began(workers))
        track = show.tracks[row.id]
        if (happened := track.saw(row, workers)) is not None:
            spectators.moved(track, happened)
        if track.step is not None and track.step.kill and row.state is JobState.RUNNING and not show.killed:
            show.kill_at = show.kill_at or trio.current_time() + KILL_AFTER
            if trio.current_time() >= show.kill_at:
                await _kill(workers[row.instance or ""], processes, spectators, track.step)
                show.killed = True
    spectators.draw(list(show.tracks.values()))


async def _workers(client: Client, processes: Processes) -> dict[str, str]:
    """Name the processes by the instances that they have registered."""
    return {one.id: processes.name_of(one.pid) for one in await client.admin.instances()}


async def _kill(name: str, processes: Processes, spectators: View, step: Step) -> None:
    spectators.say(f"killing {name} (SIGKILL) in the middle of {type(step.args).__name__}")
    processes.running[name].kill()
    await processes.running[name].wait()
