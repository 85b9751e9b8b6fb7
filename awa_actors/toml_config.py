"""What an operator declares without Python: schedules, descriptors, follow-ups and retention, in one TOML file."""

from __future__ import annotations

import datetime as dt
import difflib
import enum
import re
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import attrs

from awa_actors.config import MaintenanceSettings
from awa_actors.core.cron import CronExpression, MissedFire, Overlap
from awa_actors.core.descriptors import Descriptor
from awa_actors.core.json_text import json_text
from awa_actors.core.leadership import LeaseTiming
from awa_actors.core.validation import check_kind, check_queue, positive_seconds
from awa_actors.errors import UsageError, ValidationError
from awa_actors.jobs import InsertOpts, JobState, UniqueOpts
from awa_actors.registry import CronSpec, Registry
from awa_actors.store.insert import admit_raw
from awa_actors.toml_lines import Keys, line_numbers

T = TypeVar("T")
E = TypeVar("E", bound=enum.Enum)

_SYNTAX_LINE = re.compile(r" \(at line (\d+), column \d+\)$")
_STEP = re.compile(r"[^.\[\]]+")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a table",
    list: "an array",
}


@attrs.frozen
class TomlConfig:
    """What a file declares.

    Args:
        registry: schedules, descriptors and follow-ups; it has no handlers.
        maintenance: settings of the lanes.
    """

    registry: Registry
    maintenance: MaintenanceSettings


def load(path: str | Path) -> TomlConfig:
    """Read a file and check everything in it.

    Args:
        path: of the file.

    Raises:
        ValidationError: something in it cannot be meant; one line that begins with the file, the line and the key, for
            example ``awa.toml:12: cron.nightly.expression: …``.
        UsageError: the file cannot be read.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8 text, at byte {error.start}") from None
    return parse(text, file.name)


def parse(text: str, name: str = "awa.toml") -> TomlConfig:
    """Check a text; `name` is what errors call the file.

    Raises:
        ValidationError: as :func:`load`.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = _SYNTAX_LINE.search(str(error))
        line = at[1] if at else text.count("\n") + 1
        raise ValidationError(_SYNTAX_LINE.sub("", str(error)), f"{name}:{line}") from None
    root = _Table(content, (), _Source(name, line_numbers(text)))
    registry = Registry(root.take("application", str, "default"))
    maintenance = _maintenance(root.table("maintenance"))
    for schedule in root.tables("cron"):
        _schedule(registry, schedule)
    for queue in root.tables("queues"):
        with queue.told():
            registry.queue_descriptors[check_queue(queue.name, path="$")] = _descriptor(queue)
    for kind in root.tables("kinds"):
        with kind.told():
            registry.kind_descriptors[check_kind(kind.name, path="$")] = _descriptor(kind)
    for follow_up in root.tables("follow_ups"):
        _follow_up(registry, follow_up)
    root.done()
    return TomlConfig(registry, maintenance)


@attrs.frozen
class _Source:
    """A file, for errors about it."""

    file: str
    lines: dict[Keys, int]

    def fault(self, keys: Keys, message: str, shown: str | None = None) -> ValidationError:
        """Make the error about a key; a key without a line of its own stands where what holds it does."""
        known = next((keys[:length] for length in range(len(keys), 0, -1) if keys[:length] in self.lines), None)
        line = 1 if known is None else self.lines[known]
        return ValidationError(message, f"{self.file}:{line}: {shown or dotted(keys)}")


def dotted(keys: Keys) -> str:
    """Write a key as TOML does."""
    return ".".join(key if _BARE.fullmatch(key) else f'"{key}"' for key in keys)


@attrs.define(eq=False)
class _Table:
    """One table; it remembers what was asked for, so that the rest can be refused."""

    values: dict[str, Any]
    keys: Keys
    source: _Source
    _known: list[str] = attrs.field(factory=list)

    @property
    def name(self) -> str:
        """The last part of its key."""
        return self.keys[-1]

    def fault(self, key: str | None, message: str) -> ValidationError:
        """Make the error about one of its keys, or about the whole table."""
        return self.source.fault(self.keys if key is None else (*self.keys, key), message)

    @contextmanager
    def told(self) -> Iterator[None]:
        """Say of an error from further in where in the file it is: its path is relative to this table."""
        try:
            yield
        except ValidationError as error:
            path = error.path or "$"
            if not path.startswith("$"):  # already told
                raise
            keys = (*self.keys, *_STEP.findall(path[1:]))
            raise self.source.fault(keys, error.reason, dotted(self.keys) + path[1:]) from None
        except (UsageError, TypeError) as error:
            raise self.fault(None, str(error)) from None

    def optional(self, key: str, kind: type[T]) -> T | None:
        """Give the value of a key, or None."""
        self._known.append(key)
        if key not in self.values:
            return None
        value = self.values[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.fault(key, f"must be {_NAMES[kind]}, not {_NAMES.get(type(value), 'a date or time')}")
        return value

    def take(self, key: str, kind: type[T], default: T) -> T:
        """Give the value of a key, or the default."""
        value = self.optional(key, kind)
        return default if value is None else value

    def need(self, key: str, kind: type[T]) -> T:
        """Give the value of a key that must be there."""
        value = self.optional(key, kind)
        if value is None:
            raise self.fault(None, f"lacks {key!r}")
        return value

    def choice(self, key: str, choices: type[E], default: E) -> E:
        """Give the member that a key names."""
        named = self.take(key, str, default.value)
        try:
            return choices(named)
        except ValueError:
            raise self.fault(key, f"must be one of {', '.join(one.value for one in choices)}, not {named!r}") from None

    def seconds(self, key: str) -> float | None:
        """Give a number of seconds above 0, or None."""
        value = self.optional(key, float)
        with self.told():
            return None if value is None else positive_seconds(value, path=f"$.{key}")

    def table(self, key: str) -> _Table:
        """Give the table under a key, an empty one when there is none."""
        return _Table(self.take(key, dict, {}), (*self.keys, key), self.source)

    def tables(self, key: str) -> Iterator[_Table]:
        """Give the named tables under a key; each is done with when the next is asked for."""
        for name, value in self.take(key, dict, {}).items():
            if not isinstance(value, dict):
                raise self.source.fault((*self.keys, key, name), f"must be a table: write [{dotted((key, name))}]")
            inner = _Table(value, (*self.keys, key, name), self.source)
            yield inner
            inner.done()

    def done(self) -> None:
        """Refuse every key that nobody asked for."""
        for key in self.values:
            if key not in self._known:
                raise self.fault(key, _unknown(key, self._known))


def _unknown(key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"unknown key; did you mean {near[0]!r}?" if near else f"unknown key; there are {', '.join(sorted(known))}"


def _maintenance(table: _Table) -> MaintenanceSettings:
    given: dict[str, Any] = {}
    for field in attrs.fields(MaintenanceSettings):
        if field.name == "lease":
            given["lease"] = _lease(table.table("lease"))
            continue
        kind: type[Any] = type(field.default)
        value: Any = table.seconds(field.name) if kind is float else table.optional(field.name, kind)
        if value is None:
            continue
        try:
            MaintenanceSettings(**{field.name: value})
        except UsageError as error:
            raise table.fault(field.name, str(error)) from None
        given[field.name] = value
    table.done()
    return MaintenanceSettings(**given)


def _lease(table: _Table) -> LeaseTiming:
    given = {field.name: table.seconds(field.name) for field in attrs.fields(LeaseTiming)}
    table.done()
    with table.told():
        return LeaseTiming(**{name: value for name, value in given.items() if value is not None})


def _schedule(registry: Registry, table: _Table) -> None:
    expression, timezone = table.need("expression", str), table.take("timezone", str, "UTC")
    kind, args = table.need("kind", str), table.take("args", dict, {})
    missed_fire = table.choice("missed_fire", MissedFire, MissedFire.COALESCE)
    overlap = table.choice("overlap", Overlap, Overlap.ALLOW)
    jitter = table.take("jitter", float, 0.0)
    opts = InsertOpts(
        queue=table.optional("queue", str),
        priority=table.optional("priority", int),
        max_attempts=table.optional("max_attempts", int),
        run_at=_timedelta(table.seconds("delay")),
        deadline=table.seconds("deadline"),
        metadata=table.optional("metadata", dict),
        tags=table.take("tags", list, []),
        unique=_unique(table),
        ordering_key=table.optional("ordering_key", str),
    )
    with table.told():
        times = CronExpression.parse(expression, timezone)
        # Checked here under its own name: inside the job, the args are the whole of a document.
        json_text(args, path="$.args")
        registry.add_schedule(CronSpec(table.name, times, admit_raw(kind, args, opts), missed_fire, overlap, jitter))


def _timedelta(seconds: float | None) -> dt.timedelta | None:
    return None if seconds is None else dt.timedelta(seconds=seconds)


def _unique(table: _Table) -> UniqueOpts | None:
    if not isinstance(table.values.get("unique"), dict):
        return UniqueOpts() if table.take("unique", bool, False) else None
    inner = table.table("unique")
    states = inner.optional("states", list)
    known = {state.value: state for state in JobState}
    for state in states or ():
        if state not in known:
            raise inner.fault("states", f"{state!r} is no state: choose from {', '.join(known)}")
    opts = UniqueOpts(
        by_queue=inner.take("by_queue", bool, False),
        by_args=inner.take("by_args", bool, True),
        states=None if states is None else frozenset(known[state] for state in states),
        key=inner.optional("key", str),
    )
    inner.done()
    return opts


def _descriptor(table: _Table) -> Descriptor:
    return Descriptor(
        table.name,
        table.optional("display_name", str),
        table.optional("description", str),
        table.optional("owner", str),
        table.optional("docs_url", str),
        table.take("tags", list, []),
        table.take("extra", dict, {}),
    )


def _follow_up(registry: Registry, table: _Table) -> None:
    needed: dict[str, Any] = {key: table.need(key, str) for key in ("kind", "outcome", "enqueue")}
    needed["args"] = table.need("args", dict)
    options: dict[str, Any] = {
        **{key: table.optional(key, str) for key in ("queue", "delivery", "ordering_key")},
        **{key: table.optional(key, int) for key in ("version", "priority", "max_attempts")},
        **{key: table.optional(key, bool) for key in ("cel", "unique")},
        **{key: table.seconds(key) for key in ("delay", "deadline")},
        "tags": table.optional("tags", list),
        "metadata": table.optional("metadata", dict),
    }
    with table.told():
        registry.declare_follow_up(
            table.name, **needed, **{key: value for key, value in options.items() if value is not None}
        )
