"""What the demo takes for a success of its schedule and of its change of leader."""

import datetime as dt

import orjson
import pytest

from awa_actors.cli.demo_leadership import Fires, Takeover
from awa_actors.cli.demo_show import Show
from awa_actors.cli.output import write_json
from awa_actors.jobs import JobRow, JobState

NOON = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)


def fire(job_id: int, second: int, state: JobState = JobState.COMPLETED) -> JobRow:
    time = NOON + dt.timedelta(seconds=second)
    return JobRow(
        id=job_id, kind="pulse", queue="pulse", args={}, state=state, priority=2, attempt=1, run_lease=1,
        max_attempts=25, run_at=time, created_at=time, metadata={"cron_fire_time": time.isoformat()},
    )  # fmt: skip


def seen(*rows: JobRow, total: int | None) -> Fires:
    fires = Fires(total=total)
    for row in rows:
        fires.saw(row)
    return fires


def test_a_fire_in_every_second_is_as_expected_once_all_are_known() -> None:
    assert seen(fire(1, 0), fire(2, 1), total=2).as_expected
    assert not seen(fire(1, 0), fire(2, 1), total=3).as_expected
    assert not seen(fire(1, 0), fire(2, 1), total=None).as_expected


def test_a_fire_is_told_once() -> None:
    fires = Fires()
    assert fires.saw(fire(1, 7, JobState.AVAILABLE)) == "fired for 12:00:07: job 1"
    assert fires.saw(fire(1, 7)) is None


def test_a_second_with_two_jobs_is_a_problem_at_once() -> None:
    assert seen(fire(1, 0), fire(2, 0), total=None).problem == "the schedule enqueued two jobs for 12:00:00"


def test_a_second_without_a_job_is_a_problem_when_no_more_can_come() -> None:
    rows = fire(1, 0), fire(2, 2)
    assert seen(*rows, total=3).problem is None
    assert seen(*rows, total=2).problem == "the schedule enqueued no job for 12:00:01"
    assert not seen(*rows, total=2).as_expected


def test_a_fire_whose_job_is_not_done_is_not_as_expected() -> None:
    assert not seen(fire(1, 0), fire(2, 1, JobState.RUNNING), total=2).as_expected


def test_only_fires_for_later_times_count_as_the_successors() -> None:
    assert seen(fire(1, 0), fire(2, 1), fire(3, 2), total=None).after(NOON + dt.timedelta(seconds=0.5)) == 2


@pytest.mark.parametrize(
    ("successor", "term", "expected"),
    [("maintenance 2", 5, True), ("maintenance 2", 4, False), ("maintenance 1", 5, False)],
)
def test_a_takeover_is_another_process_in_a_later_term(successor: str, term: int, expected: bool) -> None:
    takeover = Takeover()
    takeover.led("maintenance 1", 4)
    takeover.killed(NOON)
    assert not takeover.as_expected
    takeover.succeeded(successor, term, 0.5)
    assert takeover.as_expected is expected


def test_the_outcome_is_json_and_not_ok_before_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(fires=seen(fire(1, 0), total=1))
    write_json(show.outcome(1.234))
    answer = orjson.loads(capsys.readouterr().out)
    assert (answer["ok"], answer["seconds"], answer["takeover"]["as_expected"]) == (False, 1.2, False)
    assert answer["schedule"]["fires"] == [{"time": "2030-01-01T12:00:00Z", "id": 1, "state": "completed"}]
    assert show.left().startswith("leader maintenance: nothing yet")
