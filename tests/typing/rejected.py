"""What users must not be able to write: each marked line is an error for mypy, with the code that is named."""

import attrs

import awa_actors as awa


@attrs.frozen
class One:
    n: int


@attrs.frozen
class Other:
    n: int


registry = awa.Registry()


@registry.worker(One)  # expect: arg-type
async def takes_other_args(job: awa.Job[Other]) -> None: ...


@registry.worker(One)  # expect: type-var
async def returns_no_verdict(job: awa.Job[One]) -> str:
    return "done"


@registry.worker(One)  # expect: arg-type
async def takes_no_job() -> None: ...


@registry.on_event(One)  # expect: arg-type
def observes_without_async(event: awa.Event[One]) -> None: ...


@registry.on_event(One)  # expect: arg-type
async def observes_other_args(event: awa.Event[Other]) -> None: ...


@registry.on_completed_enqueue(One)  # expect: type-var
def follows_with_nothing(event: awa.events.Completed[One]) -> None: ...


@registry.on_completed_enqueue(One)  # expect: type-var
def follows_with_text(event: awa.events.Completed[One]) -> str:
    return "text"


@registry.on_completed_enqueue(One)  # expect: type-var
async def follows_with_a_coroutine(event: awa.events.Completed[One]) -> Other:
    return Other(1)


@registry.on_completed_enqueue(One)  # expect: arg-type
def follows_another_event(event: awa.events.Retried[One]) -> Other:
    return Other(1)


@registry.on_rescued_enqueue(One)  # expect: arg-type
def follows_other_args(event: awa.events.Rescued[Other]) -> One:
    return One(1)
