"""Claims that meet wrong hints, rows that cannot be claimed, clients that stop reading, shards that are taken away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from model.machine import (
    Args,
    Bounds,
    Machine,
    Sizes,
    Steps,
    Twins,
    action,
    fair,
    invariant,
    leaves,
    replaced,
    step_rule,
)


class Row(NamedTuple):
    """A job in position order. `state` is ready, hidden (in a claim that has not committed), leased, done or failed."""

    state: str = "ready"
    poison: bool = False
    shard: int = 0
    by: int | None = None
    visible: bool = True


class Client(NamedTuple):
    """A claimer: its hint, and whether it has stopped reading (frozen, swapped out) for good."""

    hint: int = 0
    gone: bool = False


class Lane(NamedTuple):
    """The rows of a queue, its claimers, and how many shards it has."""

    rows: tuple[Row, ...]
    clients: tuple[Client, ...]
    shards: int


class Claims(Machine[Lane]):
    """Rows become visible in any order; one may be poison.

    The first claimer may stop reading in the middle of an answer.
    """

    facts = "P2 P3, X18, traps T5 T7"
    code = (
        "store/migrations/0004 (take, take_lane, take_one, take_carefully, claim), 0006 (rescue_stale);"
        " actors/dispatcher.py"
    )
    sizes: ClassVar[Sizes] = {
        "dev": {"n_rows": 2, "n_clients": 2, "batch": 2},
        "ci": {"n_rows": 3, "n_clients": 2, "batch": 2},
        "nightly": {"n_rows": 4, "n_clients": 2, "batch": 3},
        "a claim stays within its batch": {"batch": 1},
        "a claim takes rows in order": {"batch": 1},
    }
    walk_sizes: ClassVar[Bounds] = {"n_rows": 8, "n_clients": 3, "batch": 3}
    twins: ClassVar[Twins] = {
        "a claimer starts again from the beginning": ("every_job_is_claimed",),
        "what cannot be claimed is recorded and the rest is claimed": ("every_job_is_claimed",),
        "a claim commits before it answers": ("every_job_is_claimed",),
        "the dead are rescued": ("every_job_is_claimed",),
        "claims skip locked rows": ("a_row_is_taken_once",),
        "claims look at every shard that has rows": ("every_job_is_claimed",),
        "a claim stays within its batch": ("claims_are_bounded",),
        "a claim takes rows in order": ("claims_follow_the_order",),
    }
    n_rows: int
    n_clients: int
    batch: int

    def initial(self) -> Iterator[Lane]:
        """Rows of one or two shards; the first may be poison; the second may be committed only later."""
        for poison in (False, True):
            for shard in (0, 1):
                for late in (False, True):
                    first = Row(poison=poison, shard=shard, visible=not late)
                    yield Lane((first, *(Row(),) * (self.n_rows - 1)), (Client(),) * self.n_clients, 2)

    def _row(self, s: Lane, r: int, **fields: Any) -> Lane:
        return s._replace(rows=replaced(s.rows, r, s.rows[r]._replace(**fields)))

    def _client(self, s: Lane, c: int, **fields: Any) -> Lane:
        return s._replace(clients=replaced(s.clients, c, s.clients[c]._replace(**fields)))

    @fair
    def appear(self, s: Lane) -> Steps[Lane]:
        """A producer that took its position long ago commits."""
        for r, row in enumerate(s.rows):
            if not row.visible:
                yield (r,), self._row(s, r, visible=True)

    @action
    def reduce_shards(self, s: Lane) -> Steps[Lane]:
        """An operator gives the queue fewer shards while rows are in the one that goes."""
        if s.shards > 1:
            yield (), s._replace(shards=1)

    @fair
    def claim(self, s: Lane) -> Steps[Lane]:
        """A claimer takes up to a batch from its hint on, and remembers how far it came."""
        for c, client in enumerate(s.clients):
            if client.gone:
                continue
            picked = [r for r in range(client.hint, self.n_rows) if self._claimable(s, r)]
            if not self.keeps("a claim takes rows in order"):
                picked.reverse()
            picked = picked[: self.batch] if self.keeps("a claim stays within its batch") else picked
            restarts = self.keeps("a claimer starts again from the beginning")
            hint = 0 if len(picked) < self.batch and restarts else max(picked, default=client.hint)
            after = self._client(s, c, hint=hint)
            if any(s.rows[r].poison for r in picked) and not self.keeps(
                "what cannot be claimed is recorded and the rest is claimed"
            ):
                yield (c, "raised"), s
                continue
            for r in picked:
                after = self._row(after, r, state="failed" if s.rows[r].poison else "leased", by=c)
            yield (c, *picked), after

    def _claimable(self, s: Lane, r: int) -> bool:
        row = s.rows[r]
        looked_at = row.shard < s.shards or self.keeps("claims look at every shard that has rows")
        free = row.state == "ready" or (row.state == "hidden" and not self.keeps("claims skip locked rows"))
        return row.visible and free and looked_at

    @action
    def stop_reading(self, s: Lane) -> Steps[Lane]:
        """The first claimer freezes while its claim is answered: the claim has committed, or stays open for ever."""
        client = s.clients[0]
        picked = [r for r in range(client.hint, self.n_rows) if self._claimable(s, r) and not s.rows[r].poison][
            : self.batch
        ]
        if not client.gone and picked:
            committed = self.keeps("a claim commits before it answers")
            after = self._client(s, 0, gone=True)
            for r in picked:
                after = self._row(after, r, state="leased" if committed else "hidden", by=0)
            yield tuple(picked), after

    @action
    def claim_slowly(self, s: Lane) -> Steps[Lane]:
        """A claim whose transaction is open for a moment: its rows are locked, others skip them."""
        for c, client in enumerate(s.clients):
            free = [
                r
                for r in range(self.n_rows)
                if s.rows[r].visible and s.rows[r].state == "ready" and not s.rows[r].poison
            ]
            if c and not client.gone and free:
                yield (c, free[0]), self._row(s, free[0], state="hidden", by=c)

    @fair
    def commit(self, s: Lane) -> Steps[Lane]:
        """It commits."""
        for r, row in enumerate(s.rows):
            if row.state == "hidden" and row.by is not None and not s.clients[row.by].gone:
                yield (r,), self._row(s, r, state="leased")

    @fair
    def finish(self, s: Lane) -> Steps[Lane]:
        """A job's handler ends."""
        for r, row in enumerate(s.rows):
            if row.state == "leased" and row.by is not None and not s.clients[row.by].gone:
                yield (r,), self._row(s, r, state="done")

    @fair
    def rescue(self, s: Lane) -> Steps[Lane]:
        """A client that does not beat is dead, and its leases go back; what it keeps hidden in a transaction cannot."""
        for r, row in enumerate(s.rows):
            if (
                row.state == "leased"
                and row.by is not None
                and s.clients[row.by].gone
                and self.keeps("the dead are rescued")
            ):
                yield (r,), self._row(s, r, state="ready", by=None)

    @invariant
    def claims_are_known(self, s: Lane) -> bool:
        """A leased row has a holder."""
        return all(row.by is not None for row in s.rows if row.state in ("leased", "hidden", "failed"))

    @step_rule
    def a_row_is_taken_once(self, s: Lane, name: str, args: Args, after: Lane) -> bool:
        """What one transaction has taken, no other takes before it is given back."""
        pairs = zip(s.rows, after.rows, strict=True)
        return all(row.by in (None, now.by) or now.by is None for row, now in pairs)

    @step_rule
    def claims_are_bounded(self, s: Lane, name: str, args: Args, after: Lane) -> bool:
        """A claim takes at most a batch."""
        return name != "claim" or len(args) - 1 <= self.batch

    @step_rule
    def claims_follow_the_order(self, s: Lane, name: str, args: Args, after: Lane) -> bool:
        """From the hint on, a claim takes what it can in position order."""
        if name != "claim" or len(args) < 2 or args[1] == "raised":
            return True
        passed = [r for r in range(s.clients[args[0]].hint, max(args[1:])) if self._claimable(s, r)]
        return set(passed) <= set(args[1:])

    @leaves
    def every_job_is_claimed(self, s: Lane) -> bool:
        """No committed job waits for ever.

        Not behind a hint, not behind poison, not in a dead client's hands, not in a lost shard.
        """
        return any(
            row.state in ("ready", "hidden") or (row.state == "leased" and s.clients[row.by or 0].gone)
            for row in s.rows
        )
