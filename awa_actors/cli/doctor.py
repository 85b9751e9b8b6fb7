"""doctor: everything that is known to go wrong, each in one line that says what to do."""

from __future__ import annotations

import sys

import click

from awa_actors.cli.app import load_registry
from awa_actors.cli.database import ask
from awa_actors.cli.failures import NO, OK, UNREACHABLE, Failure
from awa_actors.cli.output import shown, write_json
from awa_actors.cli.placement import Command, Shared
from awa_actors.core.doctor import Finding, Status, has_problem

COLOURS = {Status.OK: "green", Status.WARNING: "yellow", Status.PROBLEM: "red", Status.SKIPPED: "bright_black"}


@click.command("doctor", cls=Command)
@click.option("--app", metavar="MODULE:REGISTRY", help="Also ask whether live workers know what this application has.")
@click.option("--pooler", is_flag=True, help="Processes here are meant to run behind a transaction pooler.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    metavar="SECONDS",
    help="How long something may wait, or a transaction stay open, before it is named (60).",
)
@click.pass_obj
def doctor(shared: Shared, app: str | None, pooler: bool, patience: float) -> int:
    """Check everything that is known to go wrong. Exit status 1 when there is a problem; warnings are none."""
    registry = None if app is None else load_registry(app)
    try:
        findings = ask(
            shared,
            lambda client: client.admin.doctor(patience=patience, pooler=pooler),
            registry=registry,
            # Whatever is wrong with the way to the server, it is to be found out.
            pooler=True,
        )
    except Failure as failure:
        if shared.json and failure.exit_code == UNREACHABLE:
            write_json({"status": "unreachable", "error": failure.message, "checks": []})
        raise
    if shared.json:
        write_json({"status": "problem" if has_problem(findings) else "ok", "checks": findings})
    else:
        _write(findings)
    return NO if has_problem(findings) else OK


def _write(findings: list[Finding]) -> None:
    width = max(len(one.check) for one in findings)
    for one in findings:
        status = one.status.value.ljust(7)
        if sys.stdout.isatty():
            status = click.style(status, fg=COLOURS[one.status])
        print(f"{status}  {one.check.ljust(width)}  {shown(one.line)}")
