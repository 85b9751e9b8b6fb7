"""The hygiene lane: rings turn, slots are emptied and truncated, retention lets go of history."""

from __future__ import annotations

import time

import attrs

from awa_actors.actors.lane import StepReport
from awa_actors.actors.meters import Meters
from awa_actors.config import MaintenanceSettings
from awa_actors.store import descriptors, hygiene
from awa_actors.store.hygiene import Ring, Slot
from awa_actors.store.pool import Session

CARRY = 500
"""Rows moved per statement out of a slot that should empty."""
BYTES_PER_BODY = 300
"""A cautious size of one body on disk, to turn rows into a size that can be asked for cheaply."""
SLOW_EVERY = 30.0
"""Seconds between the parts that only matter over hours."""
ACTIVE_EVERY = 1.0
"""Seconds between passes while the fast rings hold rows; an idle database is looked at once per interval."""
BUSY_BEFORE_BLOCKED = 5
"""Passes in a row that found a slot locked, before health names the process that holds it."""


@attrs.define(eq=False)
class Hygiene:
    """One pass looks at every slot once and moves a bounded number of rows."""

    settings: MaintenanceSettings
    meters: Meters = attrs.field(factory=Meters)
    name: str = "hygiene"
    _slow_at: float | None = attrs.field(default=None, init=False)
    _retention: float = attrs.field(default=0.0, init=False)
    _busy: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)

    @property
    def interval(self) -> float:
        """Seconds between passes."""
        return self.settings.hygiene_interval

    async def run(self, session: Session, rows: int) -> StepReport:
        """One pass."""
        done, blocked = 0, None
        slow = self._slow_at is None or time.monotonic() - self._slow_at > SLOW_EVERY
        if slow:
            self._retention = await hygiene.completed_retention(session, self.settings.completed_retention)
        rings = await hygiene.rings(session)
        self.meters.rings(rings.values())
        slots = await hygiene.slots(session)
        active = False
        for ring in rings.values():
            full = sum(slot.bytes > 0 for slot in slots if slot.ring == ring.name)
            turned = not self._should_turn(ring, slots) or await self._turn(session, ring)
            if not turned and full == hygiene.SLOTS[ring.name]:
                moved, why = await self._make_room(session, ring, slots)
                done, blocked = done + moved, why or blocked
            for slot in slots:
                if slot.ring == ring.name and slot.number != ring.slot and slot.bytes > 0:
                    moved, why = await self._empty(session, ring, slot, self._retention)
                    done, blocked, active = done + moved, why or blocked, active or ring.name != "segments"
            active = active or (full > 0 and ring.name != "segments")
        if slow:
            self._slow_at = time.monotonic()
            done += await hygiene.forget(session, rows, self.settings.failed_retention, self.settings.dlq_retention)
            done += await hygiene.forget_canonical(session, rows, self.settings.completed_retention)
            await hygiene.forget_instances(session, self._retention)
            await descriptors.forget(session, self.settings.descriptor_retention)
            await hygiene.end_stuck_sessions(session, self.settings.stuck_session)
        return StepReport(done, wait=ACTIVE_EVERY if active else None, blocked=blocked)

    async def _turn(self, session: Session, ring: Ring) -> bool:
        slot = await hygiene.turn(session, ring)
        self.meters.turned(ring, slot)
        return slot is not None

    def _should_turn(self, ring: Ring, slots: list[Slot]) -> bool:
        size = next(slot.bytes for slot in slots if slot.ring == ring.name and slot.number == ring.slot)
        if size == 0:
            return False
        if ring.name != "segments":
            return ring.age >= self.settings.ring_turn
        share = self.settings.completed_retention / (hygiene.SLOTS["segments"] - 2)
        return ring.age >= share or size > self.settings.segment_rows * BYTES_PER_BODY

    async def _make_room(self, session: Session, ring: Ring, slots: list[Slot]) -> tuple[int, str | None]:
        """The segment ring is full: the oldest history goes early, and says so; live jobs in the way are moved.

        Other rings wait for a slot to empty.
        """
        if ring.name != "segments":
            return 0, f"every slot of the {ring.name} ring is in use"
        others = [slot for slot in slots if slot.ring == ring.name and slot.number != ring.slot]
        oldest_first = sorted(others, key=lambda slot: -slot.sealed_for)
        for slot in oldest_first:
            outcome = (await hygiene.truncate_slot(session, ring.name, slot.number, 0.0)).outcome
            if outcome in ("truncated", "settling"):
                done = "was dropped" if outcome == "truncated" else "is about to be dropped"
                return 0, f"completed history of segment {slot.number} {done} before its retention: the ring was full"
        moved = await hygiene.carry_bodies(session, oldest_first[0].number, CARRY)
        return moved, f"every segment holds live jobs; those of segment {oldest_first[0].number} are being moved"

    async def _empty(self, session: Session, ring: Ring, slot: Slot, retention: float) -> tuple[int, str | None]:
        """Truncate a slot that is not current; move what keeps it from emptying."""
        moved, key = 0, (ring.name, slot.number)
        began = time.monotonic()
        outcome = await hygiene.truncate_slot(session, ring.name, slot.number, retention)
        self.meters.pruned(ring.name, outcome.outcome, time.monotonic() - began)
        if outcome.outcome == "live":
            if ring.name == "leases" and slot.sealed_for >= self.settings.ring_turn:
                moved = await hygiene.carry_leases(session, slot.number, CARRY)
            elif ring.name == "ready":
                moved = await hygiene.park_ready(session, slot.number, CARRY)
            elif ring.name == "segments" and slot.sealed_for >= retention:
                moved = await hygiene.carry_bodies(session, slot.number, CARRY)
        self._busy[key] = self._busy.get(key, 0) + 1 if outcome.outcome == "busy" else 0
        if self._busy[key] < BUSY_BEFORE_BLOCKED:
            return moved, None
        return moved, f"server process {outcome.blocker} holds a lock on slot {slot.number} of the {ring.name} ring"
