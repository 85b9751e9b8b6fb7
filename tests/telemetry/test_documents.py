"""The dashboard and the reference say what is measured, and nothing else."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from awa_actors.core.metrics import METRICS, Metric, prometheus_names

DOCS = Path(__file__).parents[2] / "docs"
SERIES = {name for metric in METRICS.values() for name in prometheus_names(metric)}
LABELS = {key.replace(".", "_") for metric in METRICS.values() for key in metric.attributes}


def board() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DOCS / "grafana" / "awa_actors.json").read_text())
    return loaded


def expressions(value: object) -> Iterator[str]:
    """Everything in a dashboard that asks Prometheus something."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("expr", "query") and isinstance(inner, str) and "awa_" in inner:
                yield inner
            else:
                yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)


def metric_of(series: str) -> Metric:
    return next(metric for metric in METRICS.values() if series in prometheus_names(metric))


def test_the_dashboard_asks_only_for_what_is_measured() -> None:
    asked = list(expressions(board()))
    assert len(asked) > 20
    for expression in asked:
        used = set(re.findall(r"\bawa_\w+", expression))
        assert used <= SERIES | LABELS, expression
        named = [name for name in used & SERIES if name not in LABELS or f"({name})" in expression]
        assert named, expression
        allowed = {key.replace(".", "_") for name in named for key in metric_of(name).attributes}
        assert used - set(named) <= allowed, expression


def test_legends_name_labels_that_their_query_keeps() -> None:
    for panel in board()["panels"]:
        for target in panel.get("targets", ()):
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert label == "job" or label in target["expr"], target


def test_panels_do_not_lie_on_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in board()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


@pytest.mark.parametrize("name", METRICS)
def test_the_reference_lists_every_metric(name: str) -> None:
    metric = METRICS[name]
    attributes = ", ".join(f"`{key.removeprefix('awa.')}`" for key in metric.attributes)
    kind = metric.kind.value.replace("_", "-")
    row = f"| `{name}` | {kind} | `{metric.unit}` | {attributes} | {metric.description} |"
    assert row in (DOCS / "reference" / "metrics.md").read_text().splitlines()


def test_the_reference_lists_nothing_else() -> None:
    listed = re.findall(r"^\| `(awa\.[\w.]+)` \|", (DOCS / "reference" / "metrics.md").read_text(), re.M)
    assert sorted(listed) == sorted(METRICS)
