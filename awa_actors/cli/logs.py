"""Log lines, as text for people or as JSON for machines. They go to standard error; answers go to standard output."""

from __future__ import annotations

import datetime as dt
import functools
import logging
import sys
from typing import Any

import orjson

from awa_actors.core.text import storable

LONGEST = 16_384
"""Characters kept of one message; what is made storable is also what JSON and a terminal can take."""
FIELDS = ("job_id", "job_ids", "kind", "queue", "attempt", "instance", "term", "signal")
"""What a record may carry as `extra`; shown where it is given."""


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}


def _instant(record: logging.LogRecord) -> str:
    seconds, fraction = divmod(record.created, 1)
    return f"{_second(int(seconds))}.{int(fraction * 1000):03}Z"


@functools.lru_cache(1)
def _second(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat().removesuffix("+00:00")


class TextFormatter(logging.Formatter):
    """One readable line, and the traceback below it where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        extra = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_instant(record)} {record.levelname:<8} {record.name}: {record.getMessage()}{extra}"
        return line if not record.exc_info else f"{line}\n{self.formatException(record.exc_info)}"


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and what the record carries."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        entry: dict[str, Any] = {
            "time": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": storable(record.getMessage(), LONGEST),
            **_fields(record),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str).decode()


def configure(log_format: str, *, verbose: bool, level: int) -> None:
    """Send everybody's log lines from `level` on to standard error; `verbose` adds our own debugging."""
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[output], level=level, force=True)
    logging.getLogger("awa_actors").setLevel(logging.DEBUG if verbose else logging.NOTSET)


def say(log_format: str, message: str) -> None:
    """Tell why a command ends: one line, in the format that the log has."""
    if log_format == "json":
        record = logging.LogRecord("awa_actors.cli", logging.ERROR, __file__, 0, message, None, None)
        message = JsonFormatter().format(record)
    else:
        message = f"awa-actors: {message}"
    print(message, file=sys.stderr)
