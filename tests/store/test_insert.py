"""What an insert takes and what it refuses, before anything is sent."""

import dataclasses
import datetime as dt
import math
from typing import Any, ClassVar

import attrs
import orjson
import pytest

import awa_actors as awa
from awa_actors.core.unique import unique_key
from awa_actors.errors import UsageError, ValidationError
from awa_actors.store.insert import (
    CHUNK_CHARACTERS,
    CHUNK_JOBS,
    INSERT_JOBS,
    INSERT_JOBS_OR_CONFLICT,
    INSERT_ONE,
    NewJob,
    admit,
    admit_many,
    call,
    chunks,
    inserted,
    parameters,
    statement,
)


@attrs.frozen
class Signup:
    queue: ClassVar[str] = "signup"
    user_id: Any = None


@dataclasses.dataclass
class SendWelcome:
    to: str


def options(**given: Any) -> Any:
    """The options of a job as they are sent."""
    return orjson.loads(admit(Signup(), awa.InsertOpts(**given)).options or "{}")


def unique(**given: Any) -> awa.InsertOpts:
    return awa.InsertOpts(unique=awa.UniqueOpts(**given))


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("a\x00b", "$.user_id"),
        ({"deep": ["ok", {"x": "a\x00b"}]}, "$.user_id.deep[1].x"),
        ({"a\x00b": 1}, "$.user_id"),
        ("\ud800", "$.user_id"),
        ({"\udfff": 1}, "$.user_id"),
        (math.nan, "$.user_id"),
        ([1.0, math.inf], "$.user_id[1]"),
        ({"x": -math.inf}, "$.user_id.x"),
        (2**64, "$.user_id"),
        (-(2**63) - 1, "$.user_id"),
        (10**5000, "$.user_id"),
        (1j, "$.user_id"),
        (object(), "$.user_id"),
        (nested(254), "$.user_id[0][0]"),
        (nested(2_000), "$"),
        (CYCLE, "$"),
        ("x" * 1_048_576, "$"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_args_that_cannot_be_stored_are_refused_with_the_path_of_the_culprit(value: Any, path: str) -> None:
    with pytest.raises(ValidationError) as raised:
        admit(Signup(user_id=value))
    assert raised.value.path == path
    assert len(str(raised.value)) < 300
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "value", [None, 2**64 - 1, -(2**63), 1e308, "ü😀\\u0000", {"": [None, True]}, nested(200), "x" * 1_000_000]
)
def test_args_that_can_be_stored_are_stored_as_they_are(value: Any) -> None:
    assert orjson.loads(admit(Signup(user_id=value)).args) == {"user_id": value}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"queue": ""}, "$.queue"),
        ({"queue": " "}, "$.queue"),
        ({"queue": "ü" * 101}, "$.queue"),
        ({"queue": 7}, "$.queue"),
        ({"priority": 0}, "$.priority"),
        ({"priority": 5}, "$.priority"),
        ({"priority": True}, "$.priority"),
        ({"max_attempts": 0}, "$.max_attempts"),
        ({"max_attempts": 1001}, "$.max_attempts"),
        ({"run_at": dt.datetime(2026, 1, 1)}, "$.run_at"),  # noqa: DTZ001  what is refused
        ({"run_at": "2026-01-01T00:00:00Z"}, "$.run_at"),
        ({"run_at": dt.timedelta(seconds=-1)}, "$.run_at"),
        ({"deadline": 0}, "$.deadline"),
        ({"deadline": 0.0009}, "$.deadline"),
        ({"deadline": math.nan}, "$.deadline"),
        ({"deadline": "60"}, "$.deadline"),
        ({"metadata": {"awa:x": 1}}, "$.metadata"),
        ({"metadata": [1]}, "$.metadata"),
        ({"metadata": {"x": "\x00"}}, "$.metadata.x"),
        ({"metadata": {"x": math.nan}}, "$.metadata.x"),
        ({"tags": "urgent"}, "$.tags"),
        ({"tags": ["ok", ""]}, "$.tags[1]"),
        ({"tags": [str(n) for n in range(21)]}, "$.tags"),
        ({"ordering_key": ""}, "$.ordering_key"),
        ({"unique": True}, "$.unique"),
        ({"unique": awa.UniqueOpts(key="")}, "$.unique.key"),
        ({"unique": awa.UniqueOpts(key=b"")}, "$.unique.key"),
        ({"unique": awa.UniqueOpts(key=b"x" * 201)}, "$.unique.key"),
        ({"unique": awa.UniqueOpts(key="\ud800")}, "$.unique.key"),
        ({"unique": awa.UniqueOpts(key=7)}, "$.unique.key"),  # type: ignore[arg-type]  # what is refused
        ({"unique": awa.UniqueOpts(by_period=2**63)}, "$.unique.by_period"),
        ({"unique": awa.UniqueOpts(by_period=12.0)}, "$.unique.by_period"),  # type: ignore[arg-type]  # what is refused
        ({"unique": awa.UniqueOpts(states=frozenset())}, "$.unique.states"),
        ({"unique": awa.UniqueOpts(states="available")}, "$.unique.states"),  # type: ignore[arg-type]  # what is refused
        ({"unique": awa.UniqueOpts(states=frozenset({awa.JobState.RUNNING}))}, "$.unique.states"),
        (
            {"unique": awa.UniqueOpts(states=frozenset({awa.JobState.AVAILABLE})), "run_at": dt.timedelta(seconds=1)},
            "$.unique.states",
        ),
        ({"unique": awa.UniqueOpts(on_conflict="skip")}, "$.unique.on_conflict"),  # type: ignore[arg-type]  # refused
    ],
    ids=repr,
)
def test_options_that_mean_nothing_are_refused_by_name(given: dict[str, Any], path: str) -> None:
    with pytest.raises(ValidationError) as raised:
        admit(Signup(user_id=1), awa.InsertOpts(**given))
    assert raised.value.path == path


@pytest.mark.parametrize("args", [{"user_id": 1}, None, "signup", Signup, 7])
def test_only_instances_of_args_classes_are_jobs(args: Any) -> None:
    with pytest.raises(UsageError):
        admit(args)


def test_options_are_a_class_of_ours() -> None:
    with pytest.raises(UsageError, match=r"options are an awa\.InsertOpts, not \{'queue': 'x'\}"):
        admit(Signup(), {"queue": "x"})  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize("name", ["kind", "queue"], ids=["kind", "queue"])
@pytest.mark.parametrize("value", [" ", "x" * 201, "a\x00", 7])
def test_a_class_whose_kind_or_queue_cannot_be_stored_is_refused(name: str, value: Any) -> None:
    declared = attrs.make_class("Declared", {})
    setattr(declared, name, value)
    with pytest.raises(ValidationError) as raised:
        admit(declared())
    assert raised.value.path == f"$.{name}"


def test_without_options_a_job_is_what_its_class_declares() -> None:
    assert admit(Signup(user_id=1)) == NewJob("signup", "signup", '{"user_id":1}', 2, 25, None)
    assert admit(SendWelcome(to="a"), awa.InsertOpts()) == NewJob("send_welcome", "default", '{"to":"a"}', 2, 25, None)


def test_options_travel_only_where_they_differ() -> None:
    plain = admit(Signup(), awa.InsertOpts(queue="vip", priority=1, max_attempts=3))
    assert (plain.queue, plain.priority, plain.max_attempts, plain.options) == ("vip", 1, 3, None)
    assert options(run_at=dt.datetime(2026, 5, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))) == {
        "run_at": "2026-05-01T00:00:00+00:00"
    }
    assert options(run_at=dt.timedelta(minutes=1)) == {"delay": 60.0}
    assert options(deadline=1.5) == options(deadline=dt.timedelta(seconds=1.5)) == {"deadline_ms": 1500}
    assert options(metadata={"a": None}, tags=("x", "y")) == {"metadata": {"a": None}, "tags": ["x", "y"]}
    assert options(ordering_key="ü") == {"ordering_key": "c3bc"}


def test_the_runtimes_own_metadata_goes_beside_the_users() -> None:
    job = admit(Signup(), awa.InsertOpts(metadata={"tenant": 1}), reserved={"awa:depth": 2})
    assert orjson.loads(job.options or "") == {"metadata": {"tenant": 1, "awa:depth": 2}}


def test_a_unique_key_is_derived_from_what_was_chosen_or_is_the_users_own() -> None:
    sent = options(unique=awa.UniqueOpts())
    assert sent == {
        "unique_key": unique_key("signup", args={"user_id": None}).hex(),
        "unique_states": "11111001",
        "on_conflict": "raise",
    }
    assert options(unique=awa.UniqueOpts(key="ü"))["unique_key"] == "c3bc"
    assert options(unique=awa.UniqueOpts(key=b"\x00" * 200))["unique_key"] == "00" * 200
    chosen = awa.UniqueOpts(by_queue=True, by_args=False, by_period=1000)
    assert options(unique=chosen, queue="q")["unique_key"] == unique_key("signup", queue="q", period=1000).hex()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {"a": 1}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1.0}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": None}, {}, False),
    ],
)
def test_args_are_compared_whole_and_as_written(one: Any, other: Any, same: bool) -> None:
    keys = [options_of(Signup(user_id=value))["unique_key"] for value in (one, other)]
    assert (keys[0] == keys[1]) is same


def options_of(args: Any) -> Any:
    return orjson.loads(admit(args, unique()).options or "")


def test_the_policy_of_the_options_wins_over_the_callers_default() -> None:
    default = admit(Signup(), unique(), on_conflict=awa.OnConflict.RETURN_EXISTING)
    chosen = admit(Signup(), unique(on_conflict=awa.OnConflict.RAISE), on_conflict=awa.OnConflict.RETURN_EXISTING)
    assert (default.on_conflict, chosen.on_conflict) == (awa.OnConflict.RETURN_EXISTING, awa.OnConflict.RAISE)
    assert admit(Signup()).on_conflict is None


def test_one_bad_job_of_a_batch_is_named_by_its_index() -> None:
    jobs = [Signup(user_id=n) for n in range(5)]
    with pytest.raises(ValidationError, match=r"^\$\[5\]\.user_id: nan is not JSON"):
        admit_many([*jobs, Signup(user_id=math.nan), *jobs])
    with pytest.raises(ValidationError, match=r"^\$\[0\]\.priority: must be an integer"):
        admit_many(jobs, awa.InsertOpts(priority=9))
    with pytest.raises(UsageError, match=r"^job 5: job args must be"):
        admit_many([*jobs, {"user_id": 5}])


def test_a_batch_is_an_iterable_of_any_kind() -> None:
    assert [job.args for job in admit_many(Signup(user_id=n) for n in range(3))] == [
        f'{{"user_id":{n}}}' for n in range(3)
    ]
    with pytest.raises(UsageError, match="one job goes through insert"):
        admit_many(Signup())  # type: ignore[arg-type]  # what is refused


def test_only_jobs_that_may_conflict_pay_for_the_subtransaction() -> None:
    plain, existing = admit(Signup()), admit(Signup(), unique(on_conflict=awa.OnConflict.RETURN_EXISTING))
    assert statement([plain]) == statement([existing]) == INSERT_ONE
    assert statement([plain, existing]) == INSERT_JOBS
    assert statement([plain, existing, admit(Signup(), unique())]) == INSERT_JOBS_OR_CONFLICT
    assert statement([admit(Signup(), unique())]) == INSERT_JOBS_OR_CONFLICT


def test_what_all_jobs_share_is_sent_once() -> None:
    same = parameters(admit_many([Signup(user_id=1), Signup(user_id=2)]))
    assert same == (r'{"{\"user_id\":1}","{\"user_id\":2}"}', ["signup"], ["signup"], [2], [25], None)
    mixed = parameters([admit(Signup()), admit(SendWelcome(to="a"), awa.InsertOpts(tags=["x"], priority=1))])
    assert mixed[1:] == (
        ["signup", "send_welcome"],
        ["signup", "default"],
        [2, 1],
        [25],
        r'{"{}","{\"tags\":[\"x\"]}"}',
    )


def test_long_args_go_to_the_runtimes_driver_as_lists_and_short_ones_as_text() -> None:
    short, long = [admit(Signup(user_id=1))] * 2, [admit(Signup(user_id="x" * 200))] * 2
    assert call(short) == (INSERT_JOBS, parameters(short))
    sql, values = call(long)
    assert sql == INSERT_JOBS.replace("::pg_catalog.text::", "::")
    assert values == ([job.args for job in long], *parameters(long)[1:])
    assert call([admit(Signup(user_id=n), unique()) for n in (1, 2)])[0] == INSERT_JOBS_OR_CONFLICT
    assert "insert_jobs_or_conflict($1::pg_catalog.text[]," in call([*long, admit(Signup(), unique())])[0]
    assert call(long[:1]) == (INSERT_ONE, parameters(long[:1]))


def test_big_batches_take_several_statements_but_unique_jobs_stay_together() -> None:
    plain = [admit(Signup())] * (2 * CHUNK_JOBS + 1)
    assert [len(chunk) for chunk in chunks(plain)] == [CHUNK_JOBS, CHUNK_JOBS, 1]
    assert [len(chunk) for chunk in chunks([*plain, admit(Signup(), unique())])] == [len(plain) + 1]
    assert list(chunks([])) == []


def test_statements_are_bounded_by_size_too() -> None:
    large = admit(Signup(user_id="x" * 100_000))
    assert [len(chunk) for chunk in chunks([large] * 25)] == [10, 10, 5]
    huge = admit(Signup(user_id="x" * 2 * CHUNK_CHARACTERS), limit=10 * CHUNK_CHARACTERS)
    assert [len(chunk) for chunk in chunks([huge, huge, large, huge])] == [1, 1, 1, 1]
    large = admit(Signup(user_id="x" * 1_000_000))
    with pytest.raises(
        UsageError, match=r"^300 jobs with 300,\d+,\d+ characters .* in several calls of one transaction"
    ):
        parameters([large] * 300)


def test_the_answer_is_read_in_order_of_the_jobs() -> None:
    jobs = admit_many([Signup(user_id=1), SendWelcome(to="a")])
    assert inserted(jobs, ([7, 8], None)) == [
        awa.InsertedJob(7, "signup", "signup"),
        awa.InsertedJob(8, "send_welcome", "default"),
    ]
    assert [job.inserted for job in inserted(jobs, ([7, 3], [True, False], None, None))] == [True, False]
    with pytest.raises(awa.UniqueConflict, match="taken") as raised:
        inserted(jobs, (None, None, "taken", 3))
    assert raised.value.existing_job_id == 3
