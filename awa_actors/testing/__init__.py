"""Tests of an application: its jobs through the production executor, one at a time.

The pytest plugin ``awa_actors.testing.plugin`` brings a client on a database of the test's own; everything here also
works with a client of yours.
"""

from awa_actors.core.outcome import Outcome
from awa_actors.testing.enqueued import assert_enqueued, refute_enqueued
from awa_actors.testing.working import Worked, abandon_one, expire_instance_and_tick, work_all, work_one

__all__ = [
    "Outcome",
    "Worked",
    "abandon_one",
    "assert_enqueued",
    "expire_instance_and_tick",
    "refute_enqueued",
    "work_all",
    "work_one",
]
