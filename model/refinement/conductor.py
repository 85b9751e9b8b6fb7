"""Walk the queue machine and the real store side by side; after each step both must say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from model.explorer import Violation
from model.machine import Args
from model.machines.queue import Plane, Queue
from model.refinement.store import Store

Move = tuple[str, Args, Plane]


@attrs.define(eq=False)
class Conductor:
    """One walk.

    Args:
        machine: whose rules are followed.
        store: the database that must do the same.
        pick: chooses a number below the one it is given.
    """

    machine: Queue
    store: Store
    pick: Callable[[int], int]
    state: Plane = attrs.field(init=False)
    script: list[Move] = attrs.field(factory=list)
    forgotten: bool = False

    def __attrs_post_init__(self) -> None:
        """Begin at the beginning."""
        self.state = next(self.machine.initial())

    def walk(self, length: int) -> None:
        """Take steps, each with a look at everything that is committed.

        Raises:
            AssertionError: the store did something else than the machine; the text is the script.
        """
        for _ in range(length):
            self._take(*self._choose())
            if self.pick(6) == 1:
                self._truncate()

    def follow(self, story: Iterable[tuple[str, Args]]) -> None:
        """Take the steps of a story, which may also turn a ring (``turn``) or try to truncate slots (``truncate``).

        Raises:
            LookupError: the machine cannot take a step.
            AssertionError: the store did something else than the machine; the text is the script.
        """
        for name, args in story:
            if name == "turn":
                self.store.turn(args[0])
            elif name == "truncate":
                self._truncate()
                self._compare()
            else:
                moves = [move for move in self._moves() if (move[0], move[1][: len(args)]) == (name, args)]
                if not moves:
                    raise LookupError(f"{name}{args} is not possible now")
                self._take(*moves[0])

    def _take(self, name: str, args: Args, after: Plane) -> None:
        self.script.append((name, args, after))
        try:
            self._step(name, args, after)
            self.state = after
            self._compare()
        except Exception as error:
            start = next(self.machine.initial())
            told = Violation("refinement", f"{type(error).__name__}: {error}", start, self.script)
            raise AssertionError(f"the store and the machine differ\n{told}") from error

    def _truncate(self) -> None:
        self.forgotten = "truncated" in self.store.truncate() or self.forgotten

    def _moves(self) -> Iterable[Move]:
        for name, act in self.machine.actions.items():
            for args, after in act(self.state):
                if self._is_meant(name, args, after):
                    yield name, args, after

    def _choose(self) -> Move:
        """An action first, then its arguments: actions with many arguments would crowd out the others."""
        moves: dict[str, list[Move]] = {}
        for move in self._moves():
            moves.setdefault(move[0], []).append(move)
        chosen = moves[sorted(moves)[self.pick(len(moves))]]
        return chosen[self.pick(len(chosen))]

    def _is_meant(self, name: str, args: Args, after: Plane) -> bool:
        """A step that changes nothing is worth doing where the store must find nothing to do.

        Else it is one that may not be.
        """
        if after != self.state:
            return True
        if name not in ("complete", "settle", "cancel", "retry") or args[1] not in self.store.ids:
            return False
        return self.machine.result(self.state, args[0], name, args[1], args[2:]) is None

    def _step(self, name: str, args: Args, after: Plane) -> None:
        t, store = args[0], self.store
        if name == "bury":
            store.observer.execute("UPDATE awa.instances SET dead_at = now() WHERE id = %s", [store.instances[t]])
        elif name in ("commit", "abort"):
            self._end(name, t, after)
        else:
            ended = store.start(t, self.state, name, args, opens=after != self.state)
            waits = after.sessions[t].waits is not None
            assert ended != waits, (
                f"the machine says that it {'waits' if waits else 'does not wait'}, and the store does the opposite"
            )
            if ended:
                rows = store.sessions[t].rows()
                store.learn(name, args, rows)
                self._check_answer(name, args, rows, did=after != self.state)

    def _check_answer(self, name: str, args: Args, rows: list[tuple[object, ...]], *, did: bool) -> None:
        found = bool(rows) and rows[0][0] is not None
        if name == "retry" and did and self.machine.seen(self.state, args[0], args[1]).state == "running":
            did = False  # it finds a job that runs now, and leaves it alone
        if name in ("complete", "settle", "cancel", "retry"):
            assert found == did, (
                f"the machine says that it {'changes' if did else 'finds'} something, the store answers {rows}"
            )

    def _end(self, name: str, t: int, after: Plane) -> None:
        """Commit, roll back, or lose the connection before or after that; then whoever waited for it goes on."""
        session = self.store.sessions[t]
        before = self.state
        if name == "abort" and (before.sessions[t].waits is not None or self.pick(2) == 1):
            session.kill()
        else:
            session.run("COMMIT" if name == "commit" else "ROLLBACK")
            if self.pick(4) == 1:
                session.kill()
        if name == "abort":
            for j, job in enumerate(before.jobs):
                if not job.state and before.sessions[t].own(j) is not None:
                    del self.store.ids[j]
        for u, waiter in enumerate(before.sessions):
            if waiter.waits is not None and u != t and after.sessions[u].waits is None:
                assert self.store.sessions[u].has_ended(), "whoever waited for it does not go on"
                self.store.sessions[u].rows()

    def _compare(self) -> None:
        found = self.store.jobs()
        wanted = {
            j: (job.state, job.lease, job.attempt, job.owner, job.rescues)
            for j, job in enumerate(self.state.jobs)
            if job.state and (job.state != "completed" or not self.forgotten or j in found)
        }
        assert found == wanted, f"committed jobs are {found}"
        places = sorted((job.pos, j) for j, job in enumerate(self.state.jobs) if job.state == "available")
        assert self.store.order() == [j for _, j in places], f"available jobs are in the order {self.store.order()}"
