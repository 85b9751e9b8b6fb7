"""How the drain demo looks, and when it may say that it converged."""

from typing import Any

import attrs
import pytest
from rich.console import Console

from awa_actors.cli.demo_drain import Course
from awa_actors.cli.demo_drain_view import Lines, Scene, _side_by_side

SCENE = Scene("mixed_transition", 30, 10, 40, 120, 7)


def test_a_terminal_shows_both_planes_side_by_side() -> None:
    console = Console(width=120, record=True, file=None, force_terminal=True)
    with console.capture() as capture:
        console.print(_side_by_side(SCENE))
    header, planes = capture.get().splitlines()[:2]
    assert header.index("canonical plane") < header.index("queue plane")
    for part in ("30", "10", "mixed_transition", "120 times", "7"):
        assert part in planes


def test_lines_come_when_something_turns_and_not_for_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for scene in (
        SCENE,
        attrs.evolve(SCENE, canonical=29),
        attrs.evolve(SCENE, canonical=0),
        attrs.evolve(SCENE, state="active"),
    ):
        lines.draw(scene)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3
    assert "canonical #########...   30   queue ###.........   10" in said[0]
    assert "canonical ............    0" in said[1]


@pytest.mark.parametrize(
    "short",
    [{"state": "mixed_transition"}, {"canonical": {"running": 1}}, {"kept": False}, {"kept": None}, {"went_on": False}],
)
def test_nothing_short_of_the_end_is_called_converged(short: dict[str, Any]) -> None:
    whole = Course(0.0, state="active", kept=True, went_on=True)
    assert whole.converged
    assert whole.outcome(1.0)["ok"] is True
    less = attrs.evolve(whole, **short)
    assert not less.converged
    assert less.outcome(1.0)["ok"] is False
