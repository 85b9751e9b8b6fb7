"""The command tree: roles at the root, nouns and verbs below it."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

import awa_actors
from awa_actors.cli import batch, cron, demo, dlq, doctor, health, job, leader, migrate, queue, storage, tick
from awa_actors.cli.placement import ROLES, Command, Group, Root, Shared, excluded, noun
from awa_actors.cli.run_options import RunOption, options_for, run_options


class _RolesAndQuestions(Root):
    """The root, whose own options are those of a run."""

    def section_of(self, param: click.Parameter) -> str:
        """Name the section of the help that a parameter is shown in."""
        if not isinstance(param, RunOption):
            return super().section_of(param)
        title = "Run a process"
        return title if len(param.roles) == len(ROLES) else f"{title}, {' and '.join(sorted(param.roles))} only"


def _run(role: str, values: dict[str, Any]) -> int:
    options = options_for(role, values)
    # Imported here: the driver and its event loop are for those who run something.
    from awa_actors.cli.roles import run_role

    return run_role(click.get_current_context().ensure_object(Shared), role, options)


def _root(role: str | None, **values: Any) -> int:
    ctx = click.get_current_context()
    given = [
        param
        for param in ctx.command.params
        if isinstance(param, RunOption)
        and param.name != "role"
        and ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    ]
    verb = ctx.invoked_subcommand
    if verb is not None:
        if role is not None:
            raise click.UsageError(excluded(verb), ctx)
        if given:
            raise click.UsageError(f"{given[0].opts[0]} is for running a process (--role), not for '{verb}'", ctx)
        return 0
    if role is None:
        what = f"{given[0].opts[0]} is for running a process: add" if given else "nothing was asked: give a command, or"
        raise click.UsageError(f"{what} --role {'|'.join(ROLES)}", ctx)
    for param in given:
        if role not in param.roles:
            fitting = " or ".join(f"--role {name}" for name in ROLES if name in param.roles)
            raise click.UsageError(f"{param.opts[0]} goes with {fitting}, not with --role {role}", ctx)
    return _run(role, values)


root = _RolesAndQuestions(
    "awa-actors",
    callback=_root,
    params=[
        RunOption("--role", type=click.Choice(ROLES), help="Run a process until SIGTERM or SIGINT: drain, then end."),
        *run_options(),
    ],
    help="A job queue in your Postgres: run its processes with --role, or ask and tell it something with a command.",
    epilog="Exit status: 0 yes, 1 no or not ready, 2 usage, 69 database unreachable, 75 ended by force or by a cap.",
    invoke_without_command=True,
    no_args_is_help=False,
)


def _alias(name: str, verb: str, role: str) -> Group:
    """Make a hidden noun and verb that run a role."""
    group = noun(name, f"--role {role} in other words.", hidden=True)
    group.add_command(Command(verb, params=run_options(role), callback=lambda **values: _run(role, values)))
    return group


for command in (
    demo.demo,
    migrate.migrate,
    tick.tick,
    health.health,
    doctor.doctor,
    job.job,
    queue.queue,
    dlq.dlq,
    cron.cron,
    storage.storage,
    batch.batch,
    leader.leader,
    _alias("maintenance", "run", "maintenance"),
    _alias("callbacks", "serve", "callbacks"),
):
    root.add_command(command)
click.version_option(awa_actors.__version__, prog_name="awa-actors")(root)
