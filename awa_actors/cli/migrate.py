"""migrate: bring the schema up to date, tell whether it is, or print what would be run."""

from __future__ import annotations

import click

from awa_actors.cli.database import ask
from awa_actors.cli.failures import NO, OK
from awa_actors.cli.output import write_json
from awa_actors.cli.placement import Command, Shared
from awa_actors.client import Client
from awa_actors.core.health import schema_reason


@click.command("migrate", cls=Command)
@click.option("--sql", is_flag=True, help="Print the statements for psql; no database is needed.")
@click.option("--to", type=click.IntRange(0), metavar="N", help="Stop at this version.")
@click.option("--check", is_flag=True, help="Change nothing; exit status 1 when the schema is not this release's.")
@click.option(
    "--storage",
    type=click.Choice(["canonical"]),
    hidden=True,
    help="Begin a fresh database on the canonical plane, to rehearse a storage transition.",
)
@click.pass_obj
def migrate(shared: Shared, sql: bool, to: int | None, check: bool, storage: str | None) -> int:
    """Bring the database's schema up to this release. Safe to run twice, and by several at once."""
    if check and (sql or to is not None or storage):
        raise click.UsageError("--check changes nothing: it goes with neither --sql nor --to nor --storage")
    if storage and (sql or to is not None):
        raise click.UsageError("--storage says where a whole schema begins: it goes with neither --sql nor --to")
    if sql:
        return _print_sql(to)
    return _check(shared) if check else _migrate(shared, to, storage)


def _print_sql(to: int | None) -> int:
    from awa_actors.store.migrate import export_sql

    print(export_sql(to), end="")
    return OK


def _check(shared: Shared) -> int:
    found, expected = ask(shared, lambda client: client.admin.schema())
    if shared.json:
        write_json({"version": found, "expected": expected, "current": found == expected})
    elif found == expected:
        print(f"the schema is at version {found}, as this release needs it")
    else:
        print(schema_reason(found, expected))
    return OK if found == expected else NO


def _migrate(shared: Shared, to: int | None, storage: str | None) -> int:
    async def steps(client: Client) -> tuple[list[tuple[int, str]], tuple[int, int]]:
        applied = await client.migrate(to, storage=storage)
        return [(step.version, step.name) for step in applied], await client.admin.schema()

    applied, (version, expected) = ask(shared, steps, writable=True)
    if shared.json:
        names = [{"version": number, "name": name} for number, name in applied]
        write_json({"version": version, "expected": expected, "applied": names})
        return OK
    for number, name in applied:
        print(f"applied {number:04} {name}")
    print(f"the schema is at version {version}" + ("" if applied else "; there was nothing to do"))
    if storage:
        print(f"jobs are stored in the {storage} plane")
    return OK
