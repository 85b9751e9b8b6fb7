from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import attrs
import pytest
from follow_up_jobs import Notice, Signup, Welcome

import awa_actors as awa
from awa_actors.events import Completed, Event, Retried


def none(event: Completed[Signup]) -> None: ...
def text(event: Completed[Signup]) -> str:
    return ""


def maybe(event: Completed[Signup]) -> Welcome | None:
    return None


def many(event: Completed[Signup]) -> list[Welcome]:
    return []


def verdict(event: Completed[Signup]) -> awa.Cancel:
    return awa.Cancel()


def awaitable(event: Completed[Signup]) -> Awaitable[Welcome]:
    raise AssertionError


def generator(event: Completed[Signup]) -> Iterator[Welcome]:
    yield Welcome(1)


async def coroutine(event: Completed[Signup]) -> Welcome:
    return Welcome(1)


async def stream(event: Completed[Signup]) -> AsyncIterator[Welcome]:
    yield Welcome(1)


def two(event: Completed[Signup], job: awa.JobRow) -> Welcome:
    return Welcome(1)


def other_event(event: Retried[Signup]) -> Welcome:
    return Welcome(1)


def other_args(event: Completed[Welcome]) -> Welcome:
    return Welcome(1)


class AsyncCallable:
    async def __call__(self, event: Completed[Signup]) -> Welcome:
        return Welcome(1)


@pytest.mark.parametrize(
    ("closure", "words"),
    [
        (none, "not None"),
        (text, "not str"),
        (maybe, "not None"),
        (many, "not list"),
        (verdict, "not Cancel"),
        (awaitable, "not Awaitable"),
        (generator, "plain function"),
        (coroutine, "plain function"),
        (stream, "plain function"),
        (AsyncCallable(), "plain function"),
        (two, "takes one event"),
        ("closure", "cannot be called"),
        (other_event, "gives Completed, but 'other_event' takes Retried"),
        (other_args, "takes events of Welcome, but is registered for Signup"),
    ],
)
def test_a_closure_that_cannot_make_a_job_is_refused_when_it_is_registered(closure: Any, words: str) -> None:
    registry = awa.Registry()
    with pytest.raises(awa.UsageError, match=words):
        registry.on_completed_enqueue(Signup)(closure)
    assert not registry.follow_ups or not any(registry.follow_ups.values())


def test_a_wrong_return_is_found_although_another_annotation_cannot_be_resolved() -> None:
    @attrs.frozen
    class Local:
        n: int

    def wrong(event: "Completed[Local]") -> "None": ...

    with pytest.raises(awa.UsageError, match="not None"):
        awa.Registry().on_completed_enqueue(Local)(wrong)  # type: ignore[type-var]  # the point


def any_event(event: Event[Signup]) -> Welcome | awa.Enqueue[Notice]:
    return Welcome(1)


def unannotated(event):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - people write this
    return Welcome(1)


@pytest.mark.parametrize("closure", [any_event, unannotated, lambda event: Welcome(event.args.user_id)])
def test_a_closure_that_may_make_a_job_is_taken(closure: Callable[[Any], Any]) -> None:
    registry = awa.Registry()
    assert registry.on_completed_enqueue(Signup)(closure) is closure
    assert len(registry.follow_ups["completed", "signup"]) == 1


def test_specs_keep_their_names_when_others_are_added_before_them() -> None:
    def first(event: Completed[Signup]) -> Welcome:
        return Welcome(1)

    def second(event: Completed[Signup]) -> Welcome:
        return Welcome(2)

    old, new = awa.Registry("shop"), awa.Registry("shop")
    old.on_completed_enqueue(Signup)(second)
    new.on_completed_enqueue(Signup)(first)
    new.on_completed_enqueue(Signup)(second)
    assert old.follow_ups["completed", "signup"][0].name == new.follow_ups["completed", "signup"][1].name


def test_two_specs_with_one_closure_name_have_two_names() -> None:
    registry = awa.Registry("shop")
    registry.on_completed_enqueue(Signup)(lambda event: Welcome(1))
    registry.on_completed_enqueue(Signup)(lambda event: Welcome(2))
    assert [spec.name for spec in registry.follow_ups["completed", "signup"]] == ["shop:<lambda>", "shop:<lambda>#2"]


def test_completed_follow_ups_of_a_caller_owned_kind_are_refused_in_either_order() -> None:
    async def charge(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
        raise AssertionError

    registry = awa.Registry()
    registry.worker(Signup, completion=awa.Completion.CALLER_OWNED)(charge)
    with pytest.raises(awa.UsageError, match="insert follow-ups there"):
        registry.on_completed_enqueue(Signup)(lambda event: Welcome(1))
    with pytest.raises(awa.UsageError, match="insert follow-ups there"):
        registry.declare_follow_up("w", kind="signup", outcome="completed", enqueue="send_welcome", args={})

    registry = awa.Registry()
    registry.on_completed_enqueue(Signup)(lambda event: Welcome(1))
    with pytest.raises(awa.UsageError, match="insert follow-ups there"):
        registry.worker(Signup, completion=awa.Completion.CALLER_OWNED)(charge)

    registry = awa.Registry()
    registry.declare_follow_up("w", kind="signup", outcome="completed", enqueue="send_welcome", args={})
    with pytest.raises(awa.UsageError, match="insert follow-ups there"):
        registry.worker(Signup, completion=awa.Completion.CALLER_OWNED)(charge)


def test_a_caller_owned_kind_may_have_follow_ups_of_other_outcomes() -> None:
    registry = awa.Registry()
    registry.on_exhausted_enqueue(Signup)(lambda event: Notice(event.error))

    @registry.worker(Signup, completion=awa.Completion.CALLER_OWNED)
    async def charge(job: awa.Job[Signup]) -> awa.FinalizationReceipt:
        raise AssertionError

    assert registry.workers["signup"].completion is awa.Completion.CALLER_OWNED
