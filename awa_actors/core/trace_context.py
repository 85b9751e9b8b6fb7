"""The trace a job was enqueued in, as its metadata carries it: W3C ``traceparent`` text."""

from __future__ import annotations

import re
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from awa_actors.core.validation import TRACEPARENT_KEY

__all__ = ["TRACEPARENT_KEY", "traceparent_of"]

T = TypeVar("T")

_SHAPE = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent_of(metadata: Any) -> str | None:
    """The trace context in a job's metadata; None when there is none that can be read."""
    text = metadata.get(TRACEPARENT_KEY) if isinstance(metadata, dict) else None
    return text if isinstance(text, str) and _SHAPE.fullmatch(text) else None


class Tracing(Protocol):
    """Where spans go; made by :mod:`awa_actors.telemetry`. Each is of one call, attempt or pass, never of a loop."""

    def attempt(
        self, coroutine: Coroutine[Any, Any, T], *, job_id: int, kind: str, queue: str, attempt: int, parent: str | None
    ) -> Coroutine[Any, Any, T]:
        """Run an attempt in a span that continues the trace of its enqueue (`parent`), or is linked to it (a retry)."""

    def sending(self, queue: str | None, jobs: int) -> AbstractContextManager[None]:
        """Be in a producer's span for one insert; the jobs in it then belong to its trace."""

    def passed(self, lane: str, seconds: float, done: int, error: str | None) -> None:
        """Tell of a pass of a lane that has just ended and moved something, or failed."""
