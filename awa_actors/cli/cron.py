"""cron: the schedules that applications declared, their fires, and what an operator does about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

from awa_actors.cli.database import ask
from awa_actors.cli.failures import OK
from awa_actors.cli.output import shown, write_json, write_table
from awa_actors.cli.placement import Shared, noun
from awa_actors.cli.queue import login

if TYPE_CHECKING:
    from awa_actors.store.cron import CronSchedule

cron = noun("cron", "Schedules: list, pause, resume, trigger, remove.")


@cron.command("list")
@click.pass_obj
def list_(shared: Shared) -> int:
    """List schedules with their last and next fire, and what is wrong with them."""
    found = ask(shared, lambda client: client.admin.cron_list())
    if shared.json:
        write_json([attrs.asdict(one) for one in found])
        return OK
    columns = ("name", "expression", "timezone", "kind", "queue", "application", "last fire", "next fire", "remarks")
    rows = [
        (
            one.name,
            one.expression,
            one.timezone,
            one.kind,
            one.queue,
            one.application,
            one.last_fire,
            one.next_fire,
            _remarks(one),
        )
        for one in found
    ]
    write_table(columns, rows, "no application has declared a schedule")
    return OK


def _remarks(one: CronSchedule) -> str | None:
    said = []
    if one.paused_at is not None:
        said.append("paused" + (f" by {one.paused_by}" if one.paused_by else ""))
    if one.stale:
        said.append(f"no leader declares it since {shown(one.declared_at)}")
    if one.last_error is not None:
        said.append(one.last_error)
    counts = {"skipped": one.skipped, "key taken": one.taken, "refused": one.refused}
    said += [f"{count} {what}" for what, count in counts.items() if count]
    return "; ".join(said) or None


@cron.command("pause")
@click.argument("name")
@click.option("--by", help="Who pauses it; otherwise the user's login name.")
@click.pass_obj
def pause(shared: Shared, name: str, by: str | None) -> int:
    """Stop the fires of a schedule; on resuming, its missed-fire policy decides about those that came due meanwhile."""
    who = by or login()
    ask(shared, lambda client: client.admin.cron_pause(name, by=who), writable=True)
    if shared.json:
        write_json({"name": name, "paused": True, "paused_by": who})
    else:
        print(f"schedule {shown(name)} is paused")
    return OK


@cron.command("resume")
@click.argument("name")
@click.pass_obj
def resume(shared: Shared, name: str) -> int:
    """Undo a pause; fine when the schedule was not paused."""
    was_paused = ask(shared, lambda client: client.admin.cron_resume(name), writable=True)
    if shared.json:
        write_json({"name": name, "paused": False, "was_paused": was_paused})
    else:
        print(f"schedule {shown(name)} " + ("is resumed" if was_paused else "was not paused"))
    return OK


@cron.command("trigger")
@click.argument("name")
@click.pass_obj
def trigger(shared: Shared, name: str) -> int:
    """Enqueue the job of a schedule now, paused or not, beside its fires."""
    job = ask(shared, lambda client: client.admin.cron_trigger(name), writable=True)
    if shared.json:
        write_json(attrs.asdict(job))
    elif job.inserted:
        print(f"job {job.id}: {shown(job.kind)} on queue {shown(job.queue)}")
    else:
        print(f"job {job.id} holds the unique key: nothing was enqueued")
    return OK


@cron.command("remove")
@click.argument("name")
@click.pass_obj
def remove(shared: Shared, name: str) -> int:
    """Forget a schedule that no code declares any more; one that is still declared comes back, so pause that."""
    ask(shared, lambda client: client.admin.cron_remove(name), writable=True)
    if shared.json:
        write_json({"name": name, "removed": True})
    else:
        print(f"schedule {shown(name)} is removed")
    return OK
