"""leader: who leads maintenance, and asking it to make room."""

from __future__ import annotations

import attrs
import click

from awa_actors.cli.database import ask
from awa_actors.cli.failures import NO, OK, Failure
from awa_actors.cli.output import seconds, write_json
from awa_actors.cli.placement import Shared, noun
from awa_actors.client import Client
from awa_actors.core.health import Leader, Process, schema_reason

leader = noun("leader", "Who leads maintenance: show, resign.")


@leader.command("show")
@click.pass_obj
def show(shared: Shared) -> int:
    """Say who leads; exit status 1 when nobody does."""

    async def look(client: Client) -> tuple[Leader | None, Process | None]:
        health = await client.admin.health()
        if health.deployment is None:
            raise Failure(schema_reason(health.schema_version, health.expected_version))
        leading = health.deployment.leader
        process = next((one for one in health.deployment.processes if leading and one.id == leading.instance), None)
        return leading, process

    leading, process = ask(shared, look)
    if shared.json:
        known = None if process is None else {"role": process.role, "hostname": process.hostname, "pid": process.pid}
        write_json(None if leading is None else attrs.asdict(leading) | {"process": known})
    elif leading is None:
        print("nobody leads")
    else:
        where = "" if process is None else f" ({process.role} {process.pid} on {process.hostname})"
        print(
            f"{leading.instance}{where} leads term {leading.term} since {seconds(leading.led_for)};"
            f" lease renewed {seconds(leading.lease_age)} ago, {seconds(leading.lease_left)} left"
        )
    return NO if leading is None else OK


@leader.command("resign")
@click.pass_obj
def resign(shared: Shared) -> int:
    """Ask the leader to give up its term and stand aside for one lease; exit status 1 when nobody leads."""
    term = ask(shared, lambda client: client.admin.request_resign(), writable=True)
    if shared.json:
        write_json({"term": term})
    else:
        print("nobody leads" if term is None else f"asked the leader of term {term} to resign")
    return NO if term is None else OK
