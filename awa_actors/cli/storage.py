"""storage: the move from the canonical plane to the queue plane, step by step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click
import orjson
import trio

from awa_actors.cli.database import ask
from awa_actors.cli.failures import NO, OK, STOPPED, Failure
from awa_actors.cli.output import shown, write_json, write_table
from awa_actors.cli.placement import Shared, noun
from awa_actors.cli.storage_progress import left, progress
from awa_actors.client import Client
from awa_actors.core.transition import Drain, Transition, read_duration

storage = noun("storage", "Move to the queue plane: status, prepare, enter-mixed-transition, finalize, abort, mover.")


def _step(shared: Shared, step: Callable[[Client], Awaitable[Transition]], done: str) -> int:
    now = ask(shared, step, writable=True)
    if shared.json:
        write_json(now.as_json())
    else:
        print(done.format(now=now))
    return OK


@storage.command("status")
@click.pass_obj
def status(shared: Shared) -> int:
    """Tell how far the move is, what is left on the canonical plane, and what each step waits for."""
    now, drain = ask(shared, lambda client: client.admin.storage.status_with_rate())
    _tell(shared, now, drain)
    return OK


def _tell(shared: Shared, now: Transition, drain: Drain | None = None) -> None:
    if shared.json:
        rate = {} if drain is None else {"backlog_rate": drain.rate, "seconds_left": drain.seconds_left}
        write_json(now.as_json() | rate)
        return
    mover = "paused" if now.mover.paused else "running" if now.state == "mixed_transition" else "not needed"
    if now.mover.rows_per_second is not None:
        mover += f", at most {now.mover.rows_per_second:g} rows/s"
    rows: list[tuple[str, Any]] = [
        ("state", now.state),
        (
            "engine",
            now.active_engine if now.prepared_engine is None else f"{now.current_engine} → {now.prepared_engine}",
        ),
        ("schema of the queue plane", now.schema),
        ("since", now.entered_at),
        ("finalized", now.finalized_at),
        ("canonical plane", left(now, drain or Drain())),
        *((f"canonical {name}", count) for name, count in now.backlog.items()),
        ("mover", mover),
        *((f"processes: {name}", count) for name, count in now.capabilities.items()),
        *((step.replace("_", " ") + " waits", reason) for step, reasons in now.blockers.items() for reason in reasons),
    ]
    write_table(("storage", "value"), [row for row in rows if row[1] is not None], "")


@storage.command("prepare")
@click.option("--engine", default="queue_storage", show_default=True, help="The engine to move to.")
@click.option("--details", metavar="JSON", help="Kept with the state; an object.")
@click.pass_obj
def prepare(shared: Shared, engine: str, details: str | None) -> int:
    """Name the engine to move to. Nothing moves yet; the same again changes nothing."""
    try:
        read = orjson.loads(details or "{}")
    except ValueError:
        raise click.UsageError("--details: this is no JSON") from None
    if not isinstance(read, dict):
        raise click.UsageError("--details: give a JSON object, such as {}")
    return _step(
        shared,
        lambda client: client.admin.storage.prepare(engine, read),
        "{now.prepared_engine} is prepared; next: storage enter-mixed-transition",
    )


@storage.command("prepare-queue-storage-schema")
@click.option("--schema", default="awa_queue", show_default=True, help="Its name.")
@click.pass_obj
def prepare_queue_storage_schema(shared: Shared, schema: str) -> int:
    """Give the queue plane another schema, while it is empty and no process runs; it has one after 'migrate'."""
    made = ask(shared, lambda client: client.admin.storage.prepare_schema(schema), writable=True)
    if shared.json:
        write_json({"schema": schema, "changed": made})
    else:
        print(f"the queue plane {'is now' if made else 'was already'} in schema {schema}")
    return OK


@storage.command("enter-mixed-transition")
@click.pass_obj
def enter_mixed_transition(shared: Shared) -> int:
    """Send new jobs to the queue plane from now on, and let those of the canonical plane follow."""
    done = "new jobs go to the queue plane; next: storage finalize --wait ({now.canonical_live_backlog} jobs to follow)"
    return _step(shared, lambda client: client.admin.storage.enter_mixed_transition(), done)


@storage.command("finalize")
@click.option("--check", is_flag=True, help="Change nothing; exit status 1 when something is in the way.")
@click.option(
    "--wait", is_flag=False, flag_value="", metavar="[=DURATION]",
    help="Wait until nothing is in the way; with a cap such as 90s, 2h or 1h30m exit status 75 when it is reached.",
)  # fmt: skip
@click.pass_obj
def finalize(shared: Shared, check: bool, wait: str | None) -> int:
    """Give up the canonical plane, which must be empty. This is final."""
    if check and wait is not None:
        raise click.UsageError("--check changes nothing: it does not go with --wait")
    if wait is not None:
        return _wait(shared, wait)
    if not check:
        return _step(shared, lambda client: client.admin.storage.finalize(), "the queue plane is active, for good")
    now = ask(shared, lambda client: client.admin.storage.status())
    blockers = now.blockers["finalize"]
    if shared.json:
        _tell(shared, now)
    else:
        print("nothing is in the way" if not blockers else "blocked: " + shown("; ".join(blockers)))
    return NO if blockers else OK


def _wait(shared: Shared, text: str) -> int:
    cap = read_duration(text) if text else float("inf")
    if cap is None:
        raise click.UsageError(f"--wait: {text!r} is no length of time such as 90s, 2h, 1h30m or 500ms")
    seen: list[Transition] = []

    async def wait(client: Client) -> Transition | None:
        with progress(silent=shared.json) as show, trio.move_on_after(cap):

            def watch(now: Transition | None, drain: Drain, trouble: str | None) -> None:
                seen[:] = [now] if now is not None else seen
                show.saw(now, drain, trouble)

            return await client.admin.storage.finalize_when_ready(watch)
        if not seen:  # so short a cap that there has been no look
            seen.append(await client.admin.storage.status())
        return None

    now = ask(shared, wait, writable=True)
    if now is None:
        why = "; ".join(seen[0].blockers["finalize"])
        raise Failure(f"not finalized within {text}: {why or 'it was ready only now; try again'}", STOPPED)
    if shared.json:
        write_json(now.as_json())
    else:
        print("the queue plane is active, for good")
    return OK


@storage.command("abort")
@click.pass_obj
def abort(shared: Shared) -> int:
    """Go back to the canonical plane, as long as that strands nothing; fine when nothing was prepared."""
    return _step(shared, lambda client: client.admin.storage.abort(), "the state is {now.state}")


mover = noun("mover", "What takes jobs over while the transition is mixed: pause, resume, throttle.")
storage.add_command(mover)


@mover.command("pause")
@click.pass_obj
def pause(shared: Shared) -> int:
    """Let the mover stand still; jobs then follow when they run."""
    return _step(shared, lambda client: client.admin.storage.pause_mover(), "the mover is paused")


@mover.command("resume")
@click.pass_obj
def resume(shared: Shared) -> int:
    """Let the mover go on; fine when it was not paused."""
    return _step(shared, lambda client: client.admin.storage.resume_mover(), "the mover goes on")


@mover.command("throttle")
@click.argument("rows_per_second", metavar="ROWS|off")
@click.pass_obj
def throttle(shared: Shared, rows_per_second: str) -> int:
    """Bound how many rows the mover takes per second; 'off' takes the bound away."""
    try:
        rate = None if rows_per_second == "off" else float(rows_per_second)
    except ValueError:
        raise click.UsageError(f"{rows_per_second!r} is no number of rows per second, and not 'off'") from None
    told = "the mover goes as fast as it can" if rate is None else f"the mover takes at most {rate:g} rows/s"
    return _step(shared, lambda client: client.admin.storage.throttle_mover(rate), told)
