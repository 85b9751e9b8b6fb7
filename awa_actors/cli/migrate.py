"""migrate: bring the schema up to date, tell whether it is, print what would be run; grants for least privilege."""

from __future__ import annotations

from collections.abc import Sequence

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
@click.option("--grants", is_flag=True, help="Print the grants of the documented roles; no database is needed.")
@click.option("--apply", "apply_grants", is_flag=True, help="With --grants and --role: grant, as the schema's owner.")
@click.option("--role", "roles", multiple=True, metavar="ROLE=NAME", help="With --grants: who gets which, repeatable.")
@click.option(
    "--storage",
    type=click.Choice(["canonical"]),
    hidden=True,
    help="Begin a fresh database on the canonical plane, to rehearse a storage transition.",
)
@click.pass_obj
def migrate(
    shared: Shared,
    sql: bool,
    to: int | None,
    check: bool,
    grants: bool,
    apply_grants: bool,
    roles: Sequence[str],
    storage: str | None,
) -> int:
    """Bring the database's schema up to this release. Safe to run twice, and by several at once."""
    if grants:
        if check or sql or to is not None or storage:
            raise click.UsageError("--grants leaves the schema as it is: it goes with none of --check, --sql and --to")
        return _grants(shared, roles, apply_grants)
    if roles or apply_grants:
        raise click.UsageError("--role ROLE=NAME and --apply go with --grants; a process is run without a verb")
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


def _grants(shared: Shared, given: Sequence[str], apply: bool) -> int:
    from awa_actors.store.grant_table import ROLES
    from awa_actors.store.grants import export_grants

    if apply and not given:
        raise click.UsageError(f"--apply needs --role ROLE=NAME, where ROLE is {', '.join(ROLES)} or owner")
    roles = [_role(text) for text in given] or [(role, f"awa_{role}") for role in ROLES]
    if not apply:
        print(export_grants(roles), end="")
        return OK
    ask(shared, lambda client: client.admin.grant(roles), writable=True)
    if shared.json:
        write_json({"granted": [{"role": role, "to": name} for role, name in roles]})
    else:
        print("granted: " + ", ".join(f"{role} to {name}" for role, name in roles))
    return OK


def _role(text: str) -> tuple[str, str]:
    role, equals, name = text.partition("=")
    if not (role and equals and name):
        raise click.UsageError(f"--role is written ROLE=NAME, for example producer=app_web, not {text!r}")
    return role, name


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
