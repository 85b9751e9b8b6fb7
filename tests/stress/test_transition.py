"""A transition under load: nothing is lost, doubled or run under two leases, whatever meets whatever."""

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import LiteralString

import attrs
import psycopg
import pytest
from canonical_plane import CanonicalPlane, flip, open_canonical
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from queue_plane import STATES, Attempt

LIMIT = 60.0
"""Seconds the drain may take on a busy machine; it takes two."""
LOAD = 1.0
"""Seconds of load before the flip, and after the drain."""
RESOLUTIONS: tuple[LiteralString, ...] = (
    "SELECT awa.complete_external(%s)",
    "SELECT awa.fail_external(%s)",
    "SELECT awa.resume_external(%s)",
    "SELECT awa.retry_external(%s)",
)
HELD_WRONGLY: LiteralString = """
SELECT c.job_id FROM awa.job_unique_claims c LEFT JOIN awa.jobs j ON j.id = c.job_id
WHERE j.id IS NULL OR get_bit(j.unique_states, awa.state_bit(j.state)) = 0
UNION ALL SELECT j.id FROM awa.jobs j
WHERE j.unique_key IS NOT NULL AND get_bit(j.unique_states, awa.state_bit(j.state)) = 1
  AND NOT EXISTS (SELECT FROM awa.job_unique_claims c WHERE c.unique_key = j.unique_key AND c.job_id = j.id)
"""


@attrs.define(eq=False)
class Fleet:
    """Threads with a session each, and what they saw."""

    url: str
    stop: threading.Event = attrs.field(factory=threading.Event)
    wrong: list[str] = attrs.field(factory=list)
    leases: dict[int, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    ids: list[int] = attrs.field(factory=list)
    callbacks: list[str] = attrs.field(factory=list)
    lock: threading.Lock = attrs.field(factory=threading.Lock)

    @contextmanager
    def at_work(self, *roles: Callable[["Fleet", CanonicalPlane, random.Random], None]) -> Iterator[None]:
        """Let every role take its turns until the body ends."""
        threads = [threading.Thread(target=self._run, args=(role, n)) for n, role in enumerate(roles)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.stop.set()
            for thread in threads:
                thread.join(LIMIT)

    def _run(self, role: Callable[["Fleet", CanonicalPlane, random.Random], None], seed: int) -> None:
        session = CanonicalPlane(psycopg.connect(self.url, autocommit=True, row_factory=dict_row))
        dice = random.Random(seed)
        try:
            session.register(3600.0)
            while not self.stop.is_set():
                role(self, session, dice)
                self.stop.wait(0.005)
        except Exception as error:
            self.wrong.append(f"{role.__name__}: {error!r}")
        finally:
            session.close()


def work(fleet: Fleet, session: CanonicalPlane, dice: random.Random) -> None:
    """Claim, and end every attempt in some way; none is taken away from a worker that lives."""
    for attempt in session.claim(dice.randint(1, 20)).attempts:
        if attempt.kind is None:
            continue
        with fleet.lock:
            fleet.leases[attempt.job_id].append(attempt.run_lease)
        if not ended(fleet, session, attempt, dice):
            fleet.wrong.append(f"the attempt was stale: {attempt}")


def ended(fleet: Fleet, session: CanonicalPlane, attempt: Attempt, dice: random.Random) -> bool:
    match dice.randrange(6):
        case 0:
            return session.complete([attempt]) == {attempt.job_id}
        case 1 | 2:
            again = {"state": "scheduled", "delay": dice.random() / 5, "uncount": True, "snooze": True}
            return session.end(attempt, lslot=attempt.lslot, **again) is not None
        case 3:
            return session.retry(attempt, dice.random() / 5) is not None
        case 4:
            return session.end(attempt, give_back=True) is not None
    callback = session.value(
        "SELECT awa_queue.register_callback(%s, %s, %s, 600, NULL)",
        attempt.job_id, attempt.run_lease, session.instance,
    )  # fmt: skip
    entry = {"job_id": attempt.job_id, "run_lease": attempt.run_lease, "callback_id": str(callback)}
    parked = session.rows("SELECT outcome FROM awa_queue.park(%s, %s)", session.instance, Jsonb([entry]))
    with fleet.lock:
        fleet.callbacks.append(str(callback))
    return bool(parked)


def resolve(fleet: Fleet, session: CanonicalPlane, dice: random.Random) -> None:
    """Resolve a callback; each is open until somebody has."""
    with fleet.lock:
        callback = fleet.callbacks.pop(dice.randrange(len(fleet.callbacks))) if fleet.callbacks else None
    if callback is not None and session.value(dice.choice(RESOLUTIONS), callback) is None:
        fleet.wrong.append(f"callback {callback} was not open")


def produce(fleet: Fleet, session: CanonicalPlane, dice: random.Random) -> None:
    """Insert jobs of every shape, in transactions that stay open for a while."""
    key = dice.randbytes(2)
    mask = dice.sample(STATES, 5)
    with session.transaction():
        made = [*session.insert(2), session.job(delay=dice.choice([0.0, 0.2, 1e6]))]
        session.rows("SELECT pg_sleep(0.01)")
        if not session.rows("SELECT 1 FROM awa.job_unique_claims WHERE unique_key = %s", key):
            made.append(session.keyed(key, mask, delay=None))
    with fleet.lock:
        fleet.ids += made


def lead(fleet: Fleet, session: CanonicalPlane, dice: random.Random) -> None:
    """Do what a leader does for both planes."""
    session.promote(50)
    session.rows("SELECT awa.rescue_canonical_stale(50, 5)")
    session.rows("SELECT awa.move_canonical(9)")


@pytest.mark.stress
def test_nothing_is_lost_doubled_or_run_twice_through_a_transition(database: str) -> None:
    first = open_canonical(database, CanonicalPlane)
    fleet = Fleet(database)
    backlog: LiteralString = "SELECT awa.canonical_live_backlog()"
    with fleet.at_work(work, work, work, resolve, produce, produce, lead, lead):
        fleet.stop.wait(LOAD)
        before = first.value(backlog)
        flip(first)
        left = before
        for _ in range(int(LIMIT / 0.05)):
            left = first.value(backlog)
            if left == 0 or fleet.stop.wait(0.05):
                break
        fleet.stop.wait(LOAD)
    assert fleet.wrong == []
    assert before > 0
    assert left == 0
    assert all(leases == sorted(set(leases)) for leases in fleet.leases.values())
    shown = [row["id"] for row in first.rows("SELECT id FROM awa.jobs ORDER BY id")]
    assert shown == sorted(fleet.ids)
    assert first.rows(HELD_WRONGLY) == []
    first.close()
