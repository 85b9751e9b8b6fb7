"""Metrics and spans through OpenTelemetry (extra ``otel``): the one module that imports it.

.. code-block:: python

    from awa_actors.telemetry import OpenTelemetry

    async with awa.open_client(DSN, registry=registry, telemetry=OpenTelemetry()) as client:
        ...

Exporters are the application's: configure the SDK's global providers, or pass providers here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import attrs
from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import awa_actors
from awa_actors.core.metrics import (
    METRICS,
    NO_ATTRIBUTES,
    SECONDS_BOUNDARIES,
    SIZE_BOUNDARIES,
    Attributes,
    Metric,
    MetricKind,
)

T = TypeVar("T")
Read = Callable[[], Iterable[tuple[Attributes, float]]]
SCOPE = "awa_actors"
"""Name of the instrumentation scope."""

_PROPAGATOR = TraceContextTextMapPropagator()


@attrs.define(eq=False)
class OpenTelemetry:
    """Telemetry of one client. A process that opens several makes one for each.

    Args:
        meter_provider: None for the global one.
        tracer_provider: None for the global one.
        metrics: whether to measure.
        traces: whether to make spans. Trace contexts of producers are stored with their jobs in any case.
    """

    meter_provider: MeterProvider | None = None
    tracer_provider: TracerProvider | None = None
    metrics: bool = True
    traces: bool = True
    instruments: MetricInstruments | None = attrs.field(init=False)
    tracing: Spans | None = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make instruments and a tracer."""
        version = awa_actors.__version__
        meters = self.meter_provider or metrics.get_meter_provider()
        self.instruments = MetricInstruments(meters.get_meter(SCOPE, version)) if self.metrics else None
        tracers = self.tracer_provider or trace.get_tracer_provider()
        self.tracing = Spans(tracers.get_tracer(SCOPE, version)) if self.traces else None


@attrs.define(eq=False)
class MetricInstruments:
    """One instrument per metric of :data:`awa_actors.core.metrics.METRICS`."""

    _meter: Meter
    _counters: dict[str, Any] = attrs.field(factory=dict, init=False)
    _histograms: dict[str, Any] = attrs.field(factory=dict, init=False)
    _shown: dict[str, list[tuple[Attributes, float]]] = attrs.field(factory=dict, init=False)
    _readers: dict[str, list[Read]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Make the instruments."""
        for metric in METRICS.values():
            self._make(metric)

    def _make(self, metric: Metric) -> None:
        name, unit, text = metric.name, metric.unit, metric.description
        match metric.kind:
            case MetricKind.COUNTER:
                self._counters[name] = self._meter.create_counter(name, unit, text)
            case MetricKind.HISTOGRAM:
                bounds = SECONDS_BOUNDARIES if unit == "s" else SIZE_BOUNDARIES
                try:
                    made = self._meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=bounds)
                except TypeError:  # an API before 1.30, whose buckets a View of the SDK can set
                    made = self._meter.create_histogram(name, unit, text)
                self._histograms[name] = made
            case MetricKind.GAUGE:
                self._meter.create_observable_gauge(name, [self._collector(name)], unit, text)
            case MetricKind.UP_DOWN:
                self._meter.create_observable_up_down_counter(name, [self._collector(name)], unit, text)

    def _collector(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Collects from whichever thread an exporter uses: everything read here is replaced as a whole or a number."""

        def collect(options: CallbackOptions) -> Iterable[Observation]:
            for read in [lambda: self._shown.get(name, []), *self._readers.get(name, [])]:
                for attributes, value in read():
                    yield Observation(value, attributes)

        return collect

    def add(self, name: str, amount: float, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Add to a counter."""
        self._counters[name].add(amount, attributes)

    def record(self, name: str, value: float, attributes: Attributes = NO_ATTRIBUTES) -> None:
        """Record one value of a histogram."""
        self._histograms[name].record(value, attributes)

    def show(self, name: str, series: Iterable[tuple[Attributes, float]]) -> None:
        """Replace all values of a gauge."""
        self._shown[name] = list(series)

    def watch(self, name: str, read: Read) -> Callable[[], None]:
        """Ask for values of a gauge whenever somebody collects; the returned function ends that."""
        self._readers[name] = [*self._readers.get(name, []), read]

        def end() -> None:
            self._readers[name] = [one for one in self._readers[name] if one is not read]

        return end


@attrs.frozen(eq=False)
class Spans:
    """Spans of producers, attempts and passes: each of one call, none around a loop."""

    _tracer: Tracer

    def attempt(
        self, coroutine: Coroutine[Any, Any, T], *, job_id: int, kind: str, queue: str, attempt: int, parent: str | None
    ) -> Coroutine[Any, Any, T]:
        """Run an attempt in a span: the first continues the producer's trace, a retry is a trace with a link to it."""
        origin = None if parent is None else _PROPAGATOR.extract({"traceparent": parent})
        links = []
        if origin is not None and attempt > 1:
            links, origin = [Link(trace.get_current_span(origin).get_span_context())], None
        return self._attempt(coroutine, job_id, kind, queue, attempt, origin, links)

    async def _attempt(
        self,
        coroutine: Coroutine[Any, Any, T],
        job_id: int,
        kind: str,
        queue: str,
        attempt: int,
        origin: contexts.Context | None,
        links: list[Link],
    ) -> T:
        span = self._tracer.start_span(
            f"job.execute {kind}",
            origin if origin is not None else contexts.Context(),
            SpanKind.CONSUMER,
            {
                "messaging.system": "awa",
                "messaging.operation.type": "process",
                "messaging.destination.name": queue,
                "messaging.message.id": str(job_id),
                "awa.job.kind": kind,
                "awa.job.attempt": attempt,
            },
            links,
        )
        # Not detached: an attempt runs in a context of its own, which ends with it.
        contexts.attach(trace.set_span_in_context(span))
        try:
            decision = await coroutine
            _describe(span, decision)
            return decision
        finally:
            span.end()

    def sending(self, queue: str | None, jobs: int) -> AbstractContextManager[None]:
        """Be in a producer's span for one insert; the jobs in it then belong to its trace."""
        return self._sending(queue, jobs)

    @contextmanager
    def _sending(self, queue: str | None, jobs: int) -> Iterator[None]:
        attributes: dict[str, str | int] = {"messaging.system": "awa", "messaging.operation.type": "send"}
        if queue is not None:
            attributes["messaging.destination.name"] = queue
        if jobs != 1:
            attributes["messaging.batch.message_count"] = jobs
        name = "send" if queue is None else f"send {queue}"
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes):
            yield

    def passed(self, lane: str, seconds: float, done: int, error: str | None) -> None:
        """Tell of a pass that has just ended: a root span that is made when it is known to be worth one."""
        now = time.time_ns()
        span = self._tracer.start_span(
            f"maintenance.{lane}",
            contexts.Context(),
            attributes={"awa.maintenance.branch": lane, "awa.maintenance.done": done},
            start_time=now - int(seconds * 1e9),
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(now)


def _describe(span: trace.Span, decision: Any) -> None:
    """Say how an attempt ended; `decision` is what the attempt boundary decided to record."""
    outcome, fields = getattr(decision, "outcome", None), getattr(decision, "fields", {})
    if outcome is not None:
        span.set_attribute("awa.job.outcome", outcome.value)
    if fields.get("state") in ("retryable", "failed") and "error" in fields:
        span.set_status(Status(StatusCode.ERROR, fields["error"].splitlines()[0] if fields["error"] else ""))
