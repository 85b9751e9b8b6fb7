"""demo: jobs of every sort on a private Postgres, with real processes, two of which are killed."""

from __future__ import annotations

import functools
import logging
import signal
import time

import click
import trio

from awa_actors.cli import logs
from awa_actors.cli.demo_app import registry
from awa_actors.cli.demo_leadership import nominal_time
from awa_actors.cli.demo_processes import open_processes
from awa_actors.cli.demo_show import Show, Stage
from awa_actors.cli.demo_view import View, view
from awa_actors.cli.failures import INTERRUPTED, NO, OK, Failure
from awa_actors.cli.output import write_json
from awa_actors.cli.placement import Command, Shared
from awa_actors.cli.process import Stop, first, signals
from awa_actors.client import open_client
from awa_actors.config import DatabaseSettings
from awa_actors.private_postgres import PrivatePostgres

TIME_LIMIT = 25.0
"""Seconds from the beginning to the end of the show, so that with its cleaning up it stays under thirty."""
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


def outcome(show: Show, seconds: float) -> dict[str, object]:
    """Give what became of everything, for --json."""
    jobs = [
        {"id": track.row.id, "kind": track.row.kind, "shows": track.title, "state": track.row.state,
         "as_expected": track.as_expected, "story": track.story}
        for track in show.tracks.values()
    ]  # fmt: skip
    fires = [{"time": nominal_time(row), "id": row.id, "state": row.state} for row in show.fires.jobs.values()]
    change = show.takeover
    return {
        "ok": show.finished and show.problem is None,
        "problem": show.problem,
        "seconds": round(seconds, 1),
        "jobs": jobs,
        "schedule": {"name": show.fires.name, "fires": fires, "as_expected": show.fires.as_expected},
        "takeover": {
            "killed": change.leader, "term": change.term, "successor": change.successor, "new_term": change.new_term,
            "seconds": change.seconds, "as_expected": change.as_expected,
        },
    }  # fmt: skip


def _conclude(shared: Shared, show: Show, seconds: float) -> int:
    if shared.json:
        write_json(outcome(show, seconds))
    if show.problem is not None:
        click.echo(show.log, err=True)
        raise Failure(f"the demo failed: {show.problem}", NO)
    if not show.finished:
        raise Failure("interrupted; nothing is left running", INTERRUPTED)
    if not shared.json:
        parts = ", ".join(f"{name} {length:.1f} s" for name, length in show.took.items())
        what = f"{len(show.tracks)} jobs, {len(show.fires.jobs)} fires and the change of leader"
        print(f"\nAll {what} went as they should, in {seconds:.1f} s ({parts}).{NEXT}")
    return OK


async def _perform(url: str, spectators: View, stop: Stop, seconds: float) -> Show:
    stop.attach()
    show = Show()
    with trio.move_on_after(seconds) as limit:
        await first(functools.partial(_play, url, spectators, show), functools.partial(stop.wait, 1))
    if limit.cancelled_caught:
        show.problem = f"not done after {TIME_LIMIT:.0f} s: {show.left()}"
    return show


async def _play(url: str, spectators: View, show: Show) -> None:
    async with open_client(url, registry=registry, settings=DatabaseSettings(pool_size=3)) as client:
        began = time.monotonic()
        steps = await client.migrate()
        spectators.say(f"migrated it to schema version {steps[-1].version}")
        show.took["migration"] = time.monotonic() - began
        async with open_processes(url) as processes:
            try:
                began = time.monotonic()
                spectators.say("starting one maintenance process and two workers")
                stage = Stage(client, processes, spectators, show)
                await stage.until_up()
                show.took["processes"], began = time.monotonic() - began, time.monotonic()
                await stage.enqueue()
                await stage.perform()
                show.took["jobs"] = time.monotonic() - began
            except Failure as failure:
                show.problem = failure.message
            finally:
                show.log = processes.last_words()
