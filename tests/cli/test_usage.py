from pathlib import Path

import pytest
from command_line import Answer, awa, one_line

ROLES_EXCLUDE = "give one or the other"


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        ((), ["nothing was asked", "--role worker|maintenance|callbacks"]),
        (("--json",), ["nothing was asked"]),
        (("frobnicate",), ["frobnicate"]),
        (("health", "--frobnicate"), ["--frobnicate", "awa-actors health --help"]),
        (("job",), ["'job' needs a verb", "list", "show", "cancel", "retry"]),
        (("job", "show"), ["ID"]),
        (("job", "show", "seven"), ["seven"]),
        (("--role", "worker", "health"), [ROLES_EXCLUDE, "'health'"]),
        (("health", "--role", "worker"), [ROLES_EXCLUDE, "'health'"]),
        (("job", "list", "--role", "maintenance"), [ROLES_EXCLUDE, "'job list'"]),
        (("--role", "janitor"), ["janitor"]),
        (("--app", "shop:registry"), ["--app", "add --role"]),
        (("--queue", "email=8"), ["--queue", "add --role"]),
        (("--grace", "3", "health"), ["--grace", "not for 'health'"]),
        (("--role", "worker"), ["--role worker needs --app module:registry"]),
        (("--role", "worker", "--app", "a:b", "--config", "awa.toml"), ["--config goes with --role maintenance"]),
        (("--role", "maintenance", "--queue", "email"), ["--queue goes with --role worker"]),
        (("--role", "maintenance", "--no-maintenance"), ["--no-maintenance goes with --role worker"]),
        (("--role", "worker", "--app", "a:b", "--allow-unsigned"), ["--allow-unsigned goes with --role callbacks"]),
        (("--role", "maintenance", "--app", "a:b", "--config", "awa.toml"), ["--app and --config", "one of them"]),
        (("--role", "worker", "--app", "a:b", "--queue", "email=none"), ["'email=none'"]),
        (("--role", "worker", "--app", "a:b", "--queue", "email=0"), ["'email=0'"]),
        (("--role", "worker", "--app", "a:b", "--queue", "=4"), ["'=4'"]),
        (("--role", "worker", "--app", "a:b", "--queue", "a=1", "--queue", "a=2"), ["'a' is named twice"]),
        (("--role", "maintenance", "--grace", "nan"), ["--grace"]),
        (("--role", "maintenance", "--grace", "inf"), ["--grace"]),
        (("--role", "maintenance", "--connect-timeout", "0"), ["--connect-timeout"]),
        (("--role", "maintenance", "--health-addr", "8080"), ["HOST:PORT", "'8080'"]),
        (("--role", "maintenance", "--health-addr", "::1:8080"), ["brackets"]),
        (("maintenance", "run", "--queue", "email"), ["--queue"]),
        (("health",), ["no database is named", "--database-url", "DATABASE_URL"]),
        (("--embedded", "--database-url", "postgresql:///a", "health"), ["two databases"]),
        (("--embedded", "health", "--database-url", "postgresql:///a"), ["two databases"]),
        (("--database-url", "postgresql:///a", "health", "--database-url", "postgresql:///b"), ["given twice"]),
        (("health", "--embedded-dir", "somewhere"), ["--embedded-dir", "give both"]),
        (("health", "--database-url", "mysql://localhost/shop"), ["database URL"]),
        (("demo", "--database-url", "postgresql:///a"), ["Postgres of its own"]),
        (("migrate", "--check", "--to", "3"), ["--check"]),
        (("tick", "--seconds", "-1"), ["--seconds"]),
        (("queue", "pause", "email", "--until", "tomorrow"), ["--until", "'tomorrow'"]),
        (("queue", "pause", "email", "--until", "2030-01-31T08:00"), ["--until", "time zone"]),
    ],
)
def test_wrong_usage_is_one_line_that_says_what_to_do(args: tuple[str, ...], parts: list[str], here: Path) -> None:
    answer = awa(*args)
    assert answer.status == 2, answer
    assert answer.out == ""
    one_line(answer.err, *parts)


@pytest.mark.parametrize(
    ("app", "parts"),
    [
        ("shop", ["module:registry"]),
        ("no_such_module:registry", ["no module 'no_such_module'"]),
        ("shop.jobs:registry", ["no module 'shop.jobs'"]),
        ("shop:nothing", ["no attribute 'nothing'", "registries there: registry"]),
        ("shop:number", ["of type int, not an awa_actors.Registry"]),
        ("needy:registry", ["importing it failed", "no_such_dependency"]),
        ("broken:registry", ["importing it failed", "ZeroDivisionError"]),
        ("quitting:registry", ["importing it failed", "SystemExit"]),
        ("shop:registry", ["no handler"]),
    ],
)
def test_a_wrong_app_is_one_line_that_says_what_was_wrong(app: str, parts: list[str], here: Path) -> None:
    (here / "shop.py").write_text("import awa_actors\nregistry = awa_actors.Registry()\nnumber = 5\n")
    (here / "needy.py").write_text("import no_such_dependency\n")
    (here / "broken.py").write_text("1 / 0\n")
    (here / "quitting.py").write_text("raise SystemExit\n")
    answer = awa("--role", "worker", "--app", app)
    assert answer.status == 2, answer
    one_line(answer.err, *parts)


def test_the_callback_role_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("awa_actors.cli.roles.find_spec", lambda name: None)
    for args in (["--role", "callbacks"], ["callbacks", "serve"]):
        answer = awa(*args)
        assert answer.status == 2
        one_line(answer.err, "awa-actors[http]")


def test_a_traceback_is_shown_only_when_asked_for(here: Path) -> None:
    (here / "broken.py").write_text("1 / 0\n")
    args = ("--role", "worker", "--app", "broken:registry")
    assert "Traceback" not in awa(*args).err
    assert "Traceback" in awa("-v", *args).err


def test_help_is_help_and_hides_the_aliases() -> None:
    answer = awa("--help")
    assert answer.status == 0
    assert "--role" in answer.out
    assert "callbacks serve" not in answer.out
    assert "maintenance " not in _commands(answer)
    assert awa("--version").out.startswith("awa-actors")


def _commands(answer: Answer) -> str:
    return answer.out.partition("Commands:")[2]


def test_errors_are_json_when_the_log_is(here: Path) -> None:
    answer = awa("--log-format", "json", "health")
    assert answer.status == 2
    one_line(answer.err, '"level":"error"', "no database is named")
