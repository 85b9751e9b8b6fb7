from model.mutants import REPOSITORY
from model.mutations import MUTANTS


def test_every_guard_that_mutants_remove_is_still_written_as_they_say() -> None:
    gone = [
        f"{mutant.file}: {mutant.sentence}"
        for mutant in MUTANTS
        if mutant.old not in (REPOSITORY / "awa_actors" / mutant.file).read_text()
    ]
    assert not gone, f"adapt model/mutations.py: {gone}"


def test_every_mutant_is_caught_by_tests_that_exist() -> None:
    assert all(
        (REPOSITORY / test.partition("::")[0]).exists() for mutant in MUTANTS for test in mutant.caught_by.split()
    )
