from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.catalog import MACHINES, explored, twin
from model.machine import Machine
from model.profiles import chosen
from model.walker import walk

PROFILE = chosen()
TWINS = [(machine, guard) for machine in MACHINES for guard in machine.twins]

each_machine = pytest.mark.parametrize("machine", MACHINES, ids=[machine.__name__ for machine in MACHINES])


@each_machine
def test_nothing_breaks_in_any_reachable_state(machine: type[Machine[Any]]) -> None:
    report = explored(machine, PROFILE.name, PROFILE.limit)
    assert report.violation is None, str(report.violation)
    assert report.complete, f"gave up after {report.states} states: make its {PROFILE.name} sizes smaller"
    assert set(report.taken) == set(machine().actions), "an action that never happens specifies nothing"
    assert report.asked <= set(machine.twins), "a guard without a twin"


@each_machine
def test_nothing_breaks_on_random_walks_in_larger_bounds(machine: type[Machine[Any]]) -> None:
    @PROFILE.settings(PROFILE.walks)
    @given(st.data())
    def walks(data: st.DataObject) -> None:
        walk(machine(**machine.walk_sizes), data, PROFILE.walk_length)

    walks()


@pytest.mark.parametrize(("machine", "guard"), TWINS, ids=[f"{machine.__name__}: {guard}" for machine, guard in TWINS])
def test_a_machine_without_a_guard_breaks(machine: type[Machine[Any]], guard: str) -> None:
    killed = twin(machine, guard, PROFILE.limit)
    assert guard in killed.report.asked, f"nothing asks for {guard!r}"
    assert killed.is_killed, f"without {guard!r}: {killed.report.violation or 'nothing breaks'}"


@each_machine
def test_every_property_is_a_sentence(machine: type[Machine[Any]]) -> None:
    roles = machine().by_role
    for name in (*roles["invariant"], *roles["step_rule"], *roles["leaves"], *roles["action"], *roles["fair"]):
        assert machine().sentence(name).endswith((".", ")")), f"{machine.__name__}.{name} has no docstring"


@each_machine
def test_every_guard_breaks_a_property_that_exists(machine: type[Machine[Any]]) -> None:
    for properties in machine.twins.values():
        assert all(hasattr(machine, name) for name in properties), properties
