"""The log of real runs: what workers, maintenance and operators did is what the machines can do; nothing else is."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from at_work import becomes, working
from postgres_servers import Server

import awa_actors as awa
from awa_actors.errors import StoreError
from awa_actors.jobs import CallbackToken, JobState
from awa_actors.store import jobs
from awa_actors.store.trace import VARIABLE, logger
from model.replay import NotAllowed, replay

Lines = list[dict[str, Any]]
QUICK = awa.MaintenanceSettings(rescue_interval=0.05, deadline_margin=0.05, hygiene_interval=0.05, ring_turn=0.05)


@attrs.frozen
class Deed:
    """Args of a job whose first attempt ends as it says; a later one just ends."""

    how: str = "complete"


@attrs.frozen(eq=False)
class Doer:
    """A registry for deeds, and what its handlers left behind for the test."""

    registry: awa.Registry = attrs.field(factory=awa.Registry)
    tokens: dict[str, CallbackToken] = attrs.field(factory=dict)
    endless: trio.Event = attrs.field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        """Register the one handler."""
        self.registry.worker(Deed)(self.do)

    async def do(self, job: awa.Job[Deed]) -> awa.Verdict:
        """End as the args say."""
        match job.args.how if job.run_lease == 1 else "complete":
            case "park" | "resume" | "inside" as how:
                self.tokens[how] = token = await job.register_callback(expires_in=60)
                if how != "inside":
                    return awa.WaitForCallback(token)
                await job.wait_for_callback(token)
            case "endless":
                self.endless.set()
                await trio.sleep_forever()
            case "dead":
                raise awa.TerminalError("no")
            case "retry":
                return awa.RetryAfter(0.01)
            case "snooze":
                return awa.Snooze(0.01)
            case "cancel":
                return awa.Cancel("enough")
        return None


@contextmanager
def logged(path: Path) -> Iterator[Callable[[], Lines]]:
    """Log to a file; gives what is in it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(path))
        yield lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True
    logger.setLevel(logging.INFO)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Callable[[], Lines]]:
    """The log of what the test does."""
    with logged(tmp_path / "run.jsonl") as lines:
        yield lines


def texts(lines: Lines) -> list[str]:
    return [json.dumps(line) for line in lines]


@asynccontextmanager
async def everything(database: str) -> AsyncIterator[tuple[awa.Client, awa.Worker]]:
    """One run in which nearly every step happens."""
    doer = Doer()
    async with working(database, doer.registry, maintenance=QUICK) as (client, worker):
        await client.admin.dead_letters.set_policy("default", enabled=True)
        hows = ("complete", "retry", "snooze", "cancel", "park", "resume", "inside", "dead")
        made = {how: (await client.insert(Deed(how))).id for how in hows}
        made["late"] = (await client.insert(Deed(), awa.InsertOpts(run_at=dt.timedelta(milliseconds=20)))).id
        made["never"] = (await client.insert(Deed(), awa.InsertOpts(run_at=dt.timedelta(hours=1)))).id
        made["overdue"] = (await client.insert(Deed("endless"), awa.InsertOpts(deadline=0.05))).id
        for how in ("park", "resume", "inside"):
            await becomes(client, made[how], JobState.WAITING_EXTERNAL)
        await client.complete_external(doer.tokens["park"].callback_id)
        await client.resume_external(doer.tokens["resume"].callback_id)
        await client.resume_external(doer.tokens["inside"].callback_id)
        await client.admin.cancel(made["never"])
        await becomes(client, made["cancel"], JobState.CANCELLED)
        await client.admin.retry(made["cancel"])
        await becomes(client, made["dead"], JobState.FAILED)
        await client.admin.dead_letters.retry(made["dead"])
        for name in made.keys() - {"never", "overdue"}:
            await becomes(client, made[name], JobState.COMPLETED)
        await doer.endless.wait()
        await becomes(client, made["overdue"], JobState.RETRYABLE)
        yield client, worker


@pytest.fixture(scope="module")
def steps(session_server: Server, migrated_template: str, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """The log of that run, in the order of the database."""

    async def run() -> None:
        async with everything(url):
            pass

    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    with session_server.fresh_database(migrated_template) as url, logged(path) as log:
        trio.run(run)
        return sorted(log(), key=lambda line: line.get("t", ""))


def test_a_run_in_which_everything_happens_is_accepted(steps: Lines) -> None:
    assert len(replay(texts(steps)).jobs) == 11
    assert {line["by"] for line in steps} >= {
        *("start", "claim", "complete", "retry", "snooze", "cancel", "park", "await", "resolve", "fail", "promote"),
        *("admin_cancel", "admin_retry", "elected", "turn", "stop"),
    }


def test_a_step_that_is_left_out_of_a_life_is_missed(steps: Lines) -> None:
    lines = sorted(steps, key=lambda line: line.get("t", ""))  # each process writes a step when its answer is there
    waits = {line["job_id"] for line in lines if line["by"] == "await"}
    last = {line["job_id"]: number for number, line in enumerate(lines) if "job_id" in line}
    tried = 0
    for number, line in enumerate(lines):
        if line.get("job_id") in {None, *waits} or number in last.values():
            continue
        if (line["by"], line["run_lease"]) != ("promote", 0):  # a job may be inserted as available, by somebody silent
            tried += 1
            with pytest.raises(NotAllowed, match=f"job {line['job_id']} |run_lease of job {line['job_id']} "):
                replay(texts(lines[:number] + lines[number + 1 :]))
    assert tried > 15


@pytest.mark.parametrize(
    ("by", "doctored", "reason"),
    [
        ("complete", {"to": "retryable"}, "complete does not lead from running to retryable"),
        ("complete", {"run_lease": 7}, "run_lease of job"),
        ("complete", {"instance": "another"}, "the attempt of job"),
        ("claim", {"run_lease": 0}, "no beginning"),
        ("promote", {"from": "retryable", "to": "running"}, "promote does not lead"),
        ("resolve", {"from": "available"}, "resolve does not lead"),
        ("turn", {"to": 0, "from": 0}, "turns to the slot that it is at"),
    ],
)
def test_a_doctored_step_is_named(steps: Lines, by: str, doctored: dict[str, Any], reason: str) -> None:
    lines = list(steps)
    number = max(number for number, line in enumerate(lines) if line["by"] == by)
    if by == "claim":
        number = min(number for number, line in enumerate(lines) if line["by"] == by)
    lines[number] = {**lines[number], **doctored}
    with pytest.raises(NotAllowed, match=f"line {number + 1}: .*{reason}"):
        replay(texts(lines))


def test_what_happens_twice_is_named(steps: Lines) -> None:
    for by, reason in (("complete", "is completed, not running"), ("claim", "not available"), ("elected", "does not")):
        again = next(line for line in steps if line["by"] == by)
        with pytest.raises(NotAllowed, match=reason):
            replay(texts([*steps, {**again, "t": max(line.get("t", "") for line in steps)}]))


def test_the_slot_that_a_ring_writes_to_is_not_truncated(steps: Lines) -> None:
    turned = [line for line in steps if line["by"] == "turn"][-1]
    truncated = {**turned, "by": "truncate", "slot": turned["to"]}
    with pytest.raises(NotAllowed, match="is the one that"):
        replay(texts([*steps, truncated]))


def test_only_what_a_killed_process_did_may_be_missing(steps: Lines) -> None:
    claim = next(line for line in steps if line["by"] == "claim")
    without = [line for line in steps if line is not claim]
    assert replay(texts([line for line in without if line["by"] != "stop"])).steps
    # Somebody else was killed, and this process ended in order.
    other = {"by": "start", "process": "other", "database": "db"}
    with pytest.raises(NotAllowed, match="no beginning"):
        replay(texts([other, *without]))


async def test_nothing_is_logged_unless_it_is_asked_for(database: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "awa_actors")
    async with working(database, Doer().registry) as (client, _):
        await becomes(client, (await client.insert(Deed())).id, JobState.COMPLETED)
        async with client.pool.acquire() as session:
            assert session.log is None
    assert not [record for record in caplog.records if record.name == logger.name]


async def test_what_is_rolled_back_is_not_logged(database: str, log: Callable[[], Lines]) -> None:
    async with awa.open_client(database) as client:
        job = await client.insert(Deed())
        with suppress(ZeroDivisionError):
            async with client.transaction() as tx:
                await tx.cancel(job.id)
                raise ZeroDivisionError
        assert {line["by"] for line in log()} == {"start"}
        async with client.transaction() as tx:
            await tx.cancel(job.id)
            assert {line["by"] for line in log()} == {"start"}
    assert [line["by"] for line in log()] == ["start", "admin_cancel", "stop"]


async def test_a_lost_answer_to_a_commit_is_said(database: str, log: Callable[[], Lines]) -> None:
    async with awa.open_client(database) as client:
        job = await client.insert(Deed())
        with suppress(StoreError):
            async with client.pool.acquire() as session, session.transaction():
                await jobs.cancel(session, job.id, "enough")
                session.raw.terminate()
        await client.admin.cancel(job.id)
        await client.admin.retry(job.id)
    lines = log()
    assert [line["by"] for line in lines] == ["start", "unseen", "admin_cancel", "admin_retry", "stop"]
    assert lines[1]["steps"] == ["admin_cancel"]
    assert replay(texts([line for line in lines if line["by"] != "admin_cancel"])).steps == 1
    with pytest.raises(NotAllowed, match="no beginning"):
        replay(texts([line for line in lines if line["by"] not in ("admin_cancel", "unseen")]))
