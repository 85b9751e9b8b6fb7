"""Who locks what in which order: nobody waits in a circle, and maintenance waits behind no stuck session."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import ClassVar, NamedTuple

from model.machine import Args, Bounds, Machine, Sizes, Steps, Twins, action, fair, invariant, step_rule

Lock = tuple[str, str]
"""What is locked, and how: `wait` for it, `skip` it if others have it, or give up with `nowait`.

`share` waits for writers only.
"""

PLANS: dict[str, tuple[Lock, ...]] = {
    "enqueue": (("segment", "share"), ("key 1", "wait"), ("key 2", "wait")),
    "enqueue in bulk": (("segment", "share"), ("key 1", "wait"), ("key 2", "wait")),
    "claim": (("segment", "share"), ("job 1", "skip"), ("job 2", "skip")),
    "complete": (("job 1", "wait"), ("job 2", "wait"), ("segment", "share"), ("key 1", "wait")),
    "settle": (("job 1", "wait"), ("key 1", "wait"), ("job 2", "wait"), ("key 2", "wait")),
    "cancel": (("job 2", "wait"), ("key 2", "wait")),
    "resolve": (("job 1", "wait"), ("callback 1", "wait")),
    "expire": (("job 1", "skip"), ("callback 1", "wait")),
    "rescue": (("job 1", "skip"), ("job 2", "skip"), ("key 1", "wait")),
    "promote": (("job 1", "skip"), ("job 2", "skip"), ("segment", "share"), ("key 1", "wait")),
    "carry": (("job 1", "skip"), ("job 2", "skip"), ("segment", "share")),
    "truncate": (("segment", "nowait"),),
}
"""The locks of every verb.

Batches lock jobs in the order of their ids. Keys that change hands while a batch is recorded come in the order of its
jobs, so two of them may meet in a circle of keys: there the server ends one, and it is done again. Truncation also
deletes claims, of jobs that are over: those rows nobody else locks.
"""

BROKEN: dict[str, dict[str, tuple[Lock, ...]]] = {
    "batches lock jobs in the order of their ids": {"complete": (("job 2", "wait"), ("job 1", "wait"))},
    "batches lock keys in their order": {"enqueue in bulk": (("key 2", "wait"), ("key 1", "wait"))},
    "a callback is locked after its lease": {"resolve": (("callback 1", "wait"), ("job 1", "wait"))},
    "truncation never waits for its lock": {"truncate": (("key 1", "wait"), ("segment", "wait"))},
    "maintenance skips what is locked": {
        "carry": (("segment", "share"), ("job 2", "wait"), ("job 1", "wait")),
        "rescue": (("job 2", "wait"), ("job 1", "wait")),
    },
}
"""For each rule, the plans that break it.

The last two are the older rotators and striped claims, which met in a circle.
"""


class Transaction(NamedTuple):
    """A verb, how many of its locks it has been through, and those it holds."""

    verb: str
    at: int = 0
    held: tuple[Lock, ...] = ()


class Locks(NamedTuple):
    """The transactions of one run."""

    transactions: tuple[Transaction, ...]


class LockOrder(Machine[Locks]):
    """Every pair (or triple) of verbs at once; each takes its locks one by one, commits, and lets go."""

    facts = "X19"
    code = "store/migrations/0003 to 0013"
    sizes: ClassVar[Sizes] = {
        "dev": {"together": 2},
        "ci": {"together": 3},
        "nightly": {"together": 4},
    }
    walk_sizes: ClassVar[Bounds] = {"together": 4}
    twins: ClassVar[Twins] = {
        **{rule: ("may_rest",) for rule in BROKEN},
        "truncation never waits for its lock": ("may_rest", "maintenance_never_waits"),
        "maintenance skips what is locked": ("may_rest", "maintenance_never_waits"),
    }
    together: int

    def initial(self) -> Iterator[Locks]:
        """Any verbs at once."""
        for verbs in combinations_with_replacement(PLANS, self.together):
            yield Locks(tuple(Transaction(verb) for verb in verbs))

    def plan(self, verb: str) -> tuple[Lock, ...]:
        """The locks of a verb, in the order in which it takes them."""
        for rule, plans in BROKEN.items():
            if not self.keeps(rule) and verb in plans:
                return plans[verb]
        return PLANS[verb]

    def may_rest(self, state: Locks) -> bool:
        """A run in which nothing can happen has come to its end: no circle of transactions that wait for each other."""
        return not state.transactions

    def _blocked(self, s: Locks, t: int, lock: Lock) -> bool:
        what, how = lock
        for u, other in enumerate(s.transactions):
            if u != t and any(w == what and not (how == h == "share") for w, h in other.held):
                return True
        return False

    @fair
    def take(self, s: Locks) -> Steps[Locks]:
        """A transaction takes its next lock, goes around it, or gives up; or it waits, and that is no step."""
        for t, me in enumerate(s.transactions):
            plan = self.plan(me.verb)
            if me.at == len(plan):
                continue
            what, how = plan[me.at]
            if not self._blocked(s, t, (what, how)):
                now = me._replace(at=me.at + 1, held=(*me.held, (what, how)))
            elif how == "skip":
                now = me._replace(at=me.at + 1)
            elif how == "nowait":
                now = me._replace(at=len(plan))
            else:
                continue
            yield (me.verb, what, how), Locks((*s.transactions[:t], now, *s.transactions[t + 1 :]))

    @fair
    def commit(self, s: Locks) -> Steps[Locks]:
        """A transaction that is through commits and lets go of everything."""
        for t, me in enumerate(s.transactions):
            if me.at == len(self.plan(me.verb)):
                yield (me.verb,), Locks((*s.transactions[:t], *s.transactions[t + 1 :]))

    @action
    def abort(self, s: Locks) -> Steps[Locks]:
        """A transaction is rolled back while it works, or while it waits for a key: then the server has ended it.

        A producer's is not, since it would be the user who has to retry; neither is one that waits for a job or a
        segment.
        """
        for t, me in enumerate(s.transactions):
            plan = self.plan(me.verb)
            if 0 < me.at < len(plan) and (
                not self._blocked(s, t, plan[me.at])
                or (not me.verb.startswith("enqueue") and plan[me.at][0].startswith("key"))
            ):
                yield (me.verb,), Locks((*s.transactions[:t], *s.transactions[t + 1 :]))

    @invariant
    def only_one_writes(self, s: Locks) -> bool:
        """A lock has one holder, unless all share it."""
        held = [lock for transaction in s.transactions for lock in set(transaction.held)]
        exclusive = [what for what, how in held if how != "share"]
        return len(exclusive) == len(set(exclusive))

    @step_rule
    def maintenance_never_waits(self, s: Locks, name: str, args: Args, after: Locks) -> bool:
        """Sweeps and truncation take no lock of a job or a segment that they could have to wait for."""
        if name != "take" or args[0] not in ("rescue", "promote", "carry", "expire", "truncate"):
            return True
        return not (args[1].startswith("job") and args[2] == "wait") and args[1:] != ("segment", "wait")
