"""The trace that a producer is in, read without importing anything: most producers know nothing of tracing."""

from __future__ import annotations

import sys
from typing import Any


def ambient_trace() -> str | None:
    """The W3C trace context of the span that is active here, or None.

    Whoever has an active span has imported OpenTelemetry; nobody else pays more than a look for it. So producers on any
    driver take part without being told, and this package imports it in one place only, when it is asked to.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    try:
        context = trace.get_current_span().get_span_context()
        if not context.is_valid:
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    except Exception:  # half imported, or replaced by something else: a job matters more than its trace
        return None
