"""demo: jobs of every sort on a private Postgres, with real processes, two of which are killed."""

from __future__ import annotations

import logging
import signal
import time
from typing import TYPE_CHECKING

import click
import trio

from awa_actors.cli import logs
from awa_actors.cli.demo_view import view
from awa_actors.cli.failures import INTERRUPTED, NO, OK, Failure
from awa_actors.cli.output import write_json
from awa_actors.cli.placement import Command, Shared
from awa_actors.cli.process import signals
from awa_actors.private_postgres import PrivatePostgres

if TYPE_CHECKING:
    from awa_actors.cli.demo_show import Show

NEXT = """
What to try next:
  awa-actors --embedded migrate                            a Postgres of your own, which stays
  awa-actors --embedded --role worker --app shop:registry  your jobs; the README shows a registry
  awa-actors --embedded health                             who leads, what waits
  awa-actors --help                                        all of it; with a database: --database-url or DATABASE_URL"""


@click.command("demo", cls=Command)
@click.option("--drain", is_flag=True, help="Watch an installation move to the queue plane instead.")
@click.pass_obj
def demo(shared: Shared, drain: bool) -> int:
    """Watch jobs of every sort at work. Needs no database, and leaves nothing behind."""
    if shared.names_a_database():
        raise click.UsageError("the demo brings a Postgres of its own: leave the database out")
    if drain:
        from awa_actors.cli.demo_drain import demonstrate

        return demonstrate(shared)
    # Imported here: no other command needs it, and each process of the demo starts with all commands.
    from awa_actors.cli.demo_performance import perform

    logs.configure(shared.log_format, verbose=shared.verbose, level=logging.ERROR)
    began = time.monotonic()
    # Hanging up is a way to end a demo, too.
    with signals(signal.SIGHUP) as stop, view(silent=shared.json) as spectators:
        spectators.say("starting a private Postgres")
        with PrivatePostgres().running() as url:
            show = trio.run(perform, url, spectators, stop, began)
        spectators.say("the processes and the server are gone" if show.finished or show.problem else "stopped")
    return _conclude(shared, show, time.monotonic() - began)


def _conclude(shared: Shared, show: Show, seconds: float) -> int:
    if shared.json:
        write_json(show.outcome(seconds))
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
