"""The reference leaves nothing out, and the pictures name only what is there."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from types import ModuleType

import attrs
import click
import pytest
from snippets import DOCS, REPOSITORY, pages

import awa_actors
from awa_actors import config, errors, testing
from awa_actors.cli.placement import SharedOption
from awa_actors.cli.tree import root
from awa_actors.core.lifecycle import LIFECYCLE

EXTENSIONS = DOCS / "_extensions"
ALL_OF_THE_REFERENCE = "\n".join(path.read_text() for path in sorted((DOCS / "reference").glob("*.md")))


def extension(name: str) -> ModuleType:
    """A module of the documentation's extension, none of which needs Sphinx but the one that is not loaded here."""
    sys.path.insert(0, str(EXTENSIONS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(EXTENSIONS))


reference = extension("reference")
SETTINGS: str = reference.settings_markdown()
COMMANDS: str = reference.command_line_markdown(root, SharedOption)


def commands(group: click.Group, words: str = "awa-actors") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group) and not command.hidden:
            yield from commands(command, f"{words} {name}")
        elif not command.hidden:
            yield f"{words} {name}", command


def is_documented(text: str, name: str) -> bool:
    """Whether a directive or a line of the reference is about a public name."""
    return re.search(rf"(:: (awa_actors\.)?|`)({name})\b", text) is not None


@pytest.mark.parametrize("name", [name for name in awa_actors.__all__ if name != "events"])
def test_every_public_name_is_in_the_reference(name: str) -> None:
    settings_or_error = f"`{name}`" in SETTINGS or f"`{name}`" in reference.errors_markdown()
    assert settings_or_error or is_documented(ALL_OF_THE_REFERENCE, name)


@pytest.mark.parametrize("name", testing.__all__)
def test_every_name_of_the_testing_kit_is_in_the_reference(name: str) -> None:
    assert is_documented(ALL_OF_THE_REFERENCE, name)


@pytest.mark.parametrize("event", ["Event", *(type_.__name__ for type_ in awa_actors.events.OUTCOME_EVENTS.values())])
def test_every_event_is_in_the_reference(event: str) -> None:
    assert re.search(rf"\b{event}\b", (DOCS / "reference/api.md").read_text())


@pytest.mark.parametrize("bridge", sorted(path.stem for path in (REPOSITORY / "awa_actors/bridge").glob("[a-z]*.py")))
def test_every_function_of_a_bridge_is_in_the_reference(bridge: str) -> None:
    source = (REPOSITORY / f"awa_actors/bridge/{bridge}.py").read_text()
    public = re.findall(r"^(?:async )?def ([a-z]\w*)\(conn", source, re.MULTILINE)
    documented = (DOCS / "reference/api-bridges.md").read_text()
    section = documented.partition(f"awa_actors.bridge.{bridge}\n")[2].partition("##")[0]
    missing = {name for name in public if not name.startswith("fetch_row")} - set(re.findall(r"\w+", section))
    assert not missing


@pytest.mark.parametrize(("words", "command"), list(commands(root)))
def test_every_command_and_option_is_in_the_reference(words: str, command: click.Command) -> None:
    section = COMMANDS.partition(f"`{words}`\n")[2].partition("\n##")[0]
    assert section
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden and not isinstance(option, SharedOption):
            assert option.opts[0] in section


def test_every_option_of_a_run_is_in_the_reference() -> None:
    section = COMMANDS.partition("## Running a process")[2].partition("\n## ")[0]
    shown = [one for one in root.params if isinstance(one, click.Option) and not one.hidden and one.name != "version"]
    options = [one.opts[0] for one in shown]
    missing = [name for name in options if name not in COMMANDS]
    assert "--role" in section
    assert not missing


@pytest.mark.parametrize("cls", list(reference.SETTINGS))
def test_every_setting_is_explained(cls: type) -> None:
    says = reference.described_args(cls.__doc__ or "")
    names = {field.name for field in attrs.fields(cls)}
    # Two numbers whose names say it all are told in one sentence.
    assert names <= set(says) or cls in (config.RateLimit, config.Budget)
    assert all(f"| `{name}` |" in SETTINGS for name in names)


def test_no_class_of_settings_is_forgotten() -> None:
    declared = {cls for cls in vars(config).values() if isinstance(cls, type) and attrs.has(cls)}
    assert declared <= set(reference.SETTINGS)


@pytest.mark.parametrize("name", [name for name, cls in vars(errors).items() if isinstance(cls, type)])
def test_every_error_is_in_the_reference(name: str) -> None:
    assert f"`{name}`" in reference.errors_markdown()


@pytest.mark.parametrize("name", ["settings", "errors", "command-line", "lifecycle"])
def test_what_is_read_from_the_code_is_on_a_page(name: str) -> None:
    assert any(f"```{{generated}} {name}\n" in path.read_text() for path in pages().values())


def test_every_environment_variable_is_explained() -> None:
    source = "\n".join(path.read_text() for path in (REPOSITORY / "awa_actors").rglob("*.py"))
    read = set(re.findall(r'os\.environ\.get\("(\w+)"', source)) | set(re.findall(r'"(AWA_[A-Z_]*[A-Z]{5,})"', source))
    missing = {name for name in read if f"`{name}`" not in (DOCS / "reference/settings.md").read_text()}
    assert not missing


def test_every_function_of_the_sql_contract_exists() -> None:
    migrations = "\n".join(path.read_text() for path in (REPOSITORY / "awa_actors/store/migrations").glob("*.sql"))
    named = set(re.findall(r"`(awa\.\w+)\(", (DOCS / "reference/sql.md").read_text()))
    assert named
    assert all(re.search(rf"FUNCTION {re.escape(name)}\(", migrations) for name in named)


def test_the_pictures_of_the_lifecycle_show_every_usual_move_of_theirs() -> None:
    drawn = extension("lifecycle_picture")
    table = drawn.lifecycle_table()
    assert all(f"| `{move.name}` |" in table for move in LIFECYCLE)
    for panel, (_, movers) in drawn.PANELS.items():
        svg = drawn.lifecycle_picture(panel)
        for move in LIFECYCLE:
            if move.mover in movers and move.after[0] is not None:
                assert move.name.replace("_", " ") in svg


def test_the_tree_names_the_tasks_of_the_source() -> None:
    tree = extension("tree_picture")
    source = "\n".join(path.read_text() for path in (REPOSITORY / "awa_actors").rglob("*.py"))
    for task, _ in tree._rows(tree.WORKER, 0):
        for part in re.sub(r"<.*>", "|", task.name).removeprefix("lane ").split("|"):
            assert part.strip().removeprefix("maintenance ") in source, task.name


def test_the_picture_of_the_storage_names_its_tables() -> None:
    migrations = "\n".join(path.read_text() for path in (REPOSITORY / "awa_actors/store/migrations").glob("*.sql"))
    for table in extension("storage_picture").TABLES:
        assert f"CREATE TABLE awa_queue.{table} " in migrations


def test_no_picture_needs_the_network() -> None:
    for name in ("drawing", "tree_picture", "storage_picture", "lifecycle_picture"):
        links = re.findall(r"https?://\S+", (EXTENSIONS / f"{name}.py").read_text())
        assert all("www.w3.org/2000/svg" in link for link in links)
