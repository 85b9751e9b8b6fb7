"""dlq: jobs that failed for good, kept apart until somebody decides about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import click

from awa_actors.cli.database import ask
from awa_actors.cli.failures import NO, OK
from awa_actors.cli.output import job_fields, last_error, shown, told_count, told_retried, write_json, write_table
from awa_actors.cli.placement import Shared, noun
from awa_actors.cli.queue import instant_of
from awa_actors.client import Client
from awa_actors.errors import JobNotFound, UniqueConflict

if TYPE_CHECKING:
    from awa_actors.store.dead_letters import DeadLetter

dlq = noun("dlq", "Dead letters: list, depth, show, retry, retry-bulk, move, purge.")


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which jobs are meant."""
    for option in (
        click.option("--tag", help="Only jobs with this tag."),
        click.option("--queue", help="Only jobs of this queue."),
        click.option("--kind", help="Only jobs of this kind."),
    ):
        command = option(command)
    return command


EVERYTHING = click.option("--all", "everything", is_flag=True, help="No filter: all of them are meant.")
TO_QUEUE = click.option("--to-queue", metavar="QUEUE", help="Run there instead of where they came from.")
PRIORITY = click.option("--priority", type=click.IntRange(1, 4), help="Run with this priority.")
RUN_AT = click.option("--run-at", metavar="INSTANT", help="Not before, for example 2030-01-31T08:00+01:00.")


@dlq.command("list")
@filters
@click.option("--before-at", metavar="INSTANT", help="The next page: time of the last letter of this one, and …")
@click.option("--before-id", type=click.IntRange(1), metavar="ID", help="… its id.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True)
@click.pass_obj
def list_(
    shared: Shared,
    kind: str | None,
    queue: str | None,
    tag: str | None,
    before_at: str | None,
    before_id: int | None,
    limit: int,
) -> int:
    """List dead letters, newest first."""
    if (before_at is None) != (before_id is None):
        raise click.UsageError("--before-at and --before-id go together: both are of the last letter of a page")
    before = None
    if before_at is not None and before_id is not None:
        before = (instant_of(before_at, "--before-at"), before_id)
    found = ask(
        shared,
        lambda client: client.admin.dead_letters.list(kind=kind, queue=queue, tag=tag, before=before, limit=limit),
    )
    if shared.json:
        write_json([_fields(one) for one in found])
    else:
        columns = ("id", "kind", "queue", "reason", "since", "attempt", "last error")
        write_table(columns, [_line(one) for one in found], "no dead letter")
    return OK


def _line(one: DeadLetter) -> tuple[Any, ...]:
    job = one.job
    return job.id, job.kind, job.queue, one.reason, one.at, f"{job.attempt}/{job.max_attempts}", last_error(job)


def _fields(one: DeadLetter) -> dict[str, Any]:
    return job_fields(one.job) | {"dlq_reason": one.reason, "dlq_at": one.at}


@dlq.command("depth")
@click.option("--queue", help="Only this queue.")
@click.pass_obj
def depth(shared: Shared, queue: str | None) -> int:
    """Count dead letters by queue."""
    found = ask(shared, lambda client: client.admin.dead_letters.depth(queue))
    if shared.json:
        write_json([attrs.asdict(one) for one in found])
    else:
        write_table(("queue", "letters", "oldest"), [attrs.astuple(one) for one in found], "no dead letter")
    return OK


@dlq.command("show")
@click.argument("job_id", metavar="ID", type=click.IntRange(1))
@click.pass_obj
def show(shared: Shared, job_id: int) -> int:
    """Show one dead letter with its errors."""
    fields = _fields(ask(shared, lambda client: client.admin.dead_letters.show(job_id)))
    if shared.json:
        write_json(fields)
        return OK
    for name, value in fields.items():
        if name not in ("errors", "past") and value not in (None, (), {}):
            print(f"{name:<13} {shown(value.hex() if isinstance(value, bytes) else value)}")
    for entry in fields["errors"]:
        print(f"\nattempt {entry.get('attempt', '?')} at {entry.get('at', '?')}:")
        for line in str(entry.get("error", entry)).splitlines():
            print(f"  {shown(line)}")
    return OK


@dlq.command("retry")
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=click.IntRange(1))
@TO_QUEUE
@PRIORITY
@RUN_AT
@click.pass_obj
def retry(shared: Shared, ids: tuple[int, ...], to_queue: str | None, priority: int | None, run_at: str | None) -> int:
    """Run dead letters again under their ids, attempts from 0. Exit status 1 when one could not be."""
    instant = None if run_at is None else instant_of(run_at, "--run-at")

    async def one(client: Client, job_id: int) -> dict[str, Any]:
        try:
            await client.admin.dead_letters.retry(job_id, queue=to_queue, priority=priority, run_at=instant)
        except (JobNotFound, UniqueConflict) as error:
            return {"id": job_id, "done": False, "reason": str(error)}
        return {"id": job_id, "done": True, "reason": None}

    async def each(client: Client) -> list[dict[str, Any]]:
        return [await one(client, job_id) for job_id in ids]

    results = ask(shared, each, writable=True)
    if shared.json:
        write_json(results)
    else:
        for result in results:
            print(
                f"job {result['id']}: " + ("retried" if result["done"] else f"not retried: {shown(result['reason'])}")
            )
    return OK if all(result["done"] for result in results) else NO


@dlq.command("retry-bulk")
@filters
@EVERYTHING
@TO_QUEUE
@PRIORITY
@RUN_AT
@click.pass_obj
def retry_bulk(shared: Shared, /, everything: bool, run_at: str | None, **options: Any) -> int:
    """Run all that match again; those whose unique key is taken stay. Exit status 1 when some did."""
    instant = None if run_at is None else instant_of(run_at, "--run-at")
    done = ask(
        shared,
        lambda client: client.admin.dead_letters.retry_bulk(all=everything, run_at=instant, **options),
        writable=True,
    )
    return told_retried(shared, done)


@dlq.command("move")
@click.argument("job_id", metavar="[ID]", required=False, type=click.IntRange(1))
@filters
@EVERYTHING
@click.pass_obj
def move(shared: Shared, /, job_id: int | None, everything: bool, **wanted: Any) -> int:
    """Make dead letters of failed jobs that are none, one or all that match."""
    count = ask(shared, lambda client: client.admin.dead_letters.move(job_id, all=everything, **wanted), writable=True)
    return told_count(shared, "moved", count)


@dlq.command("purge")
@filters
@EVERYTHING
@click.pass_obj
def purge(shared: Shared, /, everything: bool, **wanted: Any) -> int:
    """Delete dead letters for good, all that match."""
    count = ask(shared, lambda client: client.admin.dead_letters.purge(all=everything, **wanted), writable=True)
    return told_count(shared, "purged", count)
