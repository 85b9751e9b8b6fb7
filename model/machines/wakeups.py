"""Producers notify only who sleeps: the race that remains costs one poll interval, never a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from model.machine import Args, Bounds, Machine, Sizes, Steps, Twins, action, fair, leaves, replaced, step_rule


class Producer(NamedTuple):
    """A producer: idle, inserted (uncommitted; `notifies` is what it read of the mark), done."""

    at: str = "idle"
    notifies: bool = False


class Sleep(NamedTuple):
    """Jobs to claim, the dispatcher (looking, marked, asleep), the queue's mark, a notification under way.

    `polled` says that a poll interval has passed while it slept with work to do.
    """

    producers: tuple[Producer, ...]
    ready: int = 0
    dispatcher: str = "looking"
    mark: bool = False
    notified: bool = False
    late: bool = False


class Wakeups(Machine[Sleep]):
    """Producers that commit late, one dispatcher, and a listener connection that may break."""

    facts = "P1, trap T6, I-facts of NOTIFY"
    code = "actors/dispatcher.py, store/queues.py (mark_asleep), store/migrations/0001 (wake)"
    sizes: ClassVar[Sizes] = {"dev": {"n_producers": 2}, "ci": {"n_producers": 3}, "nightly": {"n_producers": 4}}
    walk_sizes: ClassVar[Bounds] = {"n_producers": 6}
    twins: ClassVar[Twins] = {
        "the dispatcher looks once more after it has marked its queue": ("who_reads_no_mark_is_seen",),
        "the mark is committed before that look": ("who_reads_no_mark_is_seen",),
        "the sleep ends with the poll interval": ("every_job_is_found",),
        "a notification wakes": ("a_notified_dispatcher_looks",),
        "a producer that reads the mark notifies": ("who_reads_the_mark_notifies",),
    }
    n_producers: int

    def initial(self) -> Iterator[Sleep]:
        """Nothing to do."""
        yield Sleep((Producer(),) * self.n_producers)

    @action
    def insert(self, s: Sleep) -> Steps[Sleep]:
        """A producer inserts a job and reads the mark; nobody sees the job before it commits."""
        for p, producer in enumerate(s.producers):
            if producer.at == "idle":
                notifies = s.mark and self.keeps("a producer that reads the mark notifies")
                yield (p,), s._replace(producers=replaced(s.producers, p, Producer("inserted", notifies)))

    @fair
    def commit(self, s: Sleep) -> Steps[Sleep]:
        """It commits; the notification, if any, goes out with that."""
        for p, producer in enumerate(s.producers):
            if producer.at == "inserted":
                after = s._replace(producers=replaced(s.producers, p, Producer("done")), ready=s.ready + 1)
                yield (p,), after._replace(notified=s.notified or producer.notifies)

    @fair
    def look(self, s: Sleep) -> Steps[Sleep]:
        """The dispatcher claims what it sees.

        When it sees nothing, it marks its queue and looks again before it sleeps.
        """
        if s.dispatcher not in ("looking", "marked"):
            return
        if s.ready:
            yield (s.ready,), s._replace(ready=0, dispatcher="looking", late=False)
        elif s.dispatcher == "marked" or not self.keeps("the dispatcher looks once more after it has marked its queue"):
            yield ("nothing",), s._replace(dispatcher="asleep", mark=True)
        elif self.keeps("the mark is committed before that look"):
            yield ("nothing",), s._replace(dispatcher="marked", mark=True)
        else:
            yield ("nothing",), s._replace(dispatcher="marked")

    @fair
    def hear(self, s: Sleep) -> Steps[Sleep]:
        """The notification arrives and wakes the dispatcher."""
        if s.notified:
            wakes = s.dispatcher == "asleep" and self.keeps("a notification wakes")
            yield (), s._replace(notified=False, dispatcher="looking" if wakes else s.dispatcher)

    @action
    def lose(self, s: Sleep) -> Steps[Sleep]:
        """The listening connection breaks; what was sent meanwhile is lost."""
        if s.notified:
            yield (), s._replace(notified=False)

    @fair
    def poll(self, s: Sleep) -> Steps[Sleep]:
        """The poll interval is over: look, whatever was heard."""
        if s.dispatcher == "asleep" and self.keeps("the sleep ends with the poll interval"):
            yield (), s._replace(dispatcher="looking", late=s.ready > 0)

    @action
    def expire_mark(self, s: Sleep) -> Steps[Sleep]:
        """A mark runs out while its dispatcher is busy."""
        if s.mark and s.dispatcher == "looking":
            yield (), s._replace(mark=False)

    @step_rule
    def who_reads_the_mark_notifies(self, s: Sleep, name: str, args: Args, after: Sleep) -> bool:
        """A producer that inserts while a dispatcher sleeps has a notification in its transaction."""
        return name != "insert" or not s.mark or after.producers[args[0]].notifies

    @step_rule
    def who_reads_no_mark_is_seen(self, s: Sleep, name: str, args: Args, after: Sleep) -> bool:
        """When a dispatcher falls asleep, it has seen every committed job, and any producer to come reads the mark."""
        if name != "look" or after.dispatcher != "asleep":
            return True
        return s.mark and s.ready == 0

    @step_rule
    def a_notified_dispatcher_looks(self, s: Sleep, name: str, args: Args, after: Sleep) -> bool:
        """A sleeping dispatcher that hears a notification looks at once."""
        return name != "hear" or s.dispatcher != "asleep" or after.dispatcher == "looking"

    @leaves
    def every_job_is_found(self, s: Sleep) -> bool:
        """A committed job is found, also when its producer read no mark, or its notification was lost."""
        return s.ready > 0
