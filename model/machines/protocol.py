"""Permits, claims in flight, rate, beats and draining: what one process may run, and what others may take from it."""

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


class Node(NamedTuple):
    """A worker process.

    `asked` counts the jobs it asked for in a claim that is under way; `claim` is the claim's stage: none, sent (the
    database has not run it) or run (committed, not answered). `beat` is fresh, old (it no longer claims) or dead.
    """

    phase: str = "running"
    free: int = 0
    tokens: int = 0
    asked: int = 0
    claim: str = "none"
    beat: str = "fresh"
    beating: bool = True


class Row(NamedTuple):
    """A job. `task` is its handler in the owner's process: none, working, unrecorded (ended; its permit is free)."""

    state: str = "available"
    owner: int | None = None
    task: str = "none"


class Fleet(NamedTuple):
    """Worker processes, jobs, who leads maintenance, and how much may still go wrong."""

    nodes: tuple[Node, ...]
    rows: tuple[Row, ...]
    leader: int | None = None
    mishaps: int = 0


class Protocol(Machine[Fleet]):
    """Dispatchers, handlers, the recorder and a leader that rescues, in processes that drain."""

    facts = "X7 X8, trap T7; architecture 4 and 6"
    code = "actors/dispatcher.py, actors/crew.py, actors/worker.py, actors/liveness.py, actors/rate.py"
    sizes: ClassVar[Sizes] = {
        "dev": {"n_nodes": 2, "n_jobs": 1, "workers": 1, "batch": 1, "rate": 1, "mishaps": 1},
        "no more is claimed than permits are free": {"n_jobs": 2},
        "no more is claimed than one batch": {"n_jobs": 2, "workers": 2, "rate": 2},
        "ci": {"n_nodes": 2, "n_jobs": 2, "workers": 2, "batch": 1, "rate": 1, "mishaps": 1},
        "nightly": {"n_nodes": 2, "n_jobs": 3, "workers": 2, "batch": 2, "rate": 2, "mishaps": 2},
    }
    walk_sizes: ClassVar[Bounds] = {"n_nodes": 3, "n_jobs": 7, "workers": 3, "batch": 2, "rate": 2, "mishaps": 2}
    twins: ClassVar[Twins] = {
        "no more is claimed than permits are free": ("handlers_stay_within_the_permits",),
        "no more is claimed than one batch": ("a_claim_stays_within_its_batch",),
        "no more is claimed than tokens are left": ("starts_stay_within_the_rate",),
        "tokens of jobs that were not there go back": ("only_starts_cost_tokens",),
        "a draining process claims nothing": ("who_drains_claims_nothing",),
        "a process with an old beat claims nothing": ("who_may_be_taken_for_dead_claims_nothing",),
        "the beat goes on until everything is recorded": ("a_process_beats_while_it_runs_something",),
        "only the leader rescues": ("one_rescuer_at_a_time",),
        "only the dead lose their jobs": ("one_rescuer_at_a_time",),
        "a process stops when it owes nothing": ("who_has_stopped_holds_nothing",),
        "the lease is given up before the end": ("who_has_stopped_does_not_lead",),
        "what an unheard claim took goes back": ("every_drain_ends", "every_job_ends"),
    }
    n_nodes: int
    n_jobs: int
    workers: int
    batch: int
    rate: int
    mishaps: int

    def initial(self) -> Iterator[Fleet]:
        """All permits and tokens are free, every job waits."""
        yield Fleet(
            (Node(free=self.workers, tokens=self.rate),) * self.n_nodes, (Row(),) * self.n_jobs, mishaps=self.mishaps
        )

    def _node(self, s: Fleet, n: int, **fields: Any) -> Fleet:
        return s._replace(nodes=replaced(s.nodes, n, s.nodes[n]._replace(**fields)))

    def _row(self, s: Fleet, j: int, **fields: Any) -> Fleet:
        return s._replace(rows=replaced(s.rows, j, s.rows[j]._replace(**fields)))

    @fair
    def send_claim(self, s: Fleet) -> Steps[Fleet]:
        """A dispatcher asks for as many jobs as it may start."""
        for n, node in enumerate(s.nodes):
            wanted = self.n_jobs
            for name, most in (
                ("no more is claimed than permits are free", node.free),
                ("no more is claimed than one batch", self.batch),
                ("no more is claimed than tokens are left", node.tokens),
            ):
                wanted = min(wanted, most) if self.keeps(name) else wanted
            if (
                wanted > 0
                and node.claim == "none"
                and any(row.state == "available" for row in s.rows)
                and self.guard("a draining process claims nothing", node.phase == "running")
                and node.phase != "stopped"
                and self.guard("a process with an old beat claims nothing", node.beat == "fresh")
                and node.beat != "dead"
            ):
                yield (n, wanted), self._node(s, n, asked=wanted, claim="sent", tokens=max(0, node.tokens - wanted))

    @fair
    def run_claim(self, s: Fleet) -> Steps[Fleet]:
        """The database runs a claim and commits it before it answers."""
        for n, node in enumerate(s.nodes):
            if node.claim == "sent":
                after, left = self._node(s, n, claim="run"), node.asked
                for j, row in enumerate(s.rows):
                    if row.state == "available" and left:
                        after, left = self._row(after, j, state="running", owner=n, task="unheard"), left - 1
                yield (n,), after

    @fair
    def hear_claim(self, s: Fleet) -> Steps[Fleet]:
        """The answer arrives: a task per job, and tokens for what was not there go back."""
        for n, node in enumerate(s.nodes):
            mine = [j for j, row in enumerate(s.rows) if row.owner == n and row.task == "unheard"]
            if node.claim == "run" and node.phase != "stopped":
                back = node.asked - len(mine) if self.keeps("tokens of jobs that were not there go back") else 0
                tokens = min(self.rate, node.tokens + back)
                after = self._node(s, n, asked=0, claim="none", tokens=tokens, free=node.free - len(mine))
                for j in mine:
                    after = self._row(after, j, task="working")
                yield (n,), after

    @action
    def lose_claim(self, s: Fleet) -> Steps[Fleet]:
        """The connection breaks after the claim committed: its jobs are leased, and nobody knows."""
        for n, node in enumerate(s.nodes):
            if node.claim == "run" and node.phase != "stopped" and s.mishaps:
                after = self._node(s, n, asked=0, claim="none")._replace(mishaps=s.mishaps - 1)
                for j, row in enumerate(s.rows):
                    if row.owner == n and row.task == "unheard":
                        after = self._row(after, j, task="orphan")
                yield (n,), after

    @fair
    def give_back(self, s: Fleet) -> Steps[Fleet]:
        """A claimer that did not hear of a claim gives back what it took."""
        for n, node in enumerate(s.nodes):
            for j, row in enumerate(s.rows):
                orphan = row.owner == n and row.task == "orphan" and node.beat != "dead"
                if orphan and self.keeps("what an unheard claim took goes back"):
                    yield (j,), self._row(s, j, state="available", owner=None, task="none")

    @fair
    def refill(self, s: Fleet) -> Steps[Fleet]:
        """Time passes: another start is allowed."""
        for n, node in enumerate(s.nodes):
            if node.tokens < self.rate:
                yield (n,), self._node(s, n, tokens=node.tokens + 1)

    @fair
    def end_handler(self, s: Fleet) -> Steps[Fleet]:
        """A handler ends; its permit is free at once, before its end is recorded."""
        for j, row in enumerate(s.rows):
            if row.task == "working" and row.owner is not None:
                node = s.nodes[row.owner]
                yield (j,), self._node(self._row(s, j, task="unrecorded"), row.owner, free=node.free + 1)

    @fair
    def record(self, s: Fleet) -> Steps[Fleet]:
        """The end is recorded."""
        for j, row in enumerate(s.rows):
            if row.task == "unrecorded":
                yield (j,), self._row(s, j, state="completed", owner=None, task="none")

    @action
    def age(self, s: Fleet) -> Steps[Fleet]:
        """No beat was stored for two thirds of the limit: the database or the loop is slow."""
        for n, node in enumerate(s.nodes):
            if node.beat == "fresh" and node.phase != "stopped" and s.mishaps:
                yield (n,), self._node(s, n, beat="old")._replace(mishaps=s.mishaps - 1)

    @fair
    def beat(self, s: Fleet) -> Steps[Fleet]:
        """A beat is stored."""
        for n, node in enumerate(s.nodes):
            if node.beat == "old" and node.beating:
                yield (n,), self._node(s, n, beat="fresh")

    @action
    def bury(self, s: Fleet) -> Steps[Fleet]:
        """A process that has not beaten for the whole limit is declared dead; this machine lets it be a killed one."""
        for n, node in enumerate(s.nodes):
            if node.beat == "old" and n > 0:
                after = self._node(s, n, beat="dead", phase="stopped", beating=False, claim="none", asked=0)
                for j, row in enumerate(s.rows):
                    if row.owner == n:
                        after = self._row(after, j, task="none")
                yield (n,), after._replace(leader=None if s.leader == n else s.leader)

    @fair
    def lead(self, s: Fleet) -> Steps[Fleet]:
        """A candidate becomes leader."""
        for n, node in enumerate(s.nodes):
            if s.leader is None and node.phase != "stopped":
                yield (n,), s._replace(leader=n)

    @fair
    def rescue(self, s: Fleet) -> Steps[Fleet]:
        """The leader takes jobs back from dead instances."""
        for j, row in enumerate(s.rows):
            for n, node in enumerate(s.nodes):
                if row.owner is None or node.phase == "stopped":
                    continue
                dead = s.nodes[row.owner].beat == "dead"
                leads = self.guard("only the leader rescues", s.leader == n)
                if leads and self.guard("only the dead lose their jobs", dead):
                    yield (n, j), self._row(s, j, state="available", owner=None, task="none")

    @action
    def drain(self, s: Fleet) -> Steps[Fleet]:
        """A process is asked to drain."""
        for n, node in enumerate(s.nodes):
            if node.phase == "running":
                beating = self.keeps("the beat goes on until everything is recorded")
                yield (n,), self._node(s, n, phase="draining", beating=beating)

    @fair
    def stop(self, s: Fleet) -> Steps[Fleet]:
        """A draining process stops when its handlers have ended and everything is recorded; the lease goes last."""
        for n, node in enumerate(s.nodes):
            owes = any(row.owner == n for row in s.rows) or node.claim != "none"
            if node.phase == "draining" and self.guard("a process stops when it owes nothing", not owes):
                leader = None if s.leader == n and self.keeps("the lease is given up before the end") else s.leader
                yield (n,), self._node(s, n, phase="stopped", beating=False)._replace(leader=leader)

    @invariant
    def handlers_stay_within_the_permits(self, s: Fleet) -> bool:
        """A process never runs more handlers at once than it has permits."""
        working = [sum(row.owner == n and row.task == "working" for row in s.rows) for n in range(self.n_nodes)]
        return all(node.free >= 0 and working[n] <= self.workers for n, node in enumerate(s.nodes))

    @invariant
    def a_claim_stays_within_its_batch(self, s: Fleet) -> bool:
        """No claim asks for more than one batch."""
        return all(node.asked <= self.batch for node in s.nodes)

    @invariant
    def who_has_stopped_holds_nothing(self, s: Fleet) -> bool:
        """A process that stopped by itself owns no job."""
        return not any(
            r.owner is not None and s.nodes[r.owner].beat != "dead" and s.nodes[r.owner].phase == "stopped"
            for r in s.rows
        )

    @invariant
    def a_process_beats_while_it_runs_something(self, s: Fleet) -> bool:
        """A process beats until it has stopped, also while it drains."""
        return all(node.beating or node.phase == "stopped" for node in s.nodes)

    @invariant
    def who_has_stopped_does_not_lead(self, s: Fleet) -> bool:
        """A stopped process does not lead."""
        return s.leader is None or s.nodes[s.leader].phase != "stopped"

    @step_rule
    def starts_stay_within_the_rate(self, s: Fleet, name: str, args: Args, after: Fleet) -> bool:
        """A claim never asks for more starts than the rate allows now."""
        return name != "send_claim" or args[1] <= s.nodes[args[0]].tokens

    @step_rule
    def only_starts_cost_tokens(self, s: Fleet, name: str, args: Args, after: Fleet) -> bool:
        """A claim that brought less than it asked for has cost no more than it brought."""
        if name != "hear_claim":
            return True
        before, now = s.nodes[args[0]], after.nodes[args[0]]
        return now.tokens >= min(self.rate, before.tokens + before.asked - (before.free - now.free))

    @step_rule
    def who_drains_claims_nothing(self, s: Fleet, name: str, args: Args, after: Fleet) -> bool:
        """No claim is sent after claiming was stopped."""
        return name != "send_claim" or s.nodes[args[0]].phase == "running"

    @step_rule
    def who_may_be_taken_for_dead_claims_nothing(self, s: Fleet, name: str, args: Args, after: Fleet) -> bool:
        """A process whose stored beat is old takes no more work."""
        return name != "send_claim" or s.nodes[args[0]].beat == "fresh"

    @step_rule
    def one_rescuer_at_a_time(self, s: Fleet, name: str, args: Args, after: Fleet) -> bool:
        """Only the leader takes jobs away, and only from the dead."""
        if name != "rescue":
            return True
        owner = s.rows[args[1]].owner
        return s.leader == args[0] and owner is not None and s.nodes[owner].beat == "dead"

    @leaves
    def every_drain_ends(self, s: Fleet) -> bool:
        """A process that was asked to drain stops."""
        return any(node.phase == "draining" for node in s.nodes)

    @leaves
    def every_job_ends(self, s: Fleet) -> bool:
        """While a process takes work, no job stays unfinished for ever."""
        return s.nodes[0].phase == "running" and any(row.state != "completed" for row in s.rows)
