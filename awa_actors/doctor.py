"""The doctor: independent checks, each within a time of its own, none of which can hide another."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio

from awa_actors.core.doctor import Finding, Verdict, bad, skipped
from awa_actors.core.text import storable
from awa_actors.doctor_checks import CHECKS, WITHOUT_SCHEMA, Visit
from awa_actors.errors import StoreError, TransientStoreError
from awa_actors.registry import Registry

if TYPE_CHECKING:
    from awa_actors.store.pool import Pool

CHECK_LIMIT = 6.0
"""Seconds that one check may take; the server is told less, so that it can still say why."""

logger = logging.getLogger("awa_actors.doctor")


async def examine(pool: Pool, registry: Registry, *, patience: float, pooler: bool) -> list[Finding]:
    """Run every check, one after the other.

    Args:
        pool: of any database; best one that asks for no session settings, which some poolers refuse.
        registry: what the application at hand declares.
        patience: seconds that something may wait before it counts as stuck.
        pooler: a transaction pooler is expected.

    Returns:
        One finding per check, in a fixed order; a check that failed itself is a finding, too.

    Cancellation: nothing was written.
    """
    visit = Visit(pool, registry, patience, pooler)
    return [await _checked(visit, name, check) for name, check in CHECKS.items()]


async def _checked(visit: Visit, name: str, check: Callable[[Visit], Awaitable[Verdict]]) -> Finding:
    if name not in WITHOUT_SCHEMA and visit.schema_fits is not True:
        return _finding(name, skipped("needs the schema of this release, and a role that may read it"))
    try:
        with trio.fail_after(CHECK_LIMIT):
            return _finding(name, await check(visit))
    except trio.TooSlowError:
        return _finding(name, bad(f"no answer within {CHECK_LIMIT:.0f} s: the server is overloaded or stopped"))
    except TransientStoreError as error:
        return _finding(name, bad(f"could not be checked now: {error}"))
    except StoreError as error:
        return _finding(name, skipped(f"could not be checked: {error}"))
    except Exception as error:  # a check that is wrong must not hide the others
        logger.debug("check %s failed", name, exc_info=True)
        return _finding(name, bad(f"the check itself failed: {type(error).__name__}: {storable(str(error))}"))


def _finding(name: str, verdict: Verdict) -> Finding:
    return Finding(name, verdict.status, " ".join(verdict.line.split()))
