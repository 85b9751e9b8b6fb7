import copy
import datetime as dt
import sys
from typing import Any

import attrs
import orjson
import pytest
from follow_up_jobs import NOW, Notice, Signup, Welcome, completed, row

import awa_actors as awa
from awa_actors.actors.outcome_events import claimed_row, event_record, recorded_event
from awa_actors.events import OUTCOME_EVENTS
from awa_actors.jobs import JobState
from awa_actors.store.claim import Claimed
from awa_actors.store.follow_up_plan import Planned, SpecFailed, plan


def planned(registry: awa.Registry, event: Any = None) -> Any:
    return plan(registry, "completed", completed() if event is None else event)


def test_each_spec_makes_one_job_in_registration_order() -> None:
    registry = awa.Registry()
    registry.on_completed_enqueue(Signup)(lambda event: Welcome(event.args.user_id))
    registry.on_completed_enqueue(Signup)(lambda event: Notice("second"))
    registry.on_retried_enqueue(Signup)(lambda event: Notice("not this one"))
    answer = planned(registry)
    assert isinstance(answer, Planned)
    assert [(job.kind, job.queue, job.args) for job in answer.jobs] == [
        ("send_welcome", "email", '{"user_id":1}'),
        ("notice", "ops", '{"text":"second"}'),
    ]


def test_every_option_reaches_the_job() -> None:
    registry = awa.Registry()
    opts = awa.InsertOpts(
        queue="fast", priority=1, max_attempts=3, run_at=dt.timedelta(minutes=5), deadline=2.5, metadata={"a": 1},
        tags=["x"], unique=awa.UniqueOpts(key="k"), ordering_key="o",
    )  # fmt: skip
    registry.on_completed_enqueue(Signup)(lambda event: awa.Enqueue(Welcome(1), opts))
    (job,) = planned(registry).jobs
    assert (job.queue, job.priority, job.max_attempts) == ("fast", 1, 3)
    options = orjson.loads(job.options)
    assert options.pop("metadata") == {"a": 1, "awa:follow_up_depth": 1, "awa:follow_up_of": 7}
    assert options["delay"] == 300.0
    assert options["deadline_ms"] == 2500
    assert options["tags"] == ["x"]
    assert options["ordering_key"] == b"o".hex()


def test_a_taken_unique_key_is_not_an_error_unless_the_options_say_so() -> None:
    registry = awa.Registry()
    raises = awa.UniqueOpts(on_conflict=awa.OnConflict.RAISE)
    mild = awa.UniqueOpts()
    registry.on_completed_enqueue(Signup)(lambda event: awa.Enqueue(Welcome(1), awa.InsertOpts(unique=mild)))
    registry.on_completed_enqueue(Signup)(lambda event: awa.Enqueue(Welcome(2), awa.InsertOpts(unique=raises)))
    policies = [job.on_conflict for job in planned(registry).jobs]
    assert policies == [awa.OnConflict.RETURN_EXISTING, awa.OnConflict.RAISE]


async def late(event: Any) -> Welcome:
    return Welcome(1)


def leaves(event: Any) -> Welcome:
    sys.exit(3)


@pytest.mark.parametrize(
    ("closure", "words"),
    [
        (lambda event: 1 / 0, "ZeroDivisionError"),
        (lambda event: None, "returned None"),
        (lambda event: "text", "attrs or dataclass"),
        (lambda event: late(event), "async"),
        (leaves, "SystemExit"),
        (lambda event: Notice("\0"), "NUL"),
        (lambda event: awa.Enqueue(Welcome(1), awa.InsertOpts(priority=9)), "priority"),
    ],
)
def test_whatever_a_closure_does_the_answer_is_a_value(closure: Any, words: str) -> None:
    registry = awa.Registry()
    registry.on_completed_enqueue(Signup)(closure)
    answer = planned(registry)
    assert isinstance(answer, SpecFailed)
    assert words in answer.error
    assert not answer.final


def test_ctrl_c_gets_through() -> None:
    registry = awa.Registry()

    def interrupted(event: Any) -> Welcome:
        raise KeyboardInterrupt

    registry.on_completed_enqueue(Signup)(interrupted)
    with pytest.raises(KeyboardInterrupt):
        planned(registry)


def test_a_chain_of_follow_ups_ends_at_the_bound() -> None:
    registry = awa.Registry(max_follow_up_depth=3)
    registry.on_completed_enqueue(Signup)(lambda event: Signup(1))
    (job,) = planned(registry, completed(metadata={"awa:follow_up_depth": 2})).jobs
    assert orjson.loads(job.options)["metadata"]["awa:follow_up_depth"] == 3
    answer = planned(registry, completed(metadata={"awa:follow_up_depth": 3}))
    assert isinstance(answer, SpecFailed)
    assert answer.final
    assert "depth 3" in answer.error


def test_nonsense_in_the_depth_counter_is_a_failure_and_not_a_crash() -> None:
    registry = awa.Registry()
    registry.on_completed_enqueue(Signup)(lambda event: Welcome(1))
    assert isinstance(planned(registry, completed(metadata={"awa:follow_up_depth": "x"})), SpecFailed)


CONTEXT: dict[str, dict[str, Any]] = {
    "completed": {"duration": 0.25},
    "retried": {"error": "e", "attempt": 2, "next_run_at": NOW},
    "exhausted": {"error": "e", "attempt": 2},
    "cancelled": {"reason": "r"},
    "waiting_for_callback": {"callback_id": "c"},
    "rescued": {"reason": "stale_instance"},
}


@pytest.mark.parametrize("outcome", OUTCOME_EVENTS)
def test_a_recorded_event_reads_back_as_it_was(outcome: str) -> None:
    job = row(
        state=JobState.FAILED, metadata={"m": 1}, tags=("t",), errors=({"error": "e"},), unique_key=b"\x01\xff",
        deadline=dt.timedelta(seconds=1.5), deadline_at=NOW, attempted_at=NOW, finalized_at=NOW,
        progress={"percent": 5},
    )  # fmt: skip
    event = OUTCOME_EVENTS[outcome](job=job, args=Signup(1), **CONTEXT[outcome])
    record = orjson.loads(orjson.dumps(event_record(event)))
    assert recorded_event(record, Signup) == event


def test_a_row_that_is_filled_late_is_a_row_like_any_other() -> None:
    claimed = Claimed(7, 1, 0, 1, 25, 2, "signup", '{"user_id":1}', NOW, None, None, None)
    late = claimed_row(claimed, "signup", JobState.COMPLETED, NOW)
    whole = row(finalized_at=NOW)
    assert (late.id, late.kind, late.metadata) == (7, "signup", {})
    assert late == whole
    assert whole == claimed_row(claimed, "signup", JobState.COMPLETED, NOW)
    assert repr(claimed_row(claimed, "signup", JobState.COMPLETED, NOW)) == repr(whole)
    assert isinstance(late, awa.JobRow)
    evolved = attrs.evolve(claimed_row(claimed, "signup", JobState.COMPLETED, NOW), id=8)
    assert evolved == attrs.evolve(whole, id=8)
    assert copy.deepcopy(claimed_row(claimed, "signup", JobState.COMPLETED, NOW)) == whole
    with pytest.raises(AttributeError):
        late.nothing  # type: ignore[attr-defined]  # noqa: B018 - the point
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        late.id = 9  # type: ignore[misc]  # the point
