"""Which jobs follow from a transition: closures and declarations, evaluated. Pure, so that every sender shares it.

A sender that holds a transaction plans, inserts what was planned in that transaction, and commits both or neither.
"""

from __future__ import annotations

import datetime as dt
import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import attrs

from awa_actors import codec
from awa_actors.core import unique
from awa_actors.core.follow_up_template import DeclaredFollowUp
from awa_actors.core.json_text import json_text
from awa_actors.core.text import error_text
from awa_actors.core.trace_context import TRACEPARENT_KEY, traceparent_of
from awa_actors.errors import FollowUpError, UsageError
from awa_actors.events import OUTCOME_EVENTS, Event
from awa_actors.jobs import (
    Completion,
    Delivery,
    Enqueue,
    InsertOpts,
    JobRow,
    OnConflict,
    UniqueOpts,
)
from awa_actors.registry import FollowUpSpec, Registry
from awa_actors.store.insert import USUAL, NewJob, admit, new_job

DEPTH_KEY = "awa:follow_up_depth"
ORIGIN_KEY = "awa:follow_up_of"
FAILURES_KEY = "awa:follow_up_failures"

_OUTCOMES = {made: outcome for outcome, made in OUTCOME_EVENTS.items()}


@attrs.frozen
class SpecFailed:
    """A closure failed, or what it returned cannot be a job.

    Args:
        spec: which one.
        error: why, in words.
        final: trying again cannot help (a chain that is too deep).
    """

    spec: str
    error: str
    final: bool = False


class PlannedJob(NamedTuple):
    """What one spec made."""

    spec: str
    job: NewJob


@attrs.frozen
class Planned:
    """The follow-up jobs of one event, in registration order."""

    jobs: list[NewJob]


@attrs.define(eq=False)
class Specs:
    """The follow-ups one process knows: its registry's closures, and what is declared in its database.

    Args:
        registry: of this process.
        declared: as last read; the follow-up dispatcher alone replaces it.
    """

    registry: Registry
    declared: dict[tuple[str, str], list[FollowUpSpec]] = attrs.field(factory=dict)
    _differences: set[str] = attrs.field(factory=set, init=False)

    def of_event(self, event: Event[Any]) -> list[FollowUpSpec]:
        """Specs of an event, in the order in which their jobs are enqueued."""
        return self.of(outcome_of(event), event.job.kind)

    def of(self, outcome: str, kind: str) -> list[FollowUpSpec]:
        """Specs of one outcome of one kind, in the order in which their jobs are enqueued."""
        key = (outcome, kind)
        own, declared = self.registry.follow_ups.get(key, ()), self.declared.get(key, ())
        return [*own, *declared] if declared else list(own)

    def any_of(self, kind: str, *outcomes: str) -> bool:
        """Whether any of these outcomes of a kind has follow-ups."""
        own, declared = self.registry.follow_ups, self.declared
        return any((outcome, kind) in own or (outcome, kind) in declared for outcome in outcomes)

    def outbox(self) -> list[FollowUpSpec]:
        """Specs that are delivered through the outbox."""
        keys = {key for key in (*self.registry.follow_ups, *self.declared) if key[0] == "rescued"}
        return [
            spec for _, kind in sorted(keys) for spec in self.of("rescued", kind) if spec.delivery is Delivery.OUTBOX
        ]

    def names(self) -> list[list[str]]:
        """What this process has in code and does not put into the outbox: (outcome, kind, name) of each."""
        return [
            [outcome, kind, spec.name]
            for (outcome, kind), specs in sorted(self.registry.follow_ups.items())
            for spec in specs
            if spec.delivery is Delivery.BEST_EFFORT
        ]

    def set_declared(self, declared: Iterable[DeclaredFollowUp]) -> None:
        """Take over what was read from the database, but for completions that handlers own."""
        found: dict[tuple[str, str], list[FollowUpSpec]] = {}
        for one in declared:
            worker = self.registry.workers.get(one.kind)
            if one.outcome == "completed" and worker is not None and worker.completion is Completion.CALLER_OWNED:
                continue
            found.setdefault((one.outcome, one.kind), []).append(declared_spec(one))
        self.declared = found

    def drift(self, stored: Iterable[DeclaredFollowUp]) -> list[str]:
        """How what is stored differs from what this process declares, in words; each difference is told once."""
        found = []
        for one in stored:
            mine = self.registry.declared_follow_ups.get(one.name)
            if mine is None or one.application != self.registry.application or mine == one:
                continue
            if mine.version == one.version:
                found.append(
                    f"follow-up {one.name!r} is stored differently under version {one.version} too: raise its version"
                )
            elif mine.version < one.version:
                found.append(
                    f"follow-up {one.name!r}: version {one.version} is in force, this process has {mine.version}"
                )
        new = [text for text in found if text not in self._differences]
        self._differences.update(new)
        return new


def outcome_of(event: Event[Any]) -> str:
    """The name of an event's outcome, as in `on_<outcome>_enqueue`."""
    return _OUTCOMES[type(event)]


def plan(
    registry: Registry, outcome: str, event: Event[Any], declared: Iterable[DeclaredFollowUp] = ()
) -> Planned | SpecFailed:
    """Evaluate the specs of one transition, in registration order: all of them, or the first failure.

    Args:
        registry: of this process.
        outcome: one of `events.OUTCOME_EVENTS`.
        event: of that outcome, built from the row that the transition returned.
        declared: what the database declares for this outcome and kind.
    """
    specs = Specs(registry)
    specs.set_declared(declared)
    jobs: list[NewJob] = []
    for spec in specs.of(outcome, event.job.kind):
        made = job_of(spec, event, registry.max_follow_up_depth)
        if isinstance(made, SpecFailed):
            return made
        jobs.append(made)
    return Planned(jobs)


def plan_one(spec: FollowUpSpec, event: Event[Any], max_depth: int) -> PlannedJob | SpecFailed:
    """Evaluate one spec, and keep its name with what it made."""
    made = job_of(spec, event, max_depth)
    return made if isinstance(made, SpecFailed) else PlannedJob(spec.name, made)


def job_of(spec: FollowUpSpec, event: Event[Any], max_depth: int) -> NewJob | SpecFailed:
    """Evaluate one spec. Whatever user code does, the answer is a value; only Ctrl-C gets through."""
    try:
        depth = int(event.job.metadata.get(DEPTH_KEY, 0)) + 1
        if depth > max_depth:
            return SpecFailed(
                spec.name,
                f"follow-ups of follow-ups end at depth {max_depth}; this chain looks like a loop",
                final=True,
            )
        return _new_job(spec, event, depth)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a closure may raise anything, sys.exit() included
        return SpecFailed(spec.name, error_text(error))


def _new_job(spec: FollowUpSpec, event: Event[Any], depth: int) -> NewJob:
    made, origin, metadata = spec.closure(event), event.job.id, event.job.metadata
    trace = traceparent_of(metadata) if metadata else None
    cls = type(made)
    if cls not in _NO_ARGS:
        # The usual case, args and no options: what the general way below would encode is known beforehand.
        declared, text = codec.args_type(cls), codec.encode(made)
        traced = "" if trace is None else f',"{TRACEPARENT_KEY}":"{trace}"'
        options = f'{{"metadata":{{"{DEPTH_KEY}":{depth},"{ORIGIN_KEY}":{origin}{traced}}}}}'
        return new_job(NewJob, (declared.kind, declared.queue, text, *USUAL, options, None))
    reserved: dict[str, Any] = {DEPTH_KEY: depth, ORIGIN_KEY: origin}
    if trace is not None:
        reserved[TRACEPARENT_KEY] = trace  # what follows from a job belongs to its trace
    if isinstance(made, types.CoroutineType):
        made.close()
        raise FollowUpError("the closure is async: make it a plain function that returns job args")
    if isinstance(made, _Rendered):
        return made.admitted(reserved)
    args, opts = (made.args, made.opts) if isinstance(made, Enqueue) else (made, InsertOpts())
    if args is None:
        raise FollowUpError(
            "the closure returned None: it makes a job of every event, the follow-up decides what to do"
        )
    return admit(args, opts, reserved=reserved, on_conflict=OnConflict.RETURN_EXISTING)


def scope_of(event: Event[Any]) -> dict[str, Any]:
    """What templates see: the job's args, the job, and what its outcome says. Plain JSON values."""
    context = {
        field.name: _plain(getattr(event, field.name))
        for field in attrs.fields(type(event))
        if field.name not in ("job", "args")
    }
    return {"args": event.job.args, "job": job_value(event.job), "outcome": {"name": outcome_of(event), **context}}


def job_value(row: JobRow) -> dict[str, Any]:
    """A job as plain JSON values, in the form that `rows.job_row` reads."""
    value = {field.name: _plain(getattr(row, field.name)) for field in attrs.fields(JobRow)}
    key, deadline = row.unique_key, row.deadline
    return value | {
        "state": row.state.value,
        "unique_key": None if key is None else rf"\x{key.hex()}",
        "deadline_ms": None if deadline is None else deadline // dt.timedelta(milliseconds=1),
        "deadline": None if deadline is None else deadline.total_seconds(),
        "tags": list(row.tags),
        "errors": list(row.errors),
    }


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, dt.datetime) else value


@attrs.frozen
class _Rendered:
    """A declared follow-up with its args filled in."""

    declared: DeclaredFollowUp
    args: Any

    def admitted(self, reserved: dict[str, Any]) -> NewJob:
        """Check it like any other job; its kind has no class here."""
        declared, text = self.declared, json_text(self.args)
        opts = _options(declared.options, declared.enqueue, self.args)
        stand_in = _class_of(declared.enqueue, declared.queue)
        job = admit(stand_in(), opts, reserved=reserved, on_conflict=OnConflict.RETURN_EXISTING)
        return job._replace(args=text)


_NO_ARGS = frozenset({Enqueue, _Rendered, type(None), types.CoroutineType})
"""What a closure may return (or return by mistake) that is not plain job args."""


@functools.cache
def _class_of(kind: str, queue: str) -> type[Any]:
    return attrs.make_class("DeclaredArgs", {}, class_body={"kind": kind, "queue": queue})


def _options(options: Mapping[str, Any], kind: str, args: Any) -> InsertOpts:
    values = {key: value for key, value in options.items() if key not in ("delay", "unique")}
    if "delay" in options:
        values["run_at"] = dt.timedelta(seconds=options["delay"])
    if options.get("unique"):
        values["unique"] = UniqueOpts(key=unique.unique_key(kind, queue=None, args=args, period=None))
    return InsertOpts(**values)


def declared_spec(declared: DeclaredFollowUp) -> FollowUpSpec:
    """Make a declaration a spec like any other."""
    return FollowUpSpec(
        declared.outcome, declared.kind, object, lambda event: _Rendered(declared, declared.render(scope_of(event))),
        f"{declared.application}:{declared.name}", declared.delivery,
    )  # fmt: skip


def read_declared(row: Mapping[str, Any]) -> DeclaredFollowUp:
    """Read a row of awa.follow_up_specs whose definition is already parsed."""
    definition = row["definition"]
    return DeclaredFollowUp(
        row["application"], row["name"], row["version"], row["kind"], row["outcome"],
        definition["enqueue"], definition["queue"], definition["args"], definition["cel"], definition["options"],
        Delivery(definition["delivery"]),
    )  # fmt: skip


def check_options(declared: DeclaredFollowUp) -> None:
    """Refuse options that no job could have, when they are declared rather than at the first event.

    Raises:
        UsageError, ValidationError: as an insert with them would.
    """
    try:
        _Rendered(declared, {}).admitted({})
    except TypeError as error:
        raise UsageError(f"follow-up {declared.name!r}: {error}") from None
