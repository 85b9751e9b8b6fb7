"""The other commands of this side, as an operator types them."""

import pytest
import trio
from command_line import awa, one_line
from failing_jobs import Payment, failed, failing
from jobs_at_hand import inserted
from queue_plane import open_plane

import awa_actors


def one_failed(database: str) -> int:
    registry = awa_actors.Registry()
    failing(registry)

    async def fail() -> int:
        async with awa_actors.open_client(database, registry=registry) as client:
            return await failed(client, Payment(3))

    return trio.run(fail)


def test_a_job_and_its_runs_are_dumped_as_json(database: str) -> None:
    job = str(one_failed(database))
    dump = awa("job", "dump", job, url=database).json
    assert (dump["job"]["state"], dump["summary"]["error_count"]) == ("failed", 1)
    assert awa("job", "dump-run", job, "--attempt", "1", url=database).json["outcome"] == "failed"
    answer = awa("job", "dump-run", job, "--attempt", "2", url=database)
    assert answer.status == 1
    one_line(answer.err, "nothing is known of attempt 2")


def test_what_happened_to_a_job_is_shown_in_the_order_it_happened(database: str) -> None:
    lines = awa("job", "show", str(one_failed(database)), url=database).out.splitlines()
    happened = [line[20:].strip() for line in lines if line[19:22] == "Z  "]
    assert [what.partition(" by ")[0] for what in happened] == ["inserted", "attempt 1 started", "attempt 1 failed"]


def test_attempts_that_were_not_counted_are_shown_with_their_number_and_reason(database: str) -> None:
    plane = open_plane(database)
    job = plane.job()
    for _ in range(2):
        plane.end(plane.take(job), state="scheduled", delay=0, uncount=True, snooze=True)
        plane.promote()
    plane.end(plane.take(job), state="available", uncount=True, ended_as="given_back", why="unknown here")
    plane.close()
    lines = awa("job", "show", str(job), url=database).out.splitlines()
    happened = [line[20:].strip() for line in lines if line[19:22] == "Z  "]
    assert [what.partition(" by ")[0] for what in happened] == [
        "inserted", "attempt 1 started", "attempt 1 snoozed 2 times", "attempt 1 started",
        "attempt 1 given_back: unknown here",
    ]  # fmt: skip
    assert not any(line.startswith("past ") for line in lines)


def test_failed_jobs_run_again(database: str) -> None:
    one_failed(database)
    assert awa("job", "retry-failed", "--kind", "other", url=database).out == "0 retried\n"
    assert awa("job", "retry-failed", "--kind", "payment", url=database).out == "1 retried\n"
    assert awa("job", "retry-failed", url=database).status == 2


def test_failed_jobs_are_discarded(database: str) -> None:
    one_failed(database)
    assert awa("job", "discard", "--kind", "payment", "--json", url=database).json == {"discarded": 1}
    assert awa("job", "discard", url=database).status == 2


def test_a_job_is_cancelled_by_its_key(database: str) -> None:
    (job,) = inserted(database, 1, awa_actors.InsertOpts(unique=awa_actors.UniqueOpts()))
    by_key = ("job", "cancel-by-key", "--kind", "errand", "--args", '{"n": 0}')
    assert awa(*by_key, url=database).out == f"job {job}: cancelled\n"
    assert awa(*by_key, url=database).status == 1
    assert awa("job", "cancel-by-key", "--kind", "errand", "--args", "{", url=database).status == 2


def test_a_queue_is_drained(database: str) -> None:
    inserted(database, 3)
    assert awa("queue", "drain", "default", url=database).out == "3 cancelled\n"
    assert awa("queue", "drain", "default", "--json", url=database).json == {"cancelled": 0, "refused": {}}


def test_overrides_are_set_shown_and_cleared(database: str) -> None:
    answer = awa("queue", "overrides", "set", "mail", "--rate-limit", "5", "--json", url=database)
    assert (answer.json["queue"], answer.json["rate_limit"], answer.json["deadline"]) == ("mail", 5.0, None)
    assert "rate limit" in awa("queue", "overrides", "show", "mail", url=database).out
    assert "again" in awa("queue", "overrides", "clear", "mail", url=database).out
    assert awa("queue", "overrides", "show", "mail", "--json", url=database).json["rate_limit"] is None


@pytest.mark.parametrize("wrong", [(), ("--deadline", "0")])
def test_an_override_of_nothing_or_to_nothing_is_wrong_usage(database: str, wrong: tuple[str, ...]) -> None:
    assert awa("queue", "overrides", "set", "mail", *wrong, url=database).status == 2


def test_jobs_are_listed_by_time(database: str) -> None:
    (job,) = inserted(database)
    listed = awa("job", "list", "--json", "--since", "2020-01-01T00:00Z", url=database).json
    assert [one["id"] for one in listed] == [job]
    assert awa("job", "list", "--json", "--until", "2020-01-01T00:00Z", url=database).json == []
    assert awa("job", "list", "--since", "yesterday", url=database).status == 2
