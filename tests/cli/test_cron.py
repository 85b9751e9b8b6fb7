"""cron: what operators see of schedules and do about them, and schedules that a file declares."""

from pathlib import Path

import pytest
import trio
from at_work import until
from command_line import awa, one_line, running
from schedules import SELDOM, lane_of, one_pass, scheduled

from awa_actors.client import open_client

FILE = """
application = "ops"

[cron.pulse]
expression = "* * * * * *"
kind = "beat"
queue = "pulses"
args = { loud = true }

[queues.pulses]
owner = "ops"
"""


@pytest.fixture
def declared(database: str) -> str:
    """A database that knows two schedules, one of which is paused."""

    async def declare() -> None:
        async with open_client(database) as client:
            registry = scheduled("nightly", SELDOM)
            registry.schedules.update(scheduled("weekly", "0 3 * * 1", timezone="Europe/Berlin").schedules)
            await one_pass(client, lane_of(registry))

    trio.run(declare)
    return database


def test_schedules_are_listed_with_their_next_fire(declared: str) -> None:
    nightly, weekly = awa("cron", "list", "--json", url=declared).json
    assert (nightly["name"], nightly["expression"], nightly["kind"], nightly["stale"]) == (
        "nightly",
        SELDOM,
        "report",
        False,
    )
    assert weekly["next_fire"].endswith(("T01:00:00Z", "T02:00:00Z"))
    lines = awa("cron", "list", url=declared).out.splitlines()
    assert lines[0].split()[:3] == ["NAME", "EXPRESSION", "TIMEZONE"]
    assert lines[2].startswith("weekly")
    assert "Europe/Berlin" in lines[2]


def test_no_schedules_is_a_sentence(database: str) -> None:
    assert awa("cron", "list", url=database).out == "no application has declared a schedule\n"
    assert awa("cron", "list", "--json", url=database).json == []


def test_a_schedule_is_paused_and_resumed(declared: str) -> None:
    answer = awa("cron", "pause", "nightly", "--by", "ann", url=declared)
    assert (answer.status, answer.out) == (0, "schedule nightly is paused\n")
    assert "paused by ann" in awa("cron", "list", url=declared).out
    assert awa("cron", "resume", "nightly", url=declared).out == "schedule nightly is resumed\n"
    assert awa("cron", "resume", "nightly", "--json", url=declared).json == {
        "name": "nightly",
        "paused": False,
        "was_paused": False,
    }


def test_a_schedule_is_triggered(declared: str) -> None:
    job = awa("cron", "trigger", "nightly", "--json", url=declared).json
    shown = awa("job", "show", str(job["id"]), "--json", url=declared).json
    assert shown["metadata"]["triggered_manually"] is True
    assert awa("cron", "trigger", "nightly", url=declared).out.startswith("job ")


def test_a_schedule_is_removed(declared: str) -> None:
    assert awa("cron", "remove", "nightly", url=declared).out == "schedule nightly is removed\n"
    assert [one["name"] for one in awa("cron", "list", "--json", url=declared).json] == ["weekly"]


@pytest.mark.parametrize("verb", ["pause", "resume", "trigger", "remove"])
def test_a_schedule_that_is_not_there_is_a_no(database: str, verb: str) -> None:
    answer = awa("cron", verb, "nobody", url=database)
    assert answer.status == 1
    one_line(answer.err, "there is no schedule 'nobody'")


@pytest.mark.slow
def test_a_maintenance_process_fires_what_its_file_declares(database: str, tmp_path: Path) -> None:
    file = tmp_path / "awa.toml"
    file.write_text(FILE)
    with running("--role", "maintenance", "--config", str(file), url=database) as process:
        process.says("declarations of", "awa.toml")
        process.says("elected")

        async def fired() -> None:
            async with open_client(database) as client:
                await until(lambda: client.admin.jobs(queue="pulses"), limit=20)
                job = (await client.admin.jobs(queue="pulses"))[0]
                assert (job.kind, job.args) == ("beat", {"loud": True})
                await until(client.admin.descriptors, limit=20)
                described = (await client.admin.descriptors())[0]
                assert (described.name, described.application) == ("pulses", "ops")

        trio.run(fired)
        process.signal()
        assert process.ends() == 0


def test_a_mistake_in_the_file_ends_the_process_before_it_starts(tmp_path: Path) -> None:
    file = tmp_path / "awa.toml"
    file.write_text(FILE.replace("* * * * * *", "never"))
    answer = awa("--role", "maintenance", "--config", str(file), "--database-url", "postgresql://nobody")
    assert answer.status == 2
    one_line(answer.err, "awa.toml:5: cron.pulse.expression: 'never' is not a cron expression")
