import pytest
from command_line import awa

EITHER_SIDE = [("--json", "health"), ("health", "--json")]


@pytest.mark.parametrize("args", EITHER_SIDE)
def test_common_options_stand_on_either_side_of_a_verb(args: tuple[str, ...], database: str) -> None:
    answer = awa(*args, url=database)
    assert answer.json["ready"] is True


@pytest.mark.parametrize(
    "args",
    [
        ("--json", "--database-url", "URL", "queue", "list"),
        ("--json", "queue", "--database-url", "URL", "list"),
        ("queue", "list", "--database-url", "URL", "--json"),
        ("queue", "--json", "list", "--database-url", "URL"),
    ],
)
def test_common_options_stand_between_noun_and_verb_too(args: tuple[str, ...], database: str) -> None:
    answer = awa(*(database if arg == "URL" else arg for arg in args))
    assert (answer.status, answer.json) == (0, [])


def test_the_command_line_wins_over_the_environment(database: str) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    assert awa("queue", "list", "--database-url", database, url=nowhere).status == 0


def test_the_variables_of_postgres_name_a_database(database: str) -> None:
    from urllib.parse import parse_qs, urlsplit

    parts = urlsplit(database)
    query = parse_qs(parts.query)
    env = {"PGHOST": query["host"][0], "PGPORT": query["port"][0], "PGUSER": query["user"][0]}
    assert awa("queue", "list", env={**env, "PGDATABASE": parts.path[1:]}).status == 0
