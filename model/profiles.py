"""How much is enough: `dev` for seconds, `ci` for minutes, `nightly` for a night, `mutants` for each of them."""

from __future__ import annotations

import os

import attrs
from hypothesis import HealthCheck, Phase, settings


@attrs.frozen
class Profile:
    """Sizes of one run.

    Args:
        name: also the key of a machine's sizes.
        walks, walk_length: random walks per machine.
        refinements, refinement_length: walks that drive a real database; slow, since each has a database of its own.
        limit: states after which a search gives up.
    """

    name: str
    walks: int
    walk_length: int
    refinements: int
    refinement_length: int
    limit: int

    def settings(self, examples: int) -> settings:
        """What Hypothesis is told: the same walks every time but at night, so that a failure is no matter of luck."""
        return settings(
            max_examples=examples,
            deadline=None,
            derandomize=self.name != "nightly",
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink] if self.name == "nightly" else [Phase.generate],
        )


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("dev", walks=10, walk_length=40, refinements=6, refinement_length=25, limit=200_000),
        Profile("mutants", walks=0, walk_length=0, refinements=20, refinement_length=40, limit=200_000),
        Profile("ci", walks=50, walk_length=80, refinements=40, refinement_length=40, limit=3_000_000),
        Profile("nightly", walks=5_000, walk_length=200, refinements=2_000, refinement_length=60, limit=20_000_000),
    )
}


def chosen() -> Profile:
    """The profile that ``AWA_MODEL_PROFILE`` names, `dev` when unset."""
    return PROFILES[os.environ.get("AWA_MODEL_PROFILE", "dev")]
