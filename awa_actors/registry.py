"""What ONE process knows: workers, observers, follow-up specs, schedules, descriptors. A value, never global."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_type_hints

import attrs

from awa_actors import codec, events
from awa_actors.core.cron import CronExpression, MissedFire, Overlap
from awa_actors.core.validation import check_queue, positive_seconds
from awa_actors.errors import AlreadyRegistered, UsageError
from awa_actors.jobs import Completion, Delivery, Enqueue, FinalizationReceipt, InsertOpts, Job, Verdict

A = TypeVar("A")
F = TypeVar("F")

AsyncHandler = Callable[[Job[A]], Awaitable[Verdict]]
Observer = Callable[[events.Event[A]], Awaitable[None]]


@attrs.frozen
class WorkerSpec:
    """A handler and the jobs it takes. `is_async` False: it runs in a thread."""

    kind: str
    queue: str
    args: type[Any]
    handler: Callable[[Any], Any]
    is_async: bool
    completion: Completion


@attrs.frozen
class FollowUpSpec:
    """One follow-up of one outcome of one kind."""

    outcome: str
    kind: str
    args: type[Any]
    closure: Callable[[Any], Any]
    name: str
    delivery: Delivery


@attrs.frozen
class CronSpec:
    """One declared schedule."""

    name: str
    expression: CronExpression
    args: Any
    opts: InsertOpts | None
    missed_fire: MissedFire
    overlap: Overlap
    jitter: float


@attrs.frozen
class Descriptor:
    """What people should know about a queue or a kind."""

    name: str
    display_name: str | None = None
    description: str | None = None
    owner: str | None = None
    docs_url: str | None = None
    tags: tuple[str, ...] = ()


@attrs.define(eq=False)
class Registry:
    """Everything one application declares. Give it to :func:`awa_actors.open_client`.

    Args:
        application: owner of the schedules declared here; two applications do not overwrite each other's.
    """

    application: str = "default"
    workers: dict[str, WorkerSpec] = attrs.field(factory=dict, init=False)
    observers: dict[str, list[Callable[[Any], Awaitable[None]]]] = attrs.field(factory=dict, init=False)
    follow_ups: dict[tuple[str, str], list[FollowUpSpec]] = attrs.field(factory=dict, init=False)
    schedules: dict[str, CronSpec] = attrs.field(factory=dict, init=False)
    queue_descriptors: dict[str, Descriptor] = attrs.field(factory=dict, init=False)
    kind_descriptors: dict[str, Descriptor] = attrs.field(factory=dict, init=False)
    args_types: dict[str, type[Any]] = attrs.field(factory=dict, init=False)

    def queues(self) -> list[str]:
        """Queues that the registered workers name, in order of registration."""
        return list(dict.fromkeys(spec.queue for spec in self.workers.values()))

    def _declare(self, args: type[Any]) -> codec.ArgsType:
        declared = codec.args_type(args)
        known = self.args_types.setdefault(declared.kind, args)
        if known is not args:
            raise AlreadyRegistered(
                f"kind {declared.kind!r} already belongs to {known.__name__}; give one of them another kind"
            )
        return declared

    def worker(
        self, args: type[A], *, completion: Completion = Completion.RUNTIME
    ) -> Callable[[Callable[[Job[A]], F]], Callable[[Job[A]], F]]:
        """Register the handler of an args class, as a decorator.

        `async def` handlers run in the event loop and are cancelled in their scope; plain `def` handlers run in a
        thread.

        Raises:
            AlreadyRegistered: the kind has a handler.
            UsageError: not callable with one job, or caller-owned completion together with completed follow-ups.
        """
        declared = self._declare(args)

        def register(handler: Callable[[Job[A]], F]) -> Callable[[Job[A]], F]:
            if declared.kind in self.workers:
                raise AlreadyRegistered(
                    f"kind {declared.kind!r} already has a handler: {self.workers[declared.kind].handler!r}"
                )
            _check_takes_one(handler, "a handler takes one job")
            if completion is Completion.CALLER_OWNED and ("completed", declared.kind) in self.follow_ups:
                raise UsageError(_NO_COMPLETED_SPECS.format(kind=declared.kind))
            is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
            self.workers[declared.kind] = WorkerSpec(declared.kind, declared.queue, args, handler, is_async, completion)
            return handler

        return register

    def on_event(self, args: type[A]) -> Callable[[Observer[A]], Observer[A]]:
        """Register an observer of a kind's events: best effort, in this process; a follow-up is what is not lost."""
        declared = self._declare(args)

        def register(observer: Observer[A]) -> Observer[A]:
            if not inspect.iscoroutinefunction(observer):
                raise UsageError("an observer is an async function of one event")
            _check_takes_one(observer, "an observer takes one event")
            self.observers.setdefault(declared.kind, []).append(observer)
            return observer

        return register

    def on_completed_enqueue(
        self, args: type[A]
    ) -> Callable[[Callable[[events.Completed[A]], Enqueue[F] | F]], Callable[[events.Completed[A]], Enqueue[F] | F]]:
        """Enqueue a follow-up in the transaction that completes a job."""
        return self._on("completed", args)

    def on_retried_enqueue(
        self, args: type[A]
    ) -> Callable[[Callable[[events.Retried[A]], Enqueue[F] | F]], Callable[[events.Retried[A]], Enqueue[F] | F]]:
        """Enqueue a follow-up in the transaction that schedules a retry."""
        return self._on("retried", args)

    def on_exhausted_enqueue(
        self, args: type[A]
    ) -> Callable[[Callable[[events.Exhausted[A]], Enqueue[F] | F]], Callable[[events.Exhausted[A]], Enqueue[F] | F]]:
        """Enqueue a follow-up in the transaction that fails a job for good."""
        return self._on("exhausted", args)

    def on_cancelled_enqueue(
        self, args: type[A]
    ) -> Callable[[Callable[[events.Cancelled[A]], Enqueue[F] | F]], Callable[[events.Cancelled[A]], Enqueue[F] | F]]:
        """Enqueue a follow-up in the transaction that cancels a job."""
        return self._on("cancelled", args)

    def on_waiting_for_callback_enqueue(
        self, args: type[A]
    ) -> Callable[
        [Callable[[events.WaitingForCallback[A]], Enqueue[F] | F]],
        Callable[[events.WaitingForCallback[A]], Enqueue[F] | F],
    ]:
        """Enqueue a follow-up in the transaction that parks a job."""
        return self._on("waiting_for_callback", args)

    def on_rescued_enqueue(
        self, args: type[A], *, delivery: str | Delivery = Delivery.BEST_EFFORT
    ) -> Callable[[Callable[[events.Rescued[A]], Enqueue[F] | F]], Callable[[events.Rescued[A]], Enqueue[F] | F]]:
        """Enqueue a follow-up after a rescue: best effort, or without loss through the outbox."""
        return self._on("rescued", args, Delivery(delivery))

    def _on(
        self, outcome: str, args: type[Any], delivery: Delivery = Delivery.BEST_EFFORT
    ) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        declared = self._declare(args)

        def register(closure: Callable[[Any], Any]) -> Callable[[Any], Any]:
            _check_closure(closure)
            worker = self.workers.get(declared.kind)
            if outcome == "completed" and worker is not None and worker.completion is Completion.CALLER_OWNED:
                raise UsageError(_NO_COMPLETED_SPECS.format(kind=declared.kind))
            specs = self.follow_ups.setdefault((outcome, declared.kind), [])
            name = f"{outcome}:{declared.kind}:{getattr(closure, '__name__', 'closure')}:{len(specs)}"
            specs.append(FollowUpSpec(outcome, declared.kind, args, closure, name, delivery))
            return closure

        return register

    def cron(
        self,
        name: str,
        expression: str,
        args: Any,
        opts: InsertOpts | None = None,
        *,
        timezone: str = "UTC",
        missed_fire: MissedFire = MissedFire.COALESCE,
        overlap: Overlap = Overlap.ALLOW,
        jitter: float = 0.0,
    ) -> None:
        """Declare a schedule. The leader among the processes that declare it enqueues one job per nominal time.

        Args:
            name: of the schedule, unique in the database.
            expression: five fields, or six with leading seconds.
            args: the job to enqueue.
            opts: its options.
            timezone: IANA name in which the expression is read.
            missed_fire: what to do about times that passed while nobody was leading.
            overlap: whether to fire while the job of the last fire is still alive.
            jitter: seconds over which fires of this schedule are spread, the same for every process.

        Raises:
            ValidationError: the expression is wrong or names no time at all, or the zone is unknown.
            AlreadyRegistered: the name is taken in this registry.
        """
        if name in self.schedules:
            raise AlreadyRegistered(f"schedule {name!r} is declared twice")
        check_queue(name, path="$.name")
        if jitter:
            positive_seconds(jitter, path="$.jitter")
        self._declare(type(args))
        self.schedules[name] = CronSpec(
            name, CronExpression.parse(expression, timezone), args, opts, missed_fire, overlap, jitter
        )

    def describe_queue(
        self,
        name: str,
        *,
        display_name: str | None = None,
        description: str | None = None,
        owner: str | None = None,
        docs_url: str | None = None,
        tags: tuple[str, ...] = (),
    ) -> None:
        """Declare what people should know about a queue."""
        if name in self.queue_descriptors:
            raise AlreadyRegistered(f"queue {name!r} is described twice")
        self.queue_descriptors[check_queue(name)] = Descriptor(name, display_name, description, owner, docs_url, tags)

    def describe_kind(
        self,
        args: type[Any],
        *,
        display_name: str | None = None,
        description: str | None = None,
        owner: str | None = None,
        docs_url: str | None = None,
        tags: tuple[str, ...] = (),
    ) -> None:
        """Declare what people should know about a kind."""
        declared = self._declare(args)
        if declared.kind in self.kind_descriptors:
            raise AlreadyRegistered(f"kind {declared.kind!r} is described twice")
        self.kind_descriptors[declared.kind] = Descriptor(
            declared.kind, display_name, description, owner, docs_url, tags
        )


_NO_COMPLETED_SPECS = (
    "kind {kind!r} completes in its handler's own transaction: insert follow-ups there instead of on_completed_enqueue"
)


def _check_takes_one(function: Callable[..., Any], rule: str) -> None:
    if not callable(function):
        raise UsageError(f"{rule}; {function!r} cannot be called")
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        raise UsageError(f"{rule}; {getattr(function, '__name__', function)!r} does not") from None
    except ValueError:  # builtins without a signature: nothing to check
        return


def _check_closure(closure: Callable[..., Any]) -> None:
    _check_takes_one(closure, "a follow-up closure takes one event")
    if inspect.iscoroutinefunction(closure):
        raise UsageError("a follow-up closure is a plain function: it runs inside the transition and must not wait")
    try:
        declared = get_type_hints(closure).get("return", Any)
    except (NameError, TypeError):  # hints that cannot be resolved here are mypy's business
        return
    if declared in (type(None), str, bytes, int, float, bool, FinalizationReceipt):
        name = getattr(declared, "__name__", declared)
        raise UsageError(f"a follow-up closure returns job args or Enqueue(args), not {name}")
