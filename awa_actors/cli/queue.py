"""queue: which there are, how full they are, pause and resume."""

from __future__ import annotations

import datetime as dt
import getpass
import os
from typing import Any

import attrs
import click

from awa_actors.cli.database import ask
from awa_actors.cli.failures import OK
from awa_actors.cli.output import shown, write_json, write_table
from awa_actors.cli.placement import Shared, noun
from awa_actors.client import Client

queue = noun("queue", "Queues: list, stats, pause, resume.")


@queue.command("list")
@click.pass_obj
def list_(shared: Shared) -> int:
    """List queues that have settings or a live worker."""

    async def look(client: Client) -> list[dict[str, Any]]:
        settings = {one.queue: one for one in await client.admin.queue_settings()}
        serving = [one for one in await client.admin.instances() if one.alive]
        found = []
        for name in sorted({*settings, *(name for one in serving for name in one.queues)}):
            workers = [one.queues[name] for one in serving if name in one.queues]
            known = settings.get(name)
            found.append(
                {
                    "queue": name,
                    "paused": known is not None and known.paused,
                    "paused_by": None if known is None else known.paused_by,
                    "paused_until": None if known is None else known.paused_until,
                    "shards": 1 if known is None else known.shards,
                    "workers": len(workers),
                    "max_workers": sum(worker.get("max_workers", 0) for worker in workers),
                }
            )
        return found

    found = ask(shared, look)
    if shared.json:
        write_json(found)
    else:
        columns = ("queue", "paused", "paused by", "paused until", "shards", "workers", "max workers")
        write_table(columns, [tuple(one.values()) for one in found], "no queue has settings or a live worker")
    return OK


@queue.command("stats")
@click.pass_obj
def stats(shared: Shared) -> int:
    """Count jobs by queue and state, in one snapshot; `health` shows numbers that cost nothing."""
    found = [attrs.asdict(one) for one in ask(shared, lambda client: client.admin.queue_stats())]
    if shared.json:
        write_json(found)
    else:
        columns = tuple(name.replace("_external", "") for name in (found[0] if found else ()))
        write_table(columns, [tuple(one.values()) for one in found], "no queue has jobs")
    return OK


@queue.command("pause")
@click.argument("name")
@click.option("--by", help="Who pauses it; otherwise the user's login name.")
@click.option("--until", metavar="INSTANT", help="Resume by itself then, for example 2030-01-31T08:00+01:00.")
@click.pass_obj
def pause(shared: Shared, name: str, by: str | None, until: str | None) -> int:
    """Stop claims from a queue in every process; running jobs go on, producers notice nothing."""
    instant = None if until is None else instant_of(until, "--until")
    who = by or login()
    ask(shared, lambda client: client.admin.pause_queue(name, by=who, until=instant), writable=True)
    if shared.json:
        write_json({"queue": name, "paused": True, "paused_by": who, "paused_until": instant})
    else:
        print(f"queue {shown(name)} is paused" + ("" if instant is None else f" until {shown(instant)}"))
    return OK


@queue.command("resume")
@click.argument("name")
@click.pass_obj
def resume(shared: Shared, name: str) -> int:
    """Undo a pause and wake the workers; fine when the queue was not paused."""
    was_paused = ask(shared, lambda client: client.admin.resume_queue(name), writable=True)
    if shared.json:
        write_json({"queue": name, "paused": False, "was_paused": was_paused})
    else:
        print(f"queue {shown(name)} " + ("is resumed" if was_paused else "was not paused"))
    return OK


def instant_of(text: str, option: str) -> dt.datetime:
    """Read an instant that an option was given."""
    try:
        instant = dt.datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{option}: {text!r} is no instant such as 2030-01-31T08:00+01:00") from None
    if instant.tzinfo is None:
        raise click.UsageError(f"{option}: {text!r} says no time zone: add Z or an offset such as +01:00")
    return instant


def login() -> str:
    """Give the name of the user who runs this."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return f"uid {os.getuid()}"
