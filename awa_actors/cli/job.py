"""job: look at jobs, cancel them, run them again, throw failed ones away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click
import orjson

from awa_actors.cli.app import load_registry
from awa_actors.cli.database import ask
from awa_actors.cli.failures import NO, OK
from awa_actors.cli.output import (
    job_fields,
    last_error,
    shown,
    told_count,
    told_retried,
    write_json,
    write_table,
)
from awa_actors.cli.placement import Shared, noun
from awa_actors.cli.queue import instant_of
from awa_actors.client import Client
from awa_actors.core.history import timeline
from awa_actors.errors import FollowUpError, JobNotFound, UniqueConflict
from awa_actors.jobs import JobRow, JobState
from awa_actors.registry import Registry

job = noun("job", "Jobs: list, show, dump, dump-run, cancel, cancel-by-key, retry, retry-failed, discard.")
IDS = click.argument("ids", metavar="ID...", nargs=-1, required=True, type=click.IntRange(1))


@job.command("list")
@click.option("--state", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state.")
@click.option("--kind", help="Only jobs of this kind.")
@click.option("--queue", help="Only jobs of this queue.")
@click.option("--tag", help="Only jobs with this tag.")
@click.option("--since", metavar="INSTANT", help="Only jobs inserted then or later.")
@click.option("--until", metavar="INSTANT", help="Only jobs inserted before then.")
@click.option("--before", type=click.IntRange(1), metavar="ID", help="Only ids below this one: the next page.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True)
@click.pass_obj
def list_(shared: Shared, /, state: str | None, since: str | None, until: str | None, **filters: Any) -> int:
    """List jobs, newest first."""
    wanted = None if state is None else JobState(state)
    filters["since"] = None if since is None else instant_of(since, "--since")
    filters["until"] = None if until is None else instant_of(until, "--until")
    jobs = ask(shared, lambda client: client.admin.jobs(state=wanted, **filters))
    if shared.json:
        write_json([job_fields(one) for one in jobs])
    else:
        write_table(
            ("id", "kind", "queue", "state", "attempt", "run at", "last error"),
            [_line(one) for one in jobs],
            "no such job",
        )
    return OK


def _line(one: JobRow) -> tuple[Any, ...]:
    attempt = f"{one.attempt}/{one.max_attempts}"
    return one.id, one.kind, one.queue, one.state, attempt, one.run_at, last_error(one)


@job.command("show")
@click.argument("job_id", metavar="ID", type=click.IntRange(1))
@click.pass_obj
def show(shared: Shared, job_id: int) -> int:
    """Show everything about one job and what happened to it, dead letters included."""
    found = ask(shared, lambda client: client.admin.job(job_id))
    if shared.json:
        write_json(job_fields(found))
        return OK
    for name, value in job_fields(found).items():
        if name not in ("errors", "past") and value not in (None, (), {}):
            print(f"{name:<13} {shown(value.hex() if isinstance(value, bytes) else value)}")
    print()
    for entry in timeline(found):
        by = f" by {entry['instance']}" if entry.get("instance") else ""
        why = f": {shown(entry['reason'])}" if entry.get("reason") else ""
        print(f"{shown(entry['at'])}  {shown(entry['what'])}{by}{why}")
    for error in found.errors:
        print(f"\nattempt {error.get('attempt', '?')} at {error.get('at', '?')}:")
        for line in str(error.get("error", error)).splitlines():
            print(f"  {shown(line)}")
    return OK


@job.command("cancel")
@IDS
@click.option("--reason", default="cancelled by an operator", show_default=True, help="Kept with the job.")
@click.option("--app", metavar="MODULE:REGISTRY", help="Whose follow-ups of a cancellation are enqueued with it.")
@click.option("--without-follow-ups", is_flag=True, help="Cancel although a follow-up is broken; none is enqueued.")
@click.pass_obj
def cancel(shared: Shared, ids: tuple[int, ...], reason: str, app: str | None, without_follow_ups: bool) -> int:
    """Cancel jobs that have not ended; running handlers are told at once. Exit status 1 when one could not be."""

    def change(client: Client, job_id: int) -> Awaitable[JobRow | None]:
        return client.admin.cancel(job_id, reason, without_follow_ups=without_follow_ups)

    return _each(shared, ids, "cancelled", change, None if app is None else load_registry(app))


@job.command("retry")
@IDS
@click.pass_obj
def retry(shared: Shared, ids: tuple[int, ...]) -> int:
    """Run failed, cancelled, dead or deferred jobs again now, attempts from 0. Exit status 1 when one could not be."""
    return _each(shared, ids, "retried", lambda client, job_id: client.admin.retry(job_id))


def _each(
    shared: Shared,
    ids: tuple[int, ...],
    done: str,
    change: Callable[[Client, int], Awaitable[JobRow | None]],
    registry: Registry | None = None,
) -> int:
    """Change one job after the other: one that cannot be changed keeps no other from it."""

    async def one(client: Client, job_id: int) -> dict[str, Any]:
        try:
            changed = await change(client, job_id)
            now = changed or await client.admin.job(job_id)
        except (FollowUpError, JobNotFound, UniqueConflict) as error:
            return {"id": job_id, "done": False, "state": None, "reason": str(error)}
        reason = None if changed else f"it is {now.state.value}"
        return {"id": job_id, "done": changed is not None, "state": now.state, "reason": reason}

    async def all_of_them(client: Client) -> list[dict[str, Any]]:
        return [await one(client, job_id) for job_id in ids]

    results = ask(shared, all_of_them, writable=True, registry=registry)
    if shared.json:
        write_json(results)
    else:
        for result in results:
            outcome = done if result["done"] else f"not {done}: {shown(result['reason'])}"
            print(f"job {result['id']}: {outcome}")
    return OK if all(result["done"] for result in results) else NO


@job.command("dump")
@click.argument("job_id", metavar="ID", type=click.IntRange(1))
@click.pass_obj
def dump(shared: Shared, job_id: int) -> int:
    """Write all that is known about a job as JSON: row, summary, timeline, attempts."""
    write_json(ask(shared, lambda client: client.admin.dump(job_id)))
    return OK


@job.command("dump-run")
@click.argument("job_id", metavar="ID", type=click.IntRange(1))
@click.option("--attempt", type=click.IntRange(0), help="Its number; otherwise the last one.")
@click.pass_obj
def dump_run(shared: Shared, job_id: int, attempt: int | None) -> int:
    """Write one attempt of a job as JSON."""
    write_json(ask(shared, lambda client: client.admin.dump_run(job_id, attempt)))
    return OK


@job.command("cancel-by-key")
@click.option("--kind", help="Derive the key of a job of this kind.")
@click.option("--queue", help="… with this queue in it.")
@click.option("--args", "args_text", metavar="JSON", help="… with these args in it.")
@click.option("--period", type=int, help="… with this time bucket in it.")
@click.option("--key", help="The explicit key instead.")
@click.option("--reason", default="cancelled by an operator", show_default=True, help="Kept with the job.")
@click.pass_obj
def cancel_by_key(shared: Shared, /, args_text: str | None, **options: Any) -> int:
    """Cancel the job that has a unique key and has not ended. Exit status 1 when there is none."""
    args = None if args_text is None else _json(args_text)
    row = ask(shared, lambda client: client.admin.cancel_by_key(args=args, **options), writable=True)
    if shared.json:
        write_json(None if row is None else job_fields(row))
    else:
        print("no job that has not ended has this key" if row is None else f"job {row.id}: cancelled")
    return NO if row is None else OK


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise click.UsageError(f"--args: {error}") from error


@job.command("retry-failed")
@click.option("--kind", help="Only jobs of this kind.")
@click.option("--queue", help="Only jobs of this queue.")
@click.pass_obj
def retry_failed(shared: Shared, kind: str | None, queue: str | None) -> int:
    """Run failed jobs of a kind or a queue again; those whose unique key is taken stay, and make the status 1."""
    done = ask(shared, lambda client: client.admin.retry_failed(kind=kind, queue=queue), writable=True)
    return told_retried(shared, done)


@job.command("discard")
@click.option("--kind", required=True, help="Whose failed jobs go.")
@click.pass_obj
def discard(shared: Shared, kind: str) -> int:
    """Delete the failed jobs of a kind for good, dead letters included."""
    return told_count(shared, "discarded", ask(shared, lambda client: client.admin.discard(kind), writable=True))
