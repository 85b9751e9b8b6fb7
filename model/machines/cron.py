"""Schedules: each fire becomes at most one job, whoever leads, crashes or pauses meanwhile."""

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
    """A process that evaluates schedules; `read` is the mark it has read, or None."""

    alive: bool = True
    read: int | None = None


class Schedule(NamedTuple):
    """One schedule: fires 1..due are due, those up to the mark are decided; `jobs` counts the jobs of each fire."""

    policy: str
    nodes: tuple[Node, ...]
    jobs: tuple[int, ...]
    due: int = 0
    mark: int = 0
    paused: bool = False
    leader: int | None = None
    crashes: int = 0
    pauses: int = 0


class Cron(Machine[Schedule]):
    """Two processes, a few fires, and the three policies for missed ones."""

    facts = "X10, M46 to M51"
    code = "core/cron.py, store/cron.py, store/migrations/0010"
    sizes: ClassVar[Sizes] = {
        "dev": {"n_nodes": 2, "fires": 2, "crashes": 1, "pauses": 1},
        "ci": {"n_nodes": 2, "fires": 4, "crashes": 2, "pauses": 2},
        "nightly": {"n_nodes": 3, "fires": 4, "crashes": 2, "pauses": 2},
    }
    walk_sizes: ClassVar[Bounds] = {"n_nodes": 4, "fires": 12, "crashes": 5, "pauses": 5}
    twins: ClassVar[Twins] = {
        "the mark is moved only from where it was read": ("a_fire_becomes_one_job",),
        "a paused schedule enqueues nothing": ("a_pause_holds",),
        "job and mark are one transaction": ("a_fire_becomes_one_job", "caught_up_fires_become_jobs"),
        "the mark moves with what was decided": ("caught_up_fires_become_jobs",),
        "the leader evaluates": ("every_fire_is_decided",),
    }
    n_nodes: int
    fires: int
    crashes: int
    pauses: int

    def initial(self) -> Iterator[Schedule]:
        """A schedule of each policy, before its first fire."""
        for policy in ("coalesce", "catch_up", "skip"):
            nodes = (Node(),) * self.n_nodes
            yield Schedule(policy, nodes, (0,) * self.fires, crashes=self.crashes, pauses=self.pauses)

    def _node(self, s: Schedule, n: int, **fields: Any) -> Schedule:
        return s._replace(nodes=replaced(s.nodes, n, s.nodes[n]._replace(**fields)))

    @fair
    def come_due(self, s: Schedule) -> Steps[Schedule]:
        """Time passes, and the next fire is due."""
        if s.due < self.fires:
            yield (), s._replace(due=s.due + 1)

    @fair
    def read(self, s: Schedule) -> Steps[Schedule]:
        """The leader reads the mark."""
        for n, node in enumerate(s.nodes):
            if (
                s.leader == n
                and node.alive
                and node.read is None
                and s.mark < s.due
                and self.keeps("the leader evaluates")
            ):
                yield (n,), self._node(s, n, read=s.mark)

    @fair
    def fire(self, s: Schedule) -> Steps[Schedule]:
        """A process decides what to enqueue after the mark it read, and does it; it may have lost its term by now."""
        for n, node in enumerate(s.nodes):
            if node.read is None or not node.alive:
                continue
            after = self._node(s, n, read=None)
            if not self.guard("the mark is moved only from where it was read", node.read == s.mark) or not self.guard(
                "a paused schedule enqueues nothing", not s.paused
            ):
                yield (n, "lost"), after
                continue
            fires = list(range(node.read + 1, s.due + 1))
            if s.policy != "catch_up":
                fires = fires[-1:]
            for chosen in (fires, []) if s.policy == "skip" else (fires,):
                yield (n, *chosen), self._fired(after, node.read, chosen)
                if not self.keeps("job and mark are one transaction"):
                    yield (
                        (n, *chosen, "killed after the job"),
                        self._fired(after, node.read, chosen)._replace(mark=s.mark),
                    )

    def _fired(self, s: Schedule, read: int, chosen: list[int]) -> Schedule:
        jobs = tuple(min(2, count + (number in chosen)) for number, count in enumerate(s.jobs, 1))
        return s._replace(jobs=jobs, mark=s.due if self.keeps("the mark moves with what was decided") else read)

    @action
    def crash(self, s: Schedule) -> Steps[Schedule]:
        """A process dies between reading and firing, or at any other time."""
        for n, node in enumerate(s.nodes):
            if node.alive and s.crashes:
                after = self._node(s, n, alive=False, read=None)
                yield (n,), after._replace(crashes=s.crashes - 1, leader=None if s.leader == n else s.leader)

    @fair
    def recover(self, s: Schedule) -> Steps[Schedule]:
        """It is started again."""
        for n, node in enumerate(s.nodes):
            if not node.alive:
                yield (n,), self._node(s, n, alive=True)

    @fair
    def lead(self, s: Schedule) -> Steps[Schedule]:
        """A process is elected; the one before may still be about to fire."""
        for n, node in enumerate(s.nodes):
            if node.alive and s.leader is None:
                yield (n,), s._replace(leader=n)

    @action
    def lose_lead(self, s: Schedule) -> Steps[Schedule]:
        """A term ends."""
        if s.leader is not None and s.crashes:
            yield (), s._replace(leader=None, crashes=s.crashes - 1)

    @action
    def pause(self, s: Schedule) -> Steps[Schedule]:
        """An operator pauses the schedule."""
        if not s.paused and s.pauses:
            yield (), s._replace(paused=True, pauses=s.pauses - 1)

    @fair
    def resume(self, s: Schedule) -> Steps[Schedule]:
        """And resumes it; the mark has stayed, so the policy decides about what came due meanwhile."""
        if s.paused:
            yield (), s._replace(paused=False)

    @invariant
    def a_fire_becomes_one_job(self, s: Schedule) -> bool:
        """No fire becomes two jobs."""
        return all(count <= 1 for count in s.jobs)

    @invariant
    def a_reader_is_not_ahead(self, s: Schedule) -> bool:
        """What a living process has read is not ahead of the stored mark, and a dead one has read nothing."""
        return all(node.read is None or (node.alive and node.read <= s.mark) for node in s.nodes)

    @invariant
    def the_leader_lives(self, s: Schedule) -> bool:
        """Who leads is alive."""
        return s.leader is None or s.nodes[s.leader].alive

    @invariant
    def caught_up_fires_become_jobs(self, s: Schedule) -> bool:
        """Under catch_up every fire up to the mark has become a job, and no later one; otherwise the last or none."""
        decided = s.jobs[: s.mark]
        if s.policy == "catch_up":
            return all(decided) and not any(s.jobs[s.mark :])
        return s.policy == "skip" or not decided or decided[-1] == 1

    @step_rule
    def a_pause_holds(self, s: Schedule, name: str, args: Args, after: Schedule) -> bool:
        """Nothing is enqueued while the schedule is paused."""
        return not s.paused or s.jobs == after.jobs

    @leaves
    def every_fire_is_decided(self, s: Schedule) -> bool:
        """A fire that is due becomes a job, or its policy drops it, sooner or later."""
        return s.mark < s.due
