"""queue: which there are, how full they are; pause, resume, drain and tune them."""

from __future__ import annotations

import datetime as dt
import getpass
import os
from typing import TYPE_CHECKING, Any

import attrs
import click

from awa_actors.cli.database import ask
from awa_actors.cli.failures import NO, OK
from awa_actors.cli.output import shown, write_json, write_table
from awa_actors.cli.placement import Shared, noun
from awa_actors.client import Client

if TYPE_CHECKING:
    from awa_actors.store.overrides import Overrides

queue = noun("queue", "Queues: list, stats, pause, resume, drain, overrides.")


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


@queue.command("drain")
@click.argument("name")
@click.option("--reason", default="the queue was drained", show_default=True, help="Kept with the jobs.")
@click.pass_obj
def drain(shared: Shared, name: str, reason: str) -> int:
    """Cancel everything that waits in a queue now; running jobs go on. Exit status 1 when something stays."""
    done = ask(shared, lambda client: client.admin.drain_queue(name, reason), writable=True)
    if shared.json:
        write_json({"cancelled": done.cancelled, "refused": {str(key): why for key, why in done.refused.items()}})
    else:
        print(f"{done.cancelled} cancelled" + (f", {len(done.refused)} left:" if done.refused else ""))
        for job_id, why in done.refused.items():
            print(f"job {job_id}: {shown(why)}")
    return NO if done.refused else OK


overrides = noun("overrides", "Tune the running workers of a queue: set, clear, show; they follow within ten seconds.")
queue.add_command(overrides)


@overrides.command("set")
@click.argument("name")
@click.option("--poll-interval", type=float, metavar="SECONDS", help="Between looks when nothing wakes a worker.")
@click.option("--claim-batch", type=int, metavar="N", help="Most jobs of one claim.")
@click.option("--rate-limit", type=float, metavar="N", help="Starts per second in each process.")
@click.option("--deadline", type=float, metavar="SECONDS", help="An attempt may run, unless its job says otherwise.")
@click.pass_obj
def set_(shared: Shared, /, name: str, **values: Any) -> int:
    """Replace all overrides of a queue; what is left out goes back to each worker's own setting."""
    if all(value is None for value in values.values()):
        raise click.UsageError("nothing is overridden: name a value, or use 'queue overrides clear'")
    return _told(shared, name, ask(shared, lambda client: client.admin.overrides.set(name, **values), writable=True))


@overrides.command("clear")
@click.argument("name")
@click.pass_obj
def clear(shared: Shared, name: str) -> int:
    """Take all overrides of a queue back; fine when there were none."""
    was = ask(shared, lambda client: client.admin.overrides.clear(name), writable=True)
    if shared.json:
        write_json({"queue": name, "was_overridden": was})
    else:
        print(f"queue {shown(name)} " + ("follows its workers' settings again" if was else "had no overrides"))
    return OK


@overrides.command("show")
@click.argument("name")
@click.pass_obj
def show_overrides(shared: Shared, name: str) -> int:
    """Show the overrides of a queue."""
    return _told(shared, name, ask(shared, lambda client: client.admin.overrides.show(name)))


def _told(shared: Shared, name: str, found: Overrides) -> int:
    values = attrs.asdict(found)
    if shared.json:
        write_json({"queue": name, **values})
    else:
        rows = [(key.replace("_", " "), value) for key, value in values.items() if value is not None]
        write_table(("override", "value"), rows, f"queue {shown(name)} has no overrides")
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
