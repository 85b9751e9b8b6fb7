"""Statements of one piece of work, written once and run on whatever connection somebody has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from awa_actors.errors import AwaError

T = TypeVar("T")
Steps: TypeAlias = Generator[tuple[str, Sequence[Any]] | Callable[[], Any], Any, T]
"""Statements with their arguments out, the one row of each in; or what is to be computed out, and its value in."""


def run_steps(made: Steps[T], fetch_row: Callable[..., Sequence[Any]]) -> T:
    """Run them on a connection whose driver blocks; `fetch_row` takes a statement and its arguments."""
    try:
        asked = next(made)
        while True:
            try:
                answer = asked() if callable(asked) else fetch_row(asked[0], *asked[1])
            except AwaError as error:
                asked = made.throw(error)
            else:
                asked = made.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value


async def run_steps_async(
    made: Steps[T],
    fetch_row: Callable[..., Awaitable[Sequence[Any]]],
    compute: Callable[[Callable[[], Any]], Awaitable[Any]] = asyncio.to_thread,
) -> T:
    """Run them on a connection whose driver is awaited; `compute` runs in a thread what takes its time."""
    try:
        asked = next(made)
        while True:
            try:
                answer = await (compute(asked) if callable(asked) else fetch_row(asked[0], *asked[1]))
            except AwaError as error:
                asked = made.throw(error)
            else:
                asked = made.send(answer)
    except StopIteration as done:
        value: T = done.value
        return value
