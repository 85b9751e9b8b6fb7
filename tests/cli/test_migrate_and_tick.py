import datetime as dt

from command_line import awa
from jobs_at_hand import inserted
from postgres_servers import query

from awa_actors.jobs import InsertOpts

SOON = InsertOpts(run_at=dt.timedelta(milliseconds=1))
"""Due before the next command could start."""


def test_migrating_says_what_it_did_and_is_done_once(empty_database: str) -> None:
    assert awa("migrate", "--check", url=empty_database).status == 1
    first = awa("migrate", url=empty_database)
    assert first.status == 0
    assert "applied 0001 control_schema" in first.out
    again = awa("migrate", "--json", url=empty_database)
    assert again.json["applied"] == []
    assert again.json["version"] == again.json["expected"]
    check = awa("migrate", "--check", "--json", url=empty_database)
    assert (check.status, check.json["current"]) == (0, True)


def test_migrating_to_a_version_stops_there(empty_database: str) -> None:
    answer = awa("migrate", "--to", "2", "--json", url=empty_database)
    assert [step["version"] for step in answer.json["applied"]] == [1, 2]
    assert awa("migrate", "--check", url=empty_database).status == 1
    assert awa("migrate", "--to", "9999", url=empty_database).status == 2


def test_the_statements_can_be_had_without_a_database() -> None:
    answer = awa("migrate", "--sql", "--to", "1")
    assert answer.status == 0
    assert "CREATE TABLE awa.instances" in answer.out
    assert "awa_queue.ready" not in answer.out


def test_a_tick_does_what_is_due(database: str) -> None:
    (job,) = inserted(database, 1, SOON)
    answer = awa("tick", "--json", url=database)
    assert answer.status == 0
    assert answer.json["done"]["promote"] == 1
    assert awa("job", "show", "--json", str(job), url=database).json["state"] == "available"


def test_a_tick_that_leaves_something_is_75(database: str) -> None:
    inserted(database, 3, SOON)
    answer = awa("tick", "--rows", "1", url=database)
    assert answer.status == 75
    assert "more to do" in answer.out


def test_a_tick_whose_step_fails_is_1_and_says_which(database: str) -> None:
    query(database, "DROP TABLE awa.queue_stats")
    answer = awa("tick", url=database)
    assert answer.status == 1
    assert "failed: " in next(line for line in answer.out.splitlines() if line.startswith("refresh"))
