"""The dlq commands, as an operator types them."""

import pytest
import trio
from command_line import awa, one_line
from failing_jobs import Payment, failed, failing

import awa_actors


@pytest.fixture
def letters(database: str) -> list[int]:
    """Ids of three dead letters; the unique key of the first is taken by a newer job."""
    registry = awa_actors.Registry()
    failing(registry)
    key = awa_actors.InsertOpts(unique=awa_actors.UniqueOpts(key="one"))

    async def die() -> list[int]:
        async with awa_actors.open_client(database, registry=registry) as client:
            await client.admin.dead_letters.set_policy("default", enabled=True)
            first = await failed(client, opts=key)
            rest = [await failed(client, Payment(n)) for n in (1, 2)]
            await client.insert(Payment(), key)
            return [first, *rest]

    return trio.run(die)


def test_letters_are_listed_counted_and_shown(database: str, letters: list[int]) -> None:
    listed = awa("dlq", "list", "--json", "--limit", "2", url=database).json
    assert [(one["id"], one["dlq_reason"]) for one in listed] == [
        (letters[2], "terminal_error"),
        (letters[1], "terminal_error"),
    ]
    page = ("--before-at", listed[-1]["dlq_at"], "--before-id", str(letters[1]))
    assert [one["id"] for one in awa("dlq", "list", "--json", *page, url=database).json] == [letters[0]]
    assert awa("dlq", "depth", url=database).out.splitlines()[1].split()[:2] == ["default", "3"]
    assert "card refused" in awa("dlq", "show", str(letters[0]), url=database).out
    assert awa("dlq", "list", "--kind", "nothing", url=database).out == "no dead letter\n"


def test_half_a_cursor_is_wrong_usage(database: str) -> None:
    assert awa("dlq", "list", "--before-id", "3", url=database).status == 2


def test_what_cannot_be_retried_is_told_and_is_1(database: str, letters: list[int]) -> None:
    answer = awa("dlq", "retry", str(letters[0]), str(letters[1]), "999", "--to-queue", "again", url=database)
    assert answer.status == 1
    first, second, third = answer.out.splitlines()
    assert "holds the unique key" in first
    assert second == f"job {letters[1]}: retried"
    assert third == "job 999: not retried: job 999 is no dead letter (any more)"


def test_a_bulk_retry_counts_both_and_is_1_when_some_stay(database: str, letters: list[int]) -> None:
    answer = awa("dlq", "retry-bulk", "--json", "--kind", "payment", url=database)
    assert (answer.status, answer.json["retried"], answer.json["refused"]) == (1, 2, 1)
    assert list(answer.json["reasons"]) == [str(letters[0])]


@pytest.mark.parametrize("verb", ["retry-bulk", "move", "purge"])
def test_everything_must_be_meant(database: str, letters: list[int], verb: str) -> None:
    answer = awa("dlq", verb, url=database)
    assert answer.status == 2
    one_line(answer.err, "--all")
    assert awa("dlq", "depth", "--json", url=database).json[0]["letters"] == 3


def test_letters_are_purged_and_failed_jobs_moved(database: str, letters: list[int]) -> None:
    assert awa("dlq", "purge", "--all", url=database).out == "3 purged\n"
    assert awa("dlq", "move", "--queue", "default", url=database).out == "0 moved\n"
