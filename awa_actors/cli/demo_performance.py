"""The demo from the migration to the end of its processes, within its time."""

from __future__ import annotations

import functools
import time

import trio

from awa_actors.cli.demo_app import registry
from awa_actors.cli.demo_processes import open_processes
from awa_actors.cli.demo_show import Show
from awa_actors.cli.demo_stage import Stage
from awa_actors.cli.demo_view import View
from awa_actors.cli.failures import Failure
from awa_actors.cli.process import Stop, first
from awa_actors.client import open_client
from awa_actors.config import DatabaseSettings

TIME_LIMIT = 25.0
"""Seconds from the beginning to the end of the show, so that with its cleaning up it stays under thirty."""


async def perform(url: str, spectators: View, stop: Stop, began: float) -> Show:
    """Perform on an empty database, until all was shown, something went wrong, or somebody asked for the end.

    Args:
        url: of the database.
        spectators: are told.
        stop: tells of signals.
        began: when the demo was started, in monotonic seconds.
    """
    stop.attach()
    show = Show()
    with trio.move_on_after(TIME_LIMIT - (time.monotonic() - began)) as limit:
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
