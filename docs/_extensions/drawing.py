"""Boxes and arrows as SVG that is part of the page: in the page's colours, light or dark, and without the network."""

import math
from collections.abc import Iterable
from html import escape

import attrs

STYLE = """
.awa-picture { width: 100%; height: auto; font-family: inherit; margin: 0.5rem 0 1rem; }
.awa-picture rect { fill: var(--color-background-secondary, #f6f6f6); stroke: currentColor; stroke-width: 1.2; }
.awa-picture rect.end { stroke-width: 2.6; }
.awa-picture rect.group { fill: none; stroke-dasharray: 4 4; stroke-width: 1; opacity: 0.7; }
.awa-picture text { fill: currentColor; font-size: 14px; text-anchor: middle; dominant-baseline: central; }
.awa-picture text.left { text-anchor: start; }
.awa-picture text.small { font-size: 12px; opacity: 0.85; }
.awa-picture text.label { font-size: 12px; paint-order: stroke; stroke: var(--color-background-primary, white);
  stroke-width: 5px; stroke-linejoin: round; }
.awa-picture path { fill: none; stroke: currentColor; stroke-width: 1.4; }
.awa-picture path.head { fill: currentColor; stroke: none; }
.awa-picture path.quiet { stroke-dasharray: 3 4; }
.awa-picture .worker { color: var(--color-foreground-primary, #222); }
.awa-picture .producer { color: var(--color-foreground-primary, #222); }
.awa-picture .maintenance { color: #2a7ab8; }
.awa-picture .outside { color: #2e8b57; }
.awa-picture .operator { color: #c4621a; }
"""
"""One style sheet for every picture; the fallbacks serve themes without these variables."""


@attrs.frozen
class Box:
    """A labelled rectangle around its centre."""

    x: float
    y: float
    text: str
    width: float = 130
    height: float = 38
    kind: str = ""
    note: str = ""

    def svg(self) -> str:
        """The rectangle, its text and the note under the text."""
        left, top = self.x - self.width / 2, self.y - self.height / 2
        y = self.y - 8 if self.note else self.y
        note = f'<text class="small" x="{self.x}" y="{self.y + 10}">{escape(self.note)}</text>' if self.note else ""
        return (
            f'<rect class="{self.kind}" x="{left}" y="{top}" width="{self.width}" height="{self.height}" rx="7"/>'
            f'<text x="{self.x}" y="{y}">{escape(self.text)}</text>{note}'
        )

    def edge_towards(self, x: float, y: float, gap: float = 3) -> tuple[float, float]:
        """Where a line from the centre to a point leaves the box."""
        dx, dy = x - self.x, y - self.y
        across = (self.width / 2 + gap) / abs(dx) if dx else math.inf
        along = (self.height / 2 + gap) / abs(dy) if dy else math.inf
        share = min(across, along)
        return self.x + dx * share, self.y + dy * share


@attrs.frozen
class Arrow:
    """A labelled curve from one box to another.

    Args:
        start, end: boxes.
        label: beside its middle.
        kind: class of its colour.
        bend: how far its middle lies off the straight line, to the left of its direction; in pixels.
        at: where the label is, as a share of the way.
        quiet: dashed.
    """

    start: Box
    end: Box
    label: str = ""
    kind: str = ""
    bend: float = 0
    at: float = 0.5
    quiet: bool = False

    def svg(self) -> str:
        """The curve, its head and its label."""
        dx, dy = self.end.x - self.start.x, self.end.y - self.start.y
        length = math.hypot(dx, dy) or 1
        # Twice as far, since a quadratic curve passes half way to its control point.
        cx = (self.start.x + self.end.x) / 2 + 2 * self.bend * dy / length
        cy = (self.start.y + self.end.y) / 2 - 2 * self.bend * dx / length
        x1, y1 = self.start.edge_towards(cx, cy)
        x2, y2 = self.end.edge_towards(cx, cy, gap=5)
        angle = math.degrees(math.atan2(y2 - cy, x2 - cx))
        t = self.at
        lx = (1 - t) ** 2 * x1 + 2 * t * (1 - t) * cx + t**2 * x2
        ly = (1 - t) ** 2 * y1 + 2 * t * (1 - t) * cy + t**2 * y2
        lines = self.label.split("\n") if self.label else []
        top = ly - 7 * (len(lines) - 1)
        labels = "".join(
            f'<text class="label" x="{lx:.1f}" y="{top + 14 * number:.1f}">{escape(line)}</text>'
            for number, line in enumerate(lines)
        )
        return (
            f'<g class="{self.kind}"><path class="{"quiet" if self.quiet else ""}"'
            f' d="M{x1:.1f},{y1:.1f} Q{cx:.1f},{cy:.1f} {x2:.1f},{y2:.1f}"/>'
            f'<path class="head" d="M0,0 L-9,-4 L-9,4 Z" transform="translate({x2:.1f},{y2:.1f}) rotate({angle:.1f})"/>'
            f"{labels}</g>"
        )


def picture(width: float, height: float, title: str, parts: Iterable[str]) -> str:
    """Put drawn parts into one picture; the title is what a screen reader says."""
    return (
        f'<svg class="awa-picture" role="img" aria-label="{escape(title)}" viewBox="0 0 {width} {height}"'
        f' xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title><style>{STYLE}</style>{"".join(parts)}</svg>'
    )
