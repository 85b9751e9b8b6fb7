"""The parts of the reference that are read from the code: command line, settings, errors. Markdown, without Sphinx."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import attrs
import click

from awa_actors import config, errors
from awa_actors.core.leadership import LeaseTiming
from awa_actors.core.liveness import Liveness

SETTINGS: dict[type[Any], str] = {
    config.DatabaseSettings: "`open_client(settings=…)`",
    config.QueueConfig: "`client.run_worker(QueueConfig(…), …)`, one per queue",
    config.RateLimit: "`QueueConfig(rate_limit=…)`",
    config.WorkerSettings: "`client.run_worker(settings=…)`, `client.run_maintenance(life=…)`",
    Liveness: "`WorkerSettings(liveness=…)`",
    config.MaintenanceSettings: "`client.run_worker(maintenance=…)`, `client.run_maintenance(settings=…)`",
    LeaseTiming: "`MaintenanceSettings(lease=…)`",
    config.Budget: "`client.tick(Budget(…))`",
}
"""Every class of settings, and where it is given."""


def cell(text: str) -> str:
    """Text that fits into a cell of a table, on one line."""
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip().replace("|", "\\|")


def described_args(docstring: str) -> dict[str, str]:
    """What the section `Args` of a docstring says, by name."""
    found = re.search(r"^Args:\n(?P<body>(?:    .*\n?|\n)+)", inspect.cleandoc(docstring), re.MULTILINE)
    entries = re.findall(r"^    (\w+): ((?:.*\n?)(?:        .*\n?)*)", found["body"], re.MULTILINE) if found else []
    return {name: cell(text) for name, text in entries}


def settings_markdown() -> str:
    """Every setting with its default and its meaning, class by class."""
    return "\n\n".join(_settings_of(cls, where) for cls, where in SETTINGS.items())


def _settings_of(cls: type[Any], where: str) -> str:
    docstring = inspect.cleandoc(cls.__doc__ or "")
    says = described_args(docstring)
    rows = [
        f"| `{field.name}` | {_default(field.default)} | {says.get(field.name, '')} |" for field in attrs.fields(cls)
    ]
    head = [f"## `{cls.__name__}`", "", cell(docstring.split("\n\n")[0]), "", f"Given as {where}.", ""]
    return "\n".join([*head, "| setting | default | meaning |", "| --- | --- | --- |", *rows])


def _default(value: Any) -> str:
    if value is attrs.NOTHING:
        return "required"
    if isinstance(value, attrs.Factory):
        return "derived" if value.takes_self else f"`{value.factory.__name__}()`"
    return f"`{value:_}`" if isinstance(value, int | float) and not isinstance(value, bool) else f"`{value!r}`"


def commands(group: click.Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that is not hidden, by its words, nouns before their verbs."""
    for name in group.list_commands(click.Context(group)):
        command = group.commands[name]
        if command.hidden:
            continue
        yield " ".join((*words, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))


def command_line_markdown(root: click.Group, shared: type[click.Option]) -> str:
    """Every command with its arguments and options.

    Args:
        root: the tree.
        shared: the class of the options that every command takes, which are told once.
    """
    parts = ["## Options of every command", "", *_options(root, lambda one: isinstance(one, shared)), ""]
    parts += ["## Running a process", "", *_options(root, lambda one: not isinstance(one, shared)), ""]
    for words, command in commands(root):
        if isinstance(command, click.Group):
            parts += [f"## `{words}`", "", cell(command.help or ""), ""]
            continue
        arguments = " ".join(one.make_metavar(click.Context(command)) for one in _arguments(command))
        parts += [f"{'###' if ' ' in words else '##'} `awa-actors {words}`".rstrip(), ""]
        parts += [cell(command.help or ""), "", "```text", f"awa-actors {words} {arguments}".rstrip(), "```", ""]
        parts += [*_options(command, lambda one: not isinstance(one, shared)), ""]
    return "\n".join(parts)


def _arguments(command: click.Command) -> list[click.Argument]:
    return [one for one in command.params if isinstance(one, click.Argument)]


def _options(command: click.Command, wanted: Any) -> list[str]:
    context = click.Context(command)
    rows = [
        (record[0], record[1])
        for one in command.get_params(context)
        if isinstance(one, click.Option) and not one.hidden and one.name not in ("help", "version") and wanted(one)
        if (record := one.get_help_record(context)) is not None
    ]
    if not rows:
        return []
    return [
        "| option | meaning |",
        "| --- | --- |",
        *(f"| `{cell(names).replace('`', '')}` | {cell(says)} |" for names, says in rows),
    ]


def errors_markdown() -> str:
    """The tree of exceptions with what each says of itself."""
    return "\n".join(_errors_below(errors.AwaError, 0))


def _errors_below(cls: type[BaseException], depth: int) -> Iterator[str]:
    says = cell(inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0])
    yield f"{'  ' * depth}- **`{cls.__name__}`**: {says}"
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _errors_below(child, depth + 1)
