"""What ONE process knows: workers, observers, follow-up specs, schedules, descriptors. A value, never global."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload

import attrs

from awa_actors import codec, events
from awa_actors.core.closures import check_closure, check_takes_one
from awa_actors.core.cron import CronExpression, MissedFire, Overlap
from awa_actors.core.descriptors import Descriptor
from awa_actors.core.follow_up_template import DeclaredFollowUp
from awa_actors.core.validation import check_kind, check_queue, positive_seconds
from awa_actors.errors import AlreadyRegistered, UsageError, ValidationError
from awa_actors.jobs import DEFAULT_QUEUE, Completion, Delivery, InsertOpts, JobArgs, Verdict
from awa_actors.running_job import Job
from awa_actors.store.insert import NewJob, admit

DEPTH_LIMIT = 100
"""Follow-ups of follow-ups, unless a registry says otherwise: more than anybody means, soon enough for a loop."""

A = TypeVar("A")
F = TypeVar("F", bound=JobArgs)
V = TypeVar("V", bound=Verdict)

Observer = Callable[[events.Event[A]], Awaitable[None]]


class RegisterHandler(Protocol[A]):
    """Decorates a handler of one args class; a handler that returns anything but a verdict does not type-check."""

    @overload
    def __call__(
        self, handler: Callable[[Job[A]], Coroutine[Any, Any, V]], /
    ) -> Callable[[Job[A]], Coroutine[Any, Any, V]]: ...
    @overload
    def __call__(self, handler: Callable[[Job[A]], V], /) -> Callable[[Job[A]], V]: ...


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
    """One declared schedule; its job is checked and encoded when it is declared, so it needs no class afterwards.

    Args:
        name: unique in the database.
        expression: when it fires.
        job: what each fire enqueues.
        missed_fire: what becomes of fires that nobody was there to enqueue.
        overlap: what becomes of a fire while the job of the last one is alive.
        jitter: seconds over which fires are spread.
    """

    name: str
    expression: CronExpression
    job: NewJob
    missed_fire: MissedFire = MissedFire.COALESCE
    overlap: Overlap = Overlap.ALLOW
    jitter: float = 0.0

    def __attrs_post_init__(self) -> None:
        """Check what a type does not say."""
        check_queue(self.name, path="$.name")
        if self.jitter:
            positive_seconds(self.jitter, path="$.jitter")


@attrs.define(eq=False)
class Registry:
    """Everything one application declares. Give it to :func:`awa_actors.open_client`.

    Args:
        application: owner of the schedules and follow-ups declared here; two applications do not overwrite each
            other's.
        max_follow_up_depth: follow-ups of follow-ups end here; deeper chains look like loops.
    """

    application: str = "default"
    max_follow_up_depth: int = DEPTH_LIMIT
    workers: dict[str, WorkerSpec] = attrs.field(factory=dict, init=False)
    observers: dict[str, list[Callable[[Any], Awaitable[None]]]] = attrs.field(factory=dict, init=False)
    follow_ups: dict[tuple[str, str], list[FollowUpSpec]] = attrs.field(factory=dict, init=False)
    declared_follow_ups: dict[str, DeclaredFollowUp] = attrs.field(factory=dict, init=False)
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

    def worker(self, args: type[A], *, completion: Completion = Completion.RUNTIME) -> RegisterHandler[A]:
        """Register the handler of an args class, as a decorator.

        `async def` handlers run in the event loop and are cancelled in their scope; plain `def` handlers run in a
        thread.

        Raises:
            AlreadyRegistered: the kind has a handler.
            UsageError: not callable with one job, or caller-owned completion together with completed follow-ups.
        """
        declared = self._declare(args)

        def register(handler: Callable[[Job[A]], Any]) -> Callable[[Job[A]], Any]:
            if declared.kind in self.workers:
                raise AlreadyRegistered(
                    f"kind {declared.kind!r} already has a handler: {self.workers[declared.kind].handler!r}"
                )
            check_takes_one(handler, "a handler takes one job")
            if completion is Completion.CALLER_OWNED and self._follows_completion(declared.kind):
                raise UsageError(_NO_COMPLETED_SPECS.format(kind=declared.kind))
            is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
            self.workers[declared.kind] = WorkerSpec(declared.kind, declared.queue, args, handler, is_async, completion)
            return handler

        return register

    def http_worker(self, kind: str, url: str, *, queue: str = DEFAULT_QUEUE, **options: Any) -> None:
        """Let a worker run jobs of a kind as requests to a URL, see :class:`awa_actors.web.http_worker.HttpWorker`.

        Args:
            kind: of the jobs; their args are sent as they are.
            url: where to.
            queue: that its jobs are in.
            **options: mode, callback_base, callback_timeout (s), request_timeout (s), headers, secret, max_connections.

        Raises:
            AlreadyRegistered: the kind has a handler.
            UsageError: an option is wrong, or the 'http' extra is not installed.
        """
        try:
            from awa_actors.web.http_worker import HttpWorker
        except ImportError:
            raise UsageError("HTTP workers need the 'http' extra: pip install 'awa-actors[http]'") from None
        if check_kind(kind) in self.workers:
            raise AlreadyRegistered(f"kind {kind!r} already has a handler: {self.workers[kind].handler!r}")
        handler = HttpWorker(url, **options)
        self.workers[kind] = WorkerSpec(kind, check_queue(queue), dict, handler, True, Completion.RUNTIME)

    def _follows_completion(self, kind: str) -> bool:
        return ("completed", kind) in self.follow_ups or any(
            one.outcome == "completed" and one.kind == kind for one in self.declared_follow_ups.values()
        )

    def on_event(self, args: type[A]) -> Callable[[Observer[A]], Observer[A]]:
        """Register an observer of a kind's events: best effort, in this process; a follow-up is what is not lost."""
        declared = self._declare(args)

        def register(observer: Observer[A]) -> Observer[A]:
            if not inspect.iscoroutinefunction(observer):
                raise UsageError("an observer is an async function of one event")
            check_takes_one(observer, "an observer takes one event")
            self.observers.setdefault(declared.kind, []).append(observer)
            return observer

        return register

    def on_completed_enqueue(
        self, args: type[A]
    ) -> Callable[[Callable[[events.Completed[A]], F]], Callable[[events.Completed[A]], F]]:
        """Enqueue a follow-up in the transaction that completes a job."""
        return self._on("completed", args)

    def on_retried_enqueue(
        self, args: type[A]
    ) -> Callable[[Callable[[events.Retried[A]], F]], Callable[[events.Retried[A]], F]]:
        """Enqueue a follow-up in the transaction that schedules a retry."""
        return self._on("retried", args)

    def on_exhausted_enqueue(
        self, args: type[A]
    ) -> Callable[[Callable[[events.Exhausted[A]], F]], Callable[[events.Exhausted[A]], F]]:
        """Enqueue a follow-up in the transaction that fails a job for good."""
        return self._on("exhausted", args)

    def on_cancelled_enqueue(
        self, args: type[A]
    ) -> Callable[[Callable[[events.Cancelled[A]], F]], Callable[[events.Cancelled[A]], F]]:
        """Enqueue a follow-up in the transaction that cancels a job."""
        return self._on("cancelled", args)

    def on_waiting_for_callback_enqueue(
        self, args: type[A]
    ) -> Callable[
        [Callable[[events.WaitingForCallback[A]], F]],
        Callable[[events.WaitingForCallback[A]], F],
    ]:
        """Enqueue a follow-up in the transaction that parks a job."""
        return self._on("waiting_for_callback", args)

    def on_rescued_enqueue(
        self, args: type[A], *, delivery: str | Delivery = Delivery.BEST_EFFORT
    ) -> Callable[[Callable[[events.Rescued[A]], F]], Callable[[events.Rescued[A]], F]]:
        """Enqueue a follow-up after a rescue: best effort, or without loss through the outbox."""
        return self._on("rescued", args, Delivery(delivery))

    def _on(
        self, outcome: str, args: type[Any], delivery: Delivery = Delivery.BEST_EFFORT
    ) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        declared = self._declare(args)

        def register(closure: Callable[[Any], Any]) -> Callable[[Any], Any]:
            check_closure(closure, outcome, args)
            worker = self.workers.get(declared.kind)
            if outcome == "completed" and worker is not None and worker.completion is Completion.CALLER_OWNED:
                raise UsageError(_NO_COMPLETED_SPECS.format(kind=declared.kind))
            specs = self.follow_ups.setdefault((outcome, declared.kind), [])
            specs.append(FollowUpSpec(outcome, declared.kind, args, closure, self._spec_name(closure, specs), delivery))
            return closure

        return register

    def _spec_name(self, closure: Callable[[Any], Any], specs: list[FollowUpSpec]) -> str:
        """Name a spec by its closure and not by its place: processes of two releases must mean the same one by it."""
        name = f"{self.application}:{getattr(closure, '__name__', type(closure).__name__)}"
        same = sum(spec.name == name or spec.name.startswith(f"{name}#") for spec in specs)
        return f"{name}#{same + 1}" if same else name

    def declare_follow_up(
        self,
        name: str,
        *,
        kind: str,
        outcome: str,
        enqueue: str,
        args: Any,
        queue: str = DEFAULT_QUEUE,
        version: int = 1,
        cel: bool = False,
        delivery: str | Delivery = Delivery.BEST_EFFORT,
        **options: Any,
    ) -> None:
        """Declare a follow-up as data. It is published when this registry runs; from then on every process enqueues it.

        For processes that move jobs without having code for them: pool-only maintenance, callback ingress.

        Args:
            name: unique within the application.
            kind: of the job that triggers it.
            outcome: ``completed``, ``retried``, ``exhausted``, ``cancelled``, ``waiting_for_callback`` or ``rescued``.
            enqueue: kind of the follow-up.
            args: template of its args, see :mod:`awa_actors.core.follow_up_template`.
            queue: where it goes.
            version: raise it with every change; a lower one never replaces a higher one.
            cel: expressions are CEL (extra ``cel``) instead of paths.
            delivery: ``outbox`` makes a rescued follow-up lossless.
            **options: priority, max_attempts, delay (s), deadline (s), tags, metadata, unique (true), ordering_key.

        Raises:
            AlreadyRegistered: the name is taken in this registry.
            UsageError, ValidationError: it could never be evaluated.
        """
        # Here and not above: what plans follow-ups knows registries.
        from awa_actors.store.follow_up_plan import check_options

        if name in self.declared_follow_ups:
            raise AlreadyRegistered(f"follow-up {name!r} is declared twice")
        check_queue(name, path="$.name")
        declared = DeclaredFollowUp(
            self.application, name, version, check_kind(kind), outcome, check_kind(enqueue, path="$.enqueue"),
            check_queue(queue), args, cel, options, Delivery(delivery),
        )  # fmt: skip
        declared.check()
        check_options(declared)
        worker = self.workers.get(kind)
        if outcome == "completed" and worker is not None and worker.completion is Completion.CALLER_OWNED:
            raise UsageError(_NO_COMPLETED_SPECS.format(kind=kind))
        self.declared_follow_ups[name] = declared

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
            opts: its options; `run_at` as a timedelta is a delay after each fire. A taken unique key skips the fire.
            timezone: IANA name in which the expression is read.
            missed_fire: what to do about times that passed while nobody was leading.
            overlap: whether to fire while the job of the last fire is still alive.
            jitter: seconds over which fires of this schedule are spread, the same for every process.

        Raises:
            ValidationError: the expression is wrong or names no time at all, the zone is unknown, or the job cannot be
                stored.
            AlreadyRegistered: the name is taken in this registry.
        """
        times = CronExpression.parse(expression, timezone)
        if opts is not None and isinstance(opts.run_at, dt.datetime):
            raise ValidationError("fires again and again: give a timedelta after each fire", path="$.opts.run_at")
        job = admit(args, opts, traced=False)
        self._declare(type(args))
        self.add_schedule(CronSpec(name, times, job, missed_fire, overlap, jitter))

    def add_schedule(self, spec: CronSpec) -> None:
        """Declare a schedule that is already a value, for instance of a kind without a class here.

        Raises:
            AlreadyRegistered: the name is taken in this registry.
        """
        if spec.name in self.schedules:
            raise AlreadyRegistered(f"schedule {spec.name!r} is declared twice")
        self.schedules[spec.name] = spec

    def describe_queue(
        self,
        name: str,
        *,
        display_name: str | None = None,
        description: str | None = None,
        owner: str | None = None,
        docs_url: str | None = None,
        tags: Sequence[str] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare what people should know about a queue."""
        if name in self.queue_descriptors:
            raise AlreadyRegistered(f"queue {name!r} is described twice")
        self.queue_descriptors[check_queue(name)] = Descriptor(
            name, display_name, description, owner, docs_url, tags, extra or {}
        )

    def describe_kind(
        self,
        args: type[Any],
        *,
        display_name: str | None = None,
        description: str | None = None,
        owner: str | None = None,
        docs_url: str | None = None,
        tags: Sequence[str] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare what people should know about a kind."""
        kind = self._declare(args).kind
        if kind in self.kind_descriptors:
            raise AlreadyRegistered(f"kind {kind!r} is described twice")
        self.kind_descriptors[kind] = Descriptor(kind, display_name, description, owner, docs_url, tags, extra or {})


_NO_COMPLETED_SPECS = (
    "kind {kind!r} completes in its handler's own transaction: insert follow-ups there instead of on_completed_enqueue"
)
