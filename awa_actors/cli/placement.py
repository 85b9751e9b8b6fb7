"""Options that stand on either side of a verb: `awa-actors --json health` is `awa-actors health --json`.

Every command takes the shared options; wherever they stand, they end up in the one :class:`Shared` that a command gets.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import click
from click.core import ParameterSource

from awa_actors.cli import failures, logs

ROLES = ("worker", "maintenance", "callbacks")


@attrs.define
class Shared:
    """What the shared options say.

    Args:
        database_url: of the database; None leaves it to the environment.
        embedded: use a private server instead.
        embedded_dir: where that server lives; None is the user's data directory.
        json: answer in JSON.
        log_format: text or json.
        verbose: more log, and tracebacks.
    """

    database_url: str | None = None
    embedded: bool = False
    embedded_dir: Path | None = None
    json: bool = False
    log_format: str = "text"
    verbose: bool = False

    def names_a_database(self) -> bool:
        """Whether the command line says which database to use."""
        return self.database_url is not None or self.embedded or self.embedded_dir is not None


class SharedOption(click.Option):
    """Taken by every command; shown in a section of its own."""


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if ctx.get_parameter_source(str(param.name)) is not ParameterSource.COMMANDLINE:
        return
    shared = ctx.ensure_object(Shared)
    name = str(param.name)
    before = getattr(shared, name)
    if before not in (getattr(Shared(), name), value):
        raise click.UsageError(f"{param.opts[0]} is given twice, and differently", ctx)
    setattr(shared, name, value)
    if shared.database_url is not None and (shared.embedded or shared.embedded_dir is not None):
        raise click.UsageError("--database-url and --embedded name two databases: give one of them", ctx)


def _shared_options() -> list[click.Parameter]:
    def option(*names: str, **more: Any) -> SharedOption:
        return SharedOption(names, expose_value=False, callback=_remember, **more)

    return [
        option(
            "--database-url", metavar="URL", help="The database; otherwise DATABASE_URL, otherwise PGHOST and the like."
        ),
        option(
            "--embedded", is_flag=True, help="Use a private Postgres (extra: embedded), started and stopped as needed."
        ),
        option(
            "--embedded-dir",
            metavar="DIR",
            type=click.Path(path_type=Path, file_okay=False),
            help="Where that Postgres lives.",
        ),
        option("--json", is_flag=True, help="Answer in JSON, which stays the same from release to release."),
        option("--log-format", type=click.Choice(["text", "json"]), help="How log lines look (text)."),
        option("-v", "--verbose", is_flag=True, help="Log more, and show tracebacks."),
    ]


def _refuse_role(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(excluded(ctx.command_path.partition(" ")[2]), ctx)


def excluded(verb: str) -> str:
    """Say that a role and a verb do not go together."""
    return f"--role runs a process and '{verb}' asks one question: give one or the other"


class _Placed(click.Command):
    """Mixed into commands and groups: takes the shared options, wherever they stand."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(_shared_options())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then the shared ones."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = None if isinstance(param, click.Argument) else param.get_help_record(ctx)
            if record is not None:
                sections.setdefault(self.section_of(param), []).append(record)
        for title, records in sorted(sections.items(), key=lambda section: section[0] == SHARED_SECTION):
            with formatter.section(title):
                formatter.write_dl(records)

    def section_of(self, param: click.Parameter) -> str:
        """Name the section of the help that a parameter is shown in."""
        return SHARED_SECTION if isinstance(param, SharedOption) else "Options"


SHARED_SECTION = "Options of every command, on either side of it"


class Command(_Placed):
    """A command that asks one question."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if any("--role" in param.opts for param in self.params):
            return
        # Only to say why it is not taken here: without this, click would call it unknown.
        self.params.append(
            click.Option(["--role"], hidden=True, expose_value=False, callback=_refuse_role, type=click.Choice(ROLES))
        )


class Group(_Placed, click.Group):
    """A noun; its commands are verbs."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options and then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def noun(name: str, help: str, *, hidden: bool = False) -> Group:
    """Make a noun, which needs a verb."""

    def without_verb() -> None:
        ctx = click.get_current_context()
        if ctx.invoked_subcommand is None:
            raise click.UsageError(f"'{name}' needs a verb: {', '.join(group.list_commands(ctx))}", ctx)

    group = Group(
        name, callback=without_verb, help=help, invoke_without_command=True, no_args_is_help=False, hidden=hidden
    )
    return group


class Root(Group):
    """The whole command line: errors become one line and an exit status."""

    def main(  # type: ignore[override]  # the overloads of click tell apart by standalone_mode, which is in extra here
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run a command line and end the process with its status; with ``standalone_mode=False`` as click has it."""
        if extra.pop("standalone_mode", True) is False:
            return super().main(args, prog_name or "awa-actors", standalone_mode=False, **extra)
        shared = extra.setdefault("obj", Shared())
        run: Callable[..., Any] = super().main
        try:
            status = run(args, prog_name or "awa-actors", standalone_mode=False, **extra)
            # Here and not at the interpreter's end, where a reader that has gone cannot be caught any more.
            sys.stdout.flush()
        except BrokenPipeError:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = failures.NO
        except SystemExit:
            raise
        except BaseException as error:  # everything that ends a command is told in one line
            message, status = failures.explained(error)
            if shared.verbose and not isinstance(error, click.ClickException):
                traceback.print_exception(error)
            logs.say(shared.log_format, message)
        sys.exit(status or failures.OK)
