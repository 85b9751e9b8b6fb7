"""batch: change the queue or the priority of many waiting jobs, see it first, watch it, stop it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import click
import trio

from awa_actors.batch_admin import STATES, WAITING, BatchRequest
from awa_actors.cli.database import ask
from awa_actors.cli.failures import NO, OK
from awa_actors.cli.output import shown, write_json, write_table
from awa_actors.cli.placement import Shared, noun
from awa_actors.cli.queue import instant_of, login
from awa_actors.client import Client
from awa_actors.jobs import JobState

if TYPE_CHECKING:
    from awa_actors.store.batches import BatchOperation

batch = noun("batch", "Change queue or priority of many waiting jobs: preview, submit, list, show, cancel.")
LOOK = 0.5
"""Seconds between looks at an operation that is waited for."""


def request(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is to become of which jobs."""
    for option in (
        click.option("--all", "everything", is_flag=True, help="No filter: all that wait are meant."),
        click.option("--id", "ids", type=click.IntRange(1), multiple=True, help="Only this job; may be repeated."),
        click.option("--until", metavar="INSTANT", help="Only jobs inserted before then."),
        click.option("--since", metavar="INSTANT", help="Only jobs inserted then or later."),
        click.option("--state", type=click.Choice(sorted(one.value for one in WAITING)), help="Only in this state."),
        click.option("--tag", help="Only jobs with this tag."),
        click.option("--queue", help="Only jobs of this queue."),
        click.option("--kind", help="Only jobs of this kind."),
        click.option("--move-to", metavar="QUEUE", help="Move them to this queue, at the place that their age gives."),
        click.option("--set-priority", type=click.IntRange(1, 4), help="Give them this priority, 1 is most urgent."),
    ):
        command = option(command)
    return command


def _request(values: dict[str, Any]) -> BatchRequest:
    for name in ("since", "until"):
        values[name] = None if values[name] is None else instant_of(values[name], f"--{name}")
    values["state"] = None if values["state"] is None else JobState(values["state"])
    values["ids"] = values["ids"] or None
    return BatchRequest(all=values.pop("everything"), **values)


@batch.command("preview")
@request
@click.pass_obj
def preview(shared: Shared, /, **values: Any) -> int:
    """Count the jobs that an operation would touch now, and name some; nothing is changed."""
    wanted = _request(values)
    found = ask(shared, lambda client: client.admin.batches.preview(wanted))
    if shared.json:
        write_json(attrs.asdict(found))
    else:
        print(("" if found.is_exact else "at least ") + f"{found.matched} jobs would be changed")
        if found.sample:
            print(f"the first of them: {', '.join(map(str, found.sample))}")
    return OK


@batch.command("submit")
@request
@click.option("--by", help="Who asks; otherwise the user's login name.")
@click.option("--wait", is_flag=True, help="Wait for its end, showing how far it is; Ctrl-C leaves it running.")
@click.pass_obj
def submit(shared: Shared, /, by: str | None, wait: bool, **values: Any) -> int:
    """Store an operation for maintenance to do, in steps. With --wait, exit status 1 when not all could be changed."""
    wanted, who = _request(values), by or login()

    async def act(client: Client) -> BatchOperation:
        stored = await client.admin.batches.submit(wanted, by=who)
        return await _watched(shared, client, stored) if wait else stored

    done = ask(shared, act, writable=True)
    if shared.json:
        write_json(attrs.asdict(done))
    elif wait:
        _print(done)
    else:
        print(f"batch operation {done.id} is submitted; see how far it is: awa-actors batch show {done.id}")
    return NO if wait and (done.state != "completed" or done.errored) else OK


async def _watched(shared: Shared, client: Client, one: BatchOperation) -> BatchOperation:
    tell = not shared.json and sys.stderr.isatty()
    while not one.has_ended:
        await trio.sleep(LOOK)
        one = await client.admin.batches.show(one.id)
        if tell:
            print(f"\r{_progress(one):<40}", end="", file=sys.stderr, flush=True)
    if tell:
        print(file=sys.stderr)
    return one


def _progress(one: BatchOperation) -> str:
    return f"{one.share:.0%}, {one.processed} changed"


@batch.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only operations in this state.")
@click.option("--before", type=click.IntRange(1), metavar="ID", help="Only ids below this one: the next page.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.pass_obj
def list_(shared: Shared, /, **filters: Any) -> int:
    """List operations, newest first; ended ones stay for 30 days."""
    found = ask(shared, lambda client: client.admin.batches.list(**filters))
    if shared.json:
        write_json([attrs.asdict(one) for one in found])
    else:
        rows = [
            (one.id, _what(one), _which(one), one.state, _progress(one), one.skipped, one.errored, one.submitted_by)
            for one in found
        ]
        columns = ("id", "change", "jobs", "state", "progress", "skipped", "errored", "by")
        write_table(columns, rows, "no batch operation")
    return OK


def _what(one: BatchOperation) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(one.spec.items()))


def _which(one: BatchOperation) -> str:
    named = {name: f"{len(value)} of them" if name == "ids" else value for name, value in one.filter.items()}
    return ", ".join(f"{name} {value}" for name, value in named.items()) or "all"


@batch.command("show")
@click.argument("operation", metavar="ID", type=click.IntRange(1))
@click.pass_obj
def show(shared: Shared, operation: int) -> int:
    """Show one operation and how far it has come."""
    found = ask(shared, lambda client: client.admin.batches.show(operation))
    if shared.json:
        write_json(attrs.asdict(found))
    else:
        _print(found)
    return OK


def _print(one: BatchOperation) -> None:
    matched = None if one.total_matched is None else f"{'' if one.total_is_exact else 'at least '}{one.total_matched}"
    facts = {
        "operation": one.id,
        "change": _what(one),
        "jobs": _which(one),
        "state": one.state,
        "progress": f"{one.share:.0%}",
        "matched": matched,
        "changed": one.processed,
        "skipped": one.skipped,
        "errored": one.errored,
        "submitted": f"{shown(one.submitted_at)} by {one.submitted_by or 'nobody'}",
        "started": one.started_at,
        "ended": one.finalized_at,
        "last error": one.last_error,
    }
    for name, value in facts.items():
        if value is not None:
            print(f"{name:<10} {shown(value)}")
    for job_id, reason in one.refused.items():
        print(f"job {job_id}: {shown(reason)}")


@batch.command("cancel")
@click.argument("operation", metavar="ID", type=click.IntRange(1))
@click.pass_obj
def cancel(shared: Shared, operation: int) -> int:
    """Stop an operation: what was changed stays, nothing more is. Exit status 1 when it had ended already."""
    stopped = ask(shared, lambda client: client.admin.batches.cancel(operation), writable=True)
    if shared.json:
        write_json(None if stopped is None else attrs.asdict(stopped))
    elif stopped is None:
        print(f"batch operation {operation} had ended already")
    else:
        print(f"batch operation {operation} is cancelled; it has changed {stopped.processed} jobs")
    return NO if stopped is None else OK
