"""Answers: JSON that stays, tables on a terminal, plain columns where a program or a file reads."""

from __future__ import annotations

import datetime as dt
import enum
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import orjson

from awa_actors.cli.failures import NO, OK
from awa_actors.cli.placement import Shared
from awa_actors.jobs import JobRow

if TYPE_CHECKING:
    from awa_actors.store.dead_letters import Retried

NOTHING = "-"


def write_json(value: Any) -> None:
    """Write one value as one line of JSON."""
    print(orjson.dumps(value, default=_plain, option=orjson.OPT_UTC_Z).decode())


def _plain(value: Any) -> Any:
    match value:
        case dt.timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case enum.Enum():
            return value.value
        case _ if attrs.has(type(value)):
            return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def write_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], empty: str) -> None:
    """Write rows under their columns, or the sentence that there are none."""
    cells = [[shown(value) for value in row] for row in rows]
    if not cells:
        print(empty)
    elif sys.stdout.isatty():
        _write_rich(columns, cells)
    else:
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        for row in [[name.upper() for name in columns], *cells]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _write_rich(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def shown(value: Any) -> str:
    """Give a value as people read it; nothing that is stored can move a terminal's cursor."""
    match value:
        case None:
            return NOTHING
        case bool():
            return "yes" if value else "no"
        case float():
            return seconds(value)
        case dt.datetime():
            return value.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        case enum.Enum():
            return str(value.value)
        case dict() | list():
            value = orjson.dumps(value, default=_plain).decode()
        case tuple():
            value = ", ".join(map(str, value)) or NOTHING
    return "".join(character if character.isprintable() else "\ufffd" for character in str(value))


def seconds(value: float) -> str:
    """Give a length of time."""
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.0f} h"


def job_fields(job: JobRow) -> dict[str, Any]:
    """Give the fields of a job, in the order in which people ask for them."""
    return {field.name: getattr(job, field.name) for field in attrs.fields(JobRow)}


def last_error(job: JobRow) -> str | None:
    """Give the first line of a job's latest error."""
    if not job.errors:
        return None
    text = str(job.errors[-1].get("error", ""))
    return text.splitlines()[0] if text else None


def told_retried(shared: Shared, done: Retried) -> int:
    """Say what a bulk retry did, and give the exit status."""
    if shared.json:
        write_json(
            {"retried": done.retried, "refused": done.refused, "reasons": {str(i): r for i, r in done.reasons.items()}}
        )
    else:
        print(f"{done.retried} retried" + (f", {done.refused} left where they are:" if done.refused else ""))
        for job_id, reason in done.reasons.items():
            print(f"job {job_id}: {shown(reason)}")
    return NO if done.refused else OK


def told_count(shared: Shared, done: str, count: int) -> int:
    """Say how many, and give the exit status."""
    if shared.json:
        write_json({done: count})
    else:
        print(f"{count} {done}")
    return OK
