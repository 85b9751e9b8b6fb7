"""An application that sets the global providers, as `opentelemetry-instrument` does: metrics go to its output."""

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

import awa_actors as awa

registry = awa.Registry()
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter(), 100)]))
