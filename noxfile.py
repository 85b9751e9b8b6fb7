"""What must hold before a change lands: `nox` runs the default sessions, `nox -s tests -- -k name` a part of one.

Every session installs what it needs, so that a machine with Python and pip is enough; those that run the rings or look
at all of the source share one environment. Dependency groups are read here and handed to pip as a list, because the pip
of a fresh virtual environment may be too old to know them.
"""

import os
import sys
from pathlib import Path

import nox
import nox.command

nox.needs_version = ">=2025.2.9"
# postgres(18) and migrations are not among the defaults: `tests` runs on 18, and runs theirs and more.
nox.options.sessions = ["lint", "types", "tests", "model", "postgres(15)", "postgres(16)", "docs", "build"]
nox.options.reuse_venv = "yes"

PROJECT = nox.project.load_toml("pyproject.toml")
EVERYTHING = ".[embedded,http,cel,otel]"
SOURCES = [path for path in ("awa_actors", "tests", "model", "noxfile.py") if Path(path).exists()]
# What depends on the version: the SQL, the server's own life, and what processes see of its crashes and dumps.
RINGS_OF_THE_DATABASE = ["tests/private_postgres", "tests/store", "tests/planes", "tests/end_to_end/test_crashes.py"]
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")


def group(name: str) -> list[str]:
    """The requirements of a dependency group of pyproject.toml."""
    return list(nox.project.dependency_groups(PROJECT, name))


def in_rings(session: nox.Session, module: str, *arguments: str, **environment: str) -> None:
    """Run a module in the environment of the rings, which whoever comes first makes: filling it takes half a minute."""
    home = session.cache_dir / "rings"
    programs = home / ("Scripts" if os.name == "nt" else "bin")
    python = str(programs / "python")
    requirements = ["nox", *group("types"), *group("test"), "-e", EVERYTHING]
    wanted = "\n".join([*requirements, *group("compat"), Path("pyproject.toml").read_text()])
    filled = home / "filled-with"
    if not filled.exists() or filled.read_text() != wanted:
        session.run(sys.executable, "-m", "virtualenv", "--quiet", str(home))
        # Not compiled: most of what it brings is never imported, and compiling all of it takes longer than many tests.
        pip = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
        session.run(*pip, *requirements)
        # It has no wheel for some platforms; there the tests that need it skip and say so.
        session.run(*pip, "--only-binary=:all:", *group("compat"), success_codes=[0, 1])
        filled.write_text(wanted)
    path = os.pathsep.join([str(programs), os.environ.get("PATH", "")])
    # What is imported is compiled once, and not by each of the hundreds of processes that tests start.
    around: dict[str, str | None] = {"PATH": path, "VIRTUAL_ENV": str(home), "PYTHONDONTWRITEBYTECODE": None}
    session.run(python, "-m", module, *arguments, env=around | environment)


def run_pytest(session: nox.Session, *paths: str, selected: str = "not bench", **environment: str) -> None:
    """Run pytest on paths, or on what stands after ``--``, with everything but the benchmarks selected."""
    # Each worker has a server of its own. One more than there are cores: tests wait for processes half of their time.
    workers = str(min((os.cpu_count() or 1) + 1, 8))
    options = ["-m", selected, "-n", workers, "--dist", "worksteal", "--durations", "20"]
    chosen = session.posargs or paths
    try:
        in_rings(session, "pytest", *options, *chosen, **environment)
    except nox.command.CommandFailed:
        # What waits for other processes can run out of patience on a machine that is busy with the other tests.
        session.warn("once more what failed, alone: what fails twice is broken")
        again = ["-m", selected, "--last-failed", "--last-failed-no-failures", "none"]
        in_rings(session, "pytest", *again, *chosen, **environment)


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, as configured in pyproject.toml."""
    session.install(*group("lint"))
    session.run("ruff", "check", *SOURCES)


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Mypy, strict, over the package, its tests and its model."""
    in_rings(session, "mypy", *SOURCES)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Every ring but the benchmarks, on Postgres 18."""
    run_pytest(session, "tests")


@nox.session(venv_backend="none")
def model(session: nox.Session) -> None:
    """The executable specification and its broken twins, in the profile that AWA_MODEL_PROFILE names (ci)."""
    if not Path("model").is_dir():
        session.skip("there is no model/")
    run_pytest(session, "model", AWA_MODEL_PROFILE=os.environ.get("AWA_MODEL_PROFILE", "ci"))
    in_rings(session, "model", AWA_MODEL_PROFILE="dev")


@nox.session(venv_backend="none")
def mutants(session: nox.Session) -> None:
    """Guards taken out of the source one at a time, each of which must be missed; slow, and not among the defaults."""
    in_rings(session, "model.mutants", *session.posargs)


@nox.session(venv_backend="none")
@nox.parametrize("version", ["15", "16", "18"], ids=["15", "16", "18"])
def postgres(session: nox.Session, version: str) -> None:
    """The rings that need a database, on another version of it."""
    if version == "15" and not DEBIAN_15.is_dir():
        session.skip(f"Postgres 15 is not in the embedded extra, and {DEBIAN_15} does not exist")
    rings = [ring for ring in RINGS_OF_THE_DATABASE if Path(ring).exists()]
    # One case of each test: what depends on the version is the SQL, which all cases share.
    run_pytest(session, *rings, selected="not bench and not wide", AWA_TEST_PG=version)


@nox.session(venv_backend="none")
def migrations(session: nox.Session) -> None:
    """A stepwise upgrade ends where a fresh install begins, also for a database of the implementation before ours."""
    found = sorted(str(path) for path in Path("tests").rglob("test_*migrat*.py"))
    if not found:
        session.skip("there are no tests/**/test_*migrat*.py")
    run_pytest(session, *found)


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, warnings being errors."""
    if not Path("docs/conf.py").exists():
        session.skip("there is no docs/conf.py")
    session.install("--no-compile", *group("docs"), "-e", EVERYTHING)
    session.run("sphinx-build", "-W", "--keep-going", "-q", "docs", "docs/_build/html")


@nox.session
def quickstart(session: nox.Session) -> None:
    """The quickstart as the built documentation tells it, in an empty environment, timed."""
    session.install(*group("docs"), "build", "-e", EVERYTHING)
    work = Path(session.create_tmp()).resolve()
    session.run("sphinx-build", "-W", "-q", "docs", str(work / "html"))
    session.run("python", "-m", "build", "--wheel", "--outdir", str(work), ".", silent=True)
    session.run("python", "docs/try_quickstart.py", str(work / "html"), str(work))


@nox.session(venv_backend="none")
def bench(session: nox.Session) -> None:
    """The benchmarks: to be read, not to pass."""
    in_rings(session, "pytest", "-m", "bench", "-s", "tests/bench", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build sdist and wheel, and use the wheel where nothing else is installed."""
    session.install("--no-compile", "build")
    distributions = Path(session.create_tmp()).resolve()
    for old in distributions.glob("awa_actors-*"):
        old.unlink()
    # From the sdist, so that it is known to be complete.
    session.run("python", "-m", "build", "--outdir", str(distributions), ".")
    (wheel,) = distributions.glob("*.whl")
    session.run("python", "-c", INSPECTION, str(wheel))
    clean = distributions / "clean"
    session.run("python", "-m", "venv", "--clear", str(clean))
    python = str(clean / ("Scripts" if os.name == "nt" else "bin") / "python")
    session.run(python, "-m", "pip", "install", "--quiet", str(wheel), external=True)
    with session.chdir(distributions):
        session.run(python, "-c", "import awa_actors, awa_actors.cli; print(awa_actors.__file__)", external=True)


INSPECTION = """
import sys, zipfile
names = zipfile.ZipFile(sys.argv[1]).namelist()
assert "awa_actors/py.typed" in names, names
assert any(name.startswith("awa_actors/store/migrations/") and name.endswith(".sql") for name in names), names
assert not [name for name in names if not name.startswith(("awa_actors/", "awa_actors-"))], names
"""
"""The type marker and the migrations are in the wheel, and tests are not."""
