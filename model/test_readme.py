from pathlib import Path

from model.catalog import MACHINES, described

README = Path(__file__).with_name("README.md").read_text()


def test_the_table_of_machines_is_the_present_one() -> None:
    missing = [machine.__name__ for machine in MACHINES if described(machine) not in README]
    assert not missing, f"run python -m model --write: {missing}"


def test_every_twin_that_the_text_names_exists() -> None:
    guards = {guard for machine in MACHINES for guard in machine.twins}
    told = README.split("| broken there | twin here |")[1].split("The traps of the queue plane")[0]
    quoted = {part for part in told.split("*")[1::2] if "job that is not deferred" not in part}
    assert quoted
    assert quoted <= guards, quoted - guards
