"""The questions and the changes of operators: jobs, queues, leadership."""

import subprocess
import sys
from pathlib import Path

from command_line import awa, clean_environment, one_line
from jobs_at_hand import inserted

JOB_FIELDS = {
    *(
        "id",
        "kind",
        "queue",
        "args",
        "state",
        "priority",
        "attempt",
        "run_lease",
        "max_attempts",
        "run_at",
        "created_at",
    ),
    *("attempted_at", "finalized_at", "deadline", "deadline_at", "metadata", "tags", "errors", "progress", "result"),
    *("unique_key", "snoozes", "rescues", "interrupted", "instance", "callback_id", "dlq_reason"),
}


def test_jobs_are_listed_newest_first_and_filtered(database: str) -> None:
    ids = inserted(database, 3)
    answer = awa("job", "list", "--json", "--limit", "2", url=database)
    assert [job["id"] for job in answer.json] == [ids[2], ids[1]]
    assert [job["id"] for job in awa("job", "list", "--json", "--before", str(ids[1]), url=database).json] == [ids[0]]
    assert awa("job", "list", "--json", "--state", "failed", url=database).json == []
    assert set(answer.json[0]) >= JOB_FIELDS


def test_text_is_columns_where_no_terminal_reads(database: str) -> None:
    (job,) = inserted(database)
    lines = awa("job", "list", url=database).out.splitlines()
    assert lines[0].split() == ["ID", "KIND", "QUEUE", "STATE", "ATTEMPT", "RUN", "AT", "LAST", "ERROR"]
    assert lines[1].split()[:5] == [str(job), "errand", "default", "available", "0/25"]
    assert awa("job", "list", "--kind", "nothing", url=database).out == "no such job\n"


def test_a_job_is_shown_whole(database: str) -> None:
    (job,) = inserted(database)
    shown = awa("job", "show", str(job), url=database).out
    assert '{"n":0}' in shown
    answer = awa("job", "show", "999", url=database)
    assert answer.status == 1
    one_line(answer.err, "there is no job 999")


def test_what_is_stored_cannot_move_the_cursor_of_a_terminal(database: str) -> None:
    (job,) = inserted(database)
    awa("job", "cancel", str(job), "--reason", "\x1b[2Jgone", url=database)
    for args in (("job", "show", str(job)), ("job", "list")):
        out = awa(*args, url=database).out
        assert "gone" in out
        assert "\x1b" not in out


def test_jobs_are_cancelled_and_run_again(database: str) -> None:
    first, second = map(str, inserted(database, 2))
    answer = awa("job", "cancel", first, second, url=database)
    assert (answer.status, answer.out) == (0, f"job {first}: cancelled\njob {second}: cancelled\n")
    answer = awa("job", "retry", first, url=database)
    assert (answer.status, answer.out) == (0, f"job {first}: retried\n")


def test_one_job_that_cannot_be_changed_keeps_no_other_from_it(database: str) -> None:
    first, second = inserted(database, 2)
    awa("job", "cancel", str(first), url=database)
    answer = awa("job", "cancel", "--json", str(first), "999", str(second), url=database)
    assert answer.status == 1
    assert [(one["id"], one["done"], one["state"]) for one in answer.json] == [
        (first, False, "cancelled"),
        (999, False, None),
        (second, True, "cancelled"),
    ]


def test_an_app_brings_the_follow_ups_of_a_cancellation(database: str, here: Path) -> None:
    (here / "shop.py").write_text(SHOP)
    (job,) = inserted(database)
    assert awa("job", "cancel", str(job), "--app", "shop:registry", url=database).status == 0
    assert [one["kind"] for one in awa("job", "list", "--json", url=database).json] == ["apology", "errand"]


SHOP = """
import attrs
import awa_actors as awa
from jobs_at_hand import Errand

@attrs.frozen
class Apology:
    job: int

registry = awa.Registry()

@registry.on_cancelled_enqueue(Errand)
def apologise(event: awa.events.Cancelled[Errand]) -> Apology:
    return Apology(event.job.id)
"""


def test_a_queue_is_paused_until_and_resumed(database: str) -> None:
    answer = awa("queue", "pause", "email", "--by", "ann", "--until", "2130-01-31T08:00+01:00", url=database)
    assert (answer.status, answer.out) == (0, "queue email is paused until 2130-01-31 07:00:00Z\n")
    (listed,) = awa("queue", "list", "--json", url=database).json
    assert listed == {
        "queue": "email",
        "paused": True,
        "paused_by": "ann",
        "paused_until": "2130-01-31T07:00:00Z",
        "shards": 1,
        "workers": 0,
        "max_workers": 0,
    }
    assert awa("queue", "resume", "email", "--json", url=database).json["was_paused"] is True
    again = awa("queue", "resume", "email", url=database)
    assert (again.status, again.out) == (0, "queue email was not paused\n")


def test_a_pause_says_by_whom_without_being_told(database: str) -> None:
    awa("queue", "pause", "email", url=database)
    assert awa("queue", "list", "--json", url=database).json[0]["paused_by"]


def test_an_impossible_queue_is_wrong_usage(database: str) -> None:
    assert awa("queue", "pause", "", url=database).status == 2


def test_jobs_are_counted_by_queue_and_state(database: str) -> None:
    inserted(database, 3)
    (counted,) = awa("queue", "stats", "--json", url=database).json
    assert (counted["queue"], counted["available"], counted["failed"]) == ("default", 3, 0)
    assert "default" in awa("queue", "stats", url=database).out


def test_nobody_leads_is_1(database: str) -> None:
    shown = awa("leader", "show", url=database)
    assert (shown.status, shown.out) == (1, "nobody leads\n")
    assert awa("leader", "show", "--json", url=database).json is None
    resigned = awa("leader", "resign", url=database)
    assert (resigned.status, resigned.out) == (1, "nobody leads\n")


def test_a_reader_that_goes_away_is_no_error(database: str) -> None:
    """As `awa-actors job list | head -1` does."""
    inserted(database, 2_000)
    listing = subprocess.Popen(
        [sys.executable, "-m", "awa_actors", "job", "list", "--limit", "10000"],
        env=clean_environment(DATABASE_URL=database),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.readline()
        listing.stdout.close()
        assert listing.stderr.read() == b""
