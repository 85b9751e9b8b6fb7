"""tick: a bounded share of maintenance, for schedulers and for deployments that scale to zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

from awa_actors.cli import run_options
from awa_actors.cli.database import ask
from awa_actors.cli.failures import NO, OK, STOPPED, Failure
from awa_actors.cli.output import write_json
from awa_actors.cli.placement import Command, Shared
from awa_actors.client import Client
from awa_actors.config import Budget
from awa_actors.core.health import schema_reason

if TYPE_CHECKING:
    from awa_actors.actors.tick import TickReport


@click.command("tick", cls=Command)
@click.option(
    "--seconds",
    type=float,
    callback=run_options.seconds(),
    default=20.0,
    show_default=True,
    help="Stop after this long.",
)
@click.option("--rows", type=click.IntRange(1), default=5_000, show_default=True, help="Stop after about so many rows.")
@click.pass_obj
def tick(shared: Shared, seconds: float, rows: int) -> int:
    """Do a bounded share of maintenance. Safe beside a leader. Exit status 75: more is left, run it again."""

    async def one(client: Client) -> TickReport:
        found, expected = await client.admin.schema()
        if found != expected:
            raise Failure(schema_reason(found, expected))
        return await client.tick(Budget(seconds, rows))

    report = ask(shared, one, writable=True)
    if shared.json:
        write_json(attrs.asdict(report))
    else:
        for step, count in report.done.items():
            more = "more to do" if step in report.remaining else ""
            note = f"failed: {report.errors[step]}" if step in report.errors else more
            print(f"{step:<10} {count:>7}  {note}".rstrip())
    if report.errors:
        return NO
    return STOPPED if report.remaining else OK
