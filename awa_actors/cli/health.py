"""health: is this deployment ready, who leads, what do its lanes, processes and queues do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import click

from awa_actors.cli.database import ask
from awa_actors.cli.failures import NO, OK, UNREACHABLE, Failure
from awa_actors.cli.output import seconds, shown, write_json, write_table
from awa_actors.cli.placement import Command, Shared
from awa_actors.core.health import Deployment, Health, Lane, Process, QueueNumbers


@click.command("health", cls=Command)
@click.pass_obj
def health(shared: Shared) -> int:
    """Look at the whole deployment. Exit status 1 when it is not ready, with the reasons."""
    try:
        found = ask(shared, lambda client: client.admin.health())
    except Failure as failure:
        if shared.json and failure.exit_code == UNREACHABLE:
            unknown = dict.fromkeys(("schema", "leader", "lanes", "processes", "queues"))
            gone = {"reachable": False, "error": failure.message}
            write_json({"ready": False, "reasons": [failure.message], "warnings": [], "database": gone, **unknown})
        raise
    if shared.json:
        write_json(found.as_json())
    else:
        _write(found)
    return NO if found.reasons else OK


def _write(found: Health) -> None:
    server = found.server
    print("ready" if not found.reasons else "NOT READY")
    for reason in found.reasons:
        print(f"  {shown(reason)}")
    for warning in found.warnings:
        print(f"  warning: {shown(warning)}")
    print(
        f"database  Postgres {server.version}, {server.sessions} sessions of ours,"
        f" {server.all_sessions} of {server.max_connections} in all"
    )
    print(f"schema    version {found.schema_version}, this release needs {found.expected_version}")
    if found.deployment is not None:
        _write_deployment(found.deployment)


def _write_deployment(deployment: Deployment) -> None:
    leader = deployment.leader
    if leader is None:
        print("leader    nobody")
    else:
        print(
            f"leader    {leader.instance}, term {leader.term} for {seconds(leader.led_for)},"
            f" lease renewed {seconds(leader.lease_age)} ago, {seconds(leader.lease_left)} left"
        )
    print()
    write_table(
        ("process", "pid", "host", "version", "state", "beat", "queues", "claimed", "completed", "failed"),
        [_process(one) for one in deployment.processes],
        "no process is registered",
    )
    if deployment.lanes:
        print()
        write_table(("lane", "healthy", "last success", "last error", "blocked"), _rows(deployment.lanes), "")
    if deployment.queues:
        print()
        columns = tuple(
            name.removesuffix("_external").replace("_", " ")
            for name in (field.name for field in attrs.fields(QueueNumbers))
        )
        write_table(columns, _rows(deployment.queues), "")


def _process(one: Process) -> tuple[Any, ...]:
    state = one.state if one.alive else "silent"
    totals = tuple(one.totals.get(name, 0) for name in ("claimed", "completed", "failed"))
    return one.role, one.pid, one.hostname, one.version, state, one.beat_age, one.queues, *totals


def _rows(values: Sequence[Lane | QueueNumbers]) -> list[tuple[Any, ...]]:
    return [attrs.astuple(value) for value in values]
