"""OpenTelemetry with readers and exporters in memory, and names for what they hold."""

from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from awa_actors.telemetry import OpenTelemetry


@attrs.define(eq=False)
class Observatory:
    """Where everything that is measured ends up."""

    telemetry: OpenTelemetry
    tracers: TracerProvider
    _reader: InMemoryMetricReader
    _exporter: InMemorySpanExporter

    def points(self) -> dict[str, list[Any]]:
        """The data points of every metric by name, collected now."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        found: dict[str, list[Any]] = {}
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    found.setdefault(metric.name, []).extend(metric.data.data_points)
        return found

    def values(self, name: str) -> dict[tuple[Any, ...], Any]:
        """Values (of a histogram: how many) by the values of their attributes, sorted by key."""
        return {
            tuple(value for _, value in sorted(point.attributes.items())): (
                point.count if hasattr(point, "count") else point.value
            )
            for point in self.points().get(name, [])
        }

    def spans(self, prefix: str = "") -> list[ReadableSpan]:
        """Spans that have ended, by name."""
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(prefix)]


@pytest.fixture
def observatory() -> Iterator[Observatory]:
    reader, exporter = InMemoryMetricReader(), InMemorySpanExporter()
    meters, tracers = MeterProvider([reader]), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    yield Observatory(OpenTelemetry(meters, tracers), tracers, reader, exporter)
    meters.shutdown()
    tracers.shutdown()
