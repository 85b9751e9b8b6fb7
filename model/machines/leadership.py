"""Leadership over a lease row: frozen and thawed holders, killed sessions, slow answers, resigning while stopping."""

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
    """A process that stands for election.

    `phase` is candidate, leading, resigning or stopped. `trust` counts down what is left of its own belief. `request`
    is what it sent and has not heard of (acquire or renew), `answer` what the database said to that, `age` how long
    ago it was sent. `mine` says that the row's term is its own. `late` is a renewal that it gave up waiting for and
    that may still be run.
    """

    phase: str = "candidate"
    trust: int = 0
    request: str | None = None
    answer: bool | None = None
    age: int = 0
    mine: bool = False
    late: bool = False
    frozen: bool = False
    killed: bool = False
    stopping: bool = False


class Election(NamedTuple):
    """The processes, and the lease row: holder, time left, whether the holder's session is on the server."""

    nodes: tuple[Node, ...]
    holder: int | None = None
    left: int = 0
    session: bool = True
    mishaps: int = 0


class Leadership(Machine[Election]):
    """Time is counted down, not up, so that the machine is finite.

    A process that is not frozen acts before time goes on.
    """

    facts = "architecture 3; field report 002"
    code = "actors/leader.py, store/leadership.py, core/leadership.py"
    sizes: ClassVar[Sizes] = {
        "dev": {"n_nodes": 2, "lease": 3, "trust": 2, "mishaps": 1},
        "ci": {"n_nodes": 2, "lease": 4, "trust": 3, "mishaps": 2},
        "nightly": {"n_nodes": 3, "lease": 3, "trust": 2, "mishaps": 2},
    }
    walk_sizes: ClassVar[Bounds] = {"n_nodes": 4, "lease": 6, "trust": 4, "mishaps": 9}
    twins: ClassVar[Twins] = {
        "the lease outlasts the trust": ("one_leader_is_trusted",),
        "trust counts from sending": ("one_leader_is_trusted",),
        "the term ends with the trust": ("one_leader_is_trusted",),
        "only a free lease is taken": ("one_leader_is_trusted", "a_held_lease_is_not_taken"),
        "a renewal names its holder and term": ("a_term_renews_only_itself",),
        "an expired lease is not renewed": ("an_expired_lease_waits_to_be_taken",),
        "a resignation names its holder and term": ("a_term_ends_only_itself",),
        "who stops does not stand": ("who_stops_does_not_stand",),
        "resigning is the last act": ("who_resigns_frees_its_lease",),
        "an expired lease is free": ("somebody_leads",),
    }
    n_nodes: int
    lease: int
    trust: int
    mishaps: int

    def initial(self) -> Iterator[Election]:
        """Nobody leads."""
        yield Election((Node(),) * self.n_nodes, mishaps=self.mishaps)

    def _node(self, s: Election, n: int, **fields: Any) -> Election:
        return s._replace(nodes=replaced(s.nodes, n, s.nodes[n]._replace(**fields)))

    def _trust(self) -> int:
        return self.trust if self.keeps("the lease outlasts the trust") else self.lease + 1

    def _is_free(self, s: Election) -> bool:
        expired = s.left == 0 and self.keeps("an expired lease is free")
        return s.holder is None or expired or not s.session

    @fair
    def stand(self, s: Election) -> Steps[Election]:
        """A candidate that saw a free lease asks for it."""
        for n, node in enumerate(s.nodes):
            able = node.phase == "candidate" and not node.frozen and node.request is None and self._is_free(s)
            if able and self.guard("who stops does not stand", not node.stopping):
                yield (n,), self._node(s, n, request="acquire", answer=None, age=0)

    @fair
    def renew(self, s: Election) -> Steps[Election]:
        """A leader asks for more time, once per unit of it."""
        for n, node in enumerate(s.nodes):
            idle = node.phase == "leading" and not node.frozen and not node.killed and node.request is None
            if idle and 0 < node.trust < self._trust():
                yield (n,), self._node(s, n, request="renew", answer=None, age=0)

    @fair
    def run(self, s: Election) -> Steps[Election]:
        """The database runs a request."""
        for n, node in enumerate(s.nodes):
            if node.request is None or node.answer is not None or node.killed:
                continue
            if node.request == "renew":
                yield (n,), self._renewed(self._node(s, n, answer=self._may_renew(s, n)), n)
            elif self.guard("only a free lease is taken", self._is_free(s)):
                after = s._replace(nodes=tuple(other._replace(mine=m == n) for m, other in enumerate(s.nodes)))
                # A renewal of an earlier term of its own, still under way, names a term that is over now.
                yield (
                    (n,),
                    self._node(after, n, answer=True, late=False)._replace(holder=n, left=self.lease, session=True),
                )
            else:
                yield (n,), self._node(s, n, answer=False)

    def _may_renew(self, s: Election, n: int) -> bool:
        named = self.guard("a renewal names its holder and term", s.holder == n and s.nodes[n].mine)
        return named and self.guard("an expired lease is not renewed", s.left > 0)

    def _renewed(self, s: Election, n: int) -> Election:
        return s._replace(left=self.lease) if s.nodes[n].answer else s

    @action
    def run_late(self, s: Election) -> Steps[Election]:
        """The database runs a renewal that its sender no longer waits for."""
        for n, node in enumerate(s.nodes):
            if node.late:
                after = self._node(s, n, late=False)
                yield (n,), after._replace(left=self.lease) if self._may_renew(s, n) else after

    @fair
    def hear(self, s: Election) -> Steps[Election]:
        """The answer arrives. What may be believed counts from when the request was sent."""
        for n, node in enumerate(s.nodes):
            if node.answer is None or node.frozen or node.killed:
                continue
            age = node.age if self.keeps("trust counts from sending") else 0
            done = self._node(s, n, request=None, answer=None, age=0)
            if node.answer:
                yield (n,), self._node(done, n, phase="leading", trust=max(0, self._trust() - age))
            else:
                yield (n,), self._node(done, n, phase="resigning" if node.phase == "leading" else "candidate", trust=0)

    @fair
    def step_down(self, s: Election) -> Steps[Election]:
        """A leader whose trust is over, or that is asked to stop, ends its term."""
        for n, node in enumerate(s.nodes):
            over = node.trust == 0 and self.keeps("the term ends with the trust")
            if node.phase == "leading" and not node.frozen and (over or node.stopping):
                late = node.request == "renew" and node.answer is None
                yield (n,), self._node(s, n, phase="resigning", trust=0, request=None, answer=None, age=0, late=late)

    @fair
    def resign(self, s: Election) -> Steps[Election]:
        """The lease is given back; a term that is over gives back nothing."""
        for n, node in enumerate(s.nodes):
            if node.phase == "resigning" and not node.frozen:
                after = self._node(s, n, phase="candidate", mine=False)
                resigns = not node.killed and self.keeps("resigning is the last act")
                if resigns and self.guard("a resignation names its holder and term", s.holder == n and node.mine):
                    after = after._replace(holder=None, left=0)
                yield (n,), self._node(after, n, killed=False)

    @action
    def kill_session(self, s: Election) -> Steps[Election]:
        """An administrator ends a leader's session; what it sent and was not run is lost."""
        for n, node in enumerate(s.nodes):
            if node.phase == "leading" and not node.killed and s.mishaps:
                after = self._node(s, n, killed=True, request=None, answer=None, age=0)
                yield (n,), after._replace(session=s.session and s.holder != n, mishaps=s.mishaps - 1)

    @fair
    def notice(self, s: Election) -> Steps[Election]:
        """A process hears that its session is gone: its term is over at once."""
        for n, node in enumerate(s.nodes):
            if node.killed and node.phase == "leading" and not node.frozen:
                yield (n,), self._node(s, n, phase="resigning", trust=0, request=None, answer=None, age=0)

    @action
    def freeze(self, s: Election) -> Steps[Election]:
        """A process is stopped in its tracks, at any moment."""
        for n, node in enumerate(s.nodes):
            if not node.frozen and node.phase != "stopped" and s.mishaps:
                yield (n,), self._node(s, n, frozen=True)._replace(mishaps=s.mishaps - 1)

    @action
    def thaw(self, s: Election) -> Steps[Election]:
        """It goes on as if nothing had happened."""
        for n, node in enumerate(s.nodes):
            if node.frozen:
                yield (n,), self._node(s, n, frozen=False)

    @action
    def stop(self, s: Election) -> Steps[Election]:
        """A process is asked to stop; the last one stays, so that somebody can lead."""
        for n, node in enumerate(s.nodes[1:], 1):
            if not node.stopping:
                yield (n,), self._node(s, n, stopping=True)

    @fair
    def end(self, s: Election) -> Steps[Election]:
        """A stopping process that neither leads nor waits for an answer ends."""
        for n, node in enumerate(s.nodes):
            if node.stopping and node.phase == "candidate" and node.request is None and not node.frozen:
                yield (n,), self._node(s, n, phase="stopped")

    @fair
    def tick(self, s: Election) -> Steps[Election]:
        """Time goes on, when every process that can has acted; while an answer is under way that is a mishap."""
        waiting = any(node.request is not None and not node.frozen for node in s.nodes)
        overdue = any(node.phase == "leading" and not node.frozen and node.trust == 0 for node in s.nodes)
        overdue = overdue and self.keeps("the term ends with the trust")
        if overdue or (waiting and not s.mishaps):
            return
        nodes = tuple(
            node._replace(
                trust=max(0, node.trust - (node.phase == "leading")),
                age=min(node.age + (node.request is not None), self.lease + 1),
            )
            for node in s.nodes
        )
        yield (), s._replace(nodes=nodes, left=max(0, s.left - 1), mishaps=s.mishaps - waiting)

    @invariant
    def one_leader_is_trusted(self, s: Election) -> bool:
        """Two processes never lead at once, unless one is frozen or has not yet heard that its session is gone."""
        active = [n for n in s.nodes if n.phase == "leading" and not n.frozen and not n.killed]
        believing = [n for n in active if n.trust > 0 or self.without == "the term ends with the trust"]
        return len(believing) <= 1

    @step_rule
    def who_resigns_frees_its_lease(self, s: Election, name: str, args: Args, after: Election) -> bool:
        """The end of a term whose session lives frees the lease, so that nobody waits for it to expire."""
        if name != "resign" or s.holder != args[0] or not s.nodes[args[0]].mine:
            return True
        return s.nodes[args[0]].killed or after.holder is None

    @step_rule
    def a_held_lease_is_not_taken(self, s: Election, name: str, args: Args, after: Election) -> bool:
        """A lease changes hands only when it is given up, has expired, or its holder's session is gone."""
        taken = name == "run" and after.holder != s.holder
        return not taken or s.holder is None or s.left == 0 or not s.session

    @step_rule
    def a_term_renews_only_itself(self, s: Election, name: str, args: Args, after: Election) -> bool:
        """A renewal extends the term that it names, and no other."""
        renews = name == "run_late" or (name == "run" and s.nodes[args[0]].request == "renew")
        return not renews or after.left == s.left or (s.holder == args[0] and s.nodes[args[0]].mine)

    @step_rule
    def an_expired_lease_waits_to_be_taken(self, s: Election, name: str, args: Args, after: Election) -> bool:
        """What has expired is not renewed, however late a renewal arrives."""
        renews = name == "run_late" or (name == "run" and s.nodes[args[0]].request == "renew")
        return not renews or after.left == s.left or s.left > 0

    @step_rule
    def a_term_ends_only_itself(self, s: Election, name: str, args: Args, after: Election) -> bool:
        """A resignation frees the lease only of the term that it names."""
        return name != "resign" or after.holder == s.holder or (s.holder == args[0] and s.nodes[args[0]].mine)

    @step_rule
    def who_stops_does_not_stand(self, s: Election, name: str, args: Args, after: Election) -> bool:
        """A stopping process asks for no new term."""
        return name != "stand" or not s.nodes[args[0]].stopping

    @leaves
    def somebody_leads(self, s: Election) -> bool:
        """While a process can lead, there are not for ever only processes that do not; a frozen leader is replaced."""
        able = s.nodes[0].phase != "stopped" and not s.nodes[0].frozen and not s.nodes[0].stopping
        return able and not any(n.phase == "leading" and not n.frozen and not n.killed for n in s.nodes)
