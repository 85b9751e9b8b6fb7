"""Checks of what users hand in: each returns the value in the form that is stored, or raises one line with a path.

They are as strict as the tables are, so that a mistake is an error of the call and not of a batch, a sweep or a commit
later.
"""

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from typing import Any

from awa_actors.core.json_text import JSON_LIMIT, json_text
from awa_actors.core.text import shown
from awa_actors.errors import ValidationError

__all__ = [
    "JSON_LIMIT",
    "TRACEPARENT_KEY",
    "aware_datetime",
    "check_kind",
    "check_max_attempts",
    "check_metadata",
    "check_ordering_key",
    "check_priority",
    "check_queue",
    "check_tags",
    "check_unique_key",
    "json_text",
    "positive_seconds",
]

KIND_CHARACTERS = 200
QUEUE_BYTES = 200
HIGHEST_PRIORITY_NUMBER = 4
HIGHEST_MAX_ATTEMPTS = 1000
TAGS = 20
TAG_CHARACTERS = 200
ORDERING_KEY_BYTES = 1024
UNIQUE_KEY_BYTES = 200

TRACEPARENT_KEY = "awa:traceparent"
"""The one reserved metadata key that a caller may set: its own trace context wins over the ambient one (fact I6)."""

RESERVED_METADATA_PREFIXES = ("awa:", "_awa_")
RESERVED_METADATA_KEYS = frozenset({"cron_name", "cron_fire_time", "triggered_manually"})

# A day inside what Python can say: the drivers read and write the very first and last instants as -infinity and
# infinity, and a session in another time zone would show them in year 0 or 10000, which no driver can read back.
EARLIEST = dt.datetime(1, 1, 2, tzinfo=dt.UTC)
LATEST = dt.datetime(9999, 12, 30, tzinfo=dt.UTC)


def check_kind(kind: object, *, path: str = "$.kind") -> str:
    """Check a kind: 1 to 200 characters, not blank, text that Postgres can store.

    Raises:
        ValidationError: it is not.

    Source: facts I3, J4; field report 080.
    """
    text = _text(kind, path)
    if len(text) > KIND_CHARACTERS:
        raise ValidationError(
            f"has {len(text)} characters, at most {KIND_CHARACTERS} are allowed: {shown(text)}", path=path
        )
    return text


def check_queue(queue: object, *, path: str = "$.queue") -> str:
    """Check a queue name: 1 to 200 BYTES of UTF-8, not blank, text that Postgres can store.

    Raises:
        ValidationError: it is not.

    Source: facts I3, I28a; field report 080.
    """
    text = _text(queue, path)
    size = len(text.encode())
    if size > QUEUE_BYTES:
        raise ValidationError(f"has {size} bytes, at most {QUEUE_BYTES} are allowed: {shown(text)}", path=path)
    return text


def check_priority(priority: object, *, path: str = "$.priority") -> int:
    """Check a priority: an integer from 1 (most urgent) to 4.

    Raises:
        ValidationError: it is not.
    """
    return _integer(priority, HIGHEST_PRIORITY_NUMBER, path)


def check_max_attempts(max_attempts: object, *, path: str = "$.max_attempts") -> int:
    """Check a budget of attempts: an integer from 1 to 1000.

    Raises:
        ValidationError: it is not.
    """
    return _integer(max_attempts, HIGHEST_MAX_ATTEMPTS, path)


def check_tags(tags: object, *, path: str = "$.tags") -> tuple[str, ...]:
    """Check tags: up to 20 strings of 1 to 200 characters. Order and duplicates are kept.

    Raises:
        ValidationError: they are not; one bare string counts as a mistake, not as a list of letters.
    """
    if isinstance(tags, str | bytes | Mapping) or not isinstance(tags, Iterable):
        raise ValidationError(f"must be a list of strings, not {shown(tags)}", path=path)
    checked: list[str] = []
    for tag in tags:
        here = f"{path}[{len(checked)}]"
        if len(checked) == TAGS:
            raise ValidationError(f"holds more than {TAGS} tags", path=path)
        text = _text(tag, here)
        if len(text) > TAG_CHARACTERS:
            raise ValidationError(
                f"has {len(text)} characters, at most {TAG_CHARACTERS} are allowed: {shown(text)}", path=here
            )
        checked.append(text)
    return tuple(checked)


def check_metadata(metadata: object, *, path: str = "$.metadata") -> dict[str, Any]:
    """Check that metadata is an object whose keys are the user's to set.

    Only the top level is looked at; whether the whole can be stored is :func:`json_text`'s question.

    Raises:
        ValidationError: not a mapping, or a key that the runtime keeps for itself.

    Source: facts J26, I6.
    """
    if not isinstance(metadata, Mapping):
        raise ValidationError(f"must be an object, not {shown(metadata)}", path=path)
    for key in metadata:
        if not isinstance(key, str):
            raise ValidationError(
                f"key {shown(key)} is of type {type(key).__name__}: keys must be plain strings", path=path
            )
        reserved = key.startswith(RESERVED_METADATA_PREFIXES) or key in RESERVED_METADATA_KEYS
        if reserved and key != TRACEPARENT_KEY:
            raise ValidationError(f"key {shown(key)} is reserved for awa itself: choose another name", path=path)
    return dict(metadata)


def check_ordering_key(ordering_key: object, *, path: str = "$.ordering_key") -> bytes:
    """Check an ordering key: 1 to 1024 bytes, or a string that is not blank and encodes to that.

    Returns:
        The bytes that are hashed and stored; a string in UTF-8.

    Raises:
        ValidationError: neither text nor bytes, empty, or too long.

    Source: facts I22, I26; field report 080.
    """
    return _key(ordering_key, ORDERING_KEY_BYTES, path)


def check_unique_key(key: object, *, path: str = "$.unique.key") -> bytes:
    """Check a unique key of the caller's own: 1 to 200 bytes, or a string that is not blank and encodes to that.

    Returns:
        The bytes that are stored; a string in UTF-8.

    Raises:
        ValidationError: neither text nor bytes, empty, or too long.

    Source: field report 080.
    """
    return _key(key, UNIQUE_KEY_BYTES, path)


def aware_datetime(instant: object, *, path: str = "$.run_at") -> dt.datetime:
    """Check that a datetime names one instant, and one that ``timestamptz`` and every driver can hold.

    Returns:
        The same instant in UTC, so that no session's or host's zone matters afterwards.

    Raises:
        ValidationError: not a datetime, naive, or within a day of year 1's beginning or year 9999's end.

    Source: field reports 081, 090.
    """
    if not isinstance(instant, dt.datetime):
        raise ValidationError(f"must be a datetime, not {shown(instant)}", path=path)
    if instant.utcoffset() is None:
        raise ValidationError(
            f"{instant.isoformat()} has no time zone: pass an aware datetime, e.g. tzinfo=datetime.UTC", path=path
        )
    try:
        utc = instant.astimezone(dt.UTC)
    except OverflowError:
        utc = None
    if utc is None or not EARLIEST <= utc <= LATEST:
        raise ValidationError(f"{instant.isoformat()} is outside {EARLIEST:%Y-%m-%d} to {LATEST:%Y-%m-%d}", path=path)
    return utc


def positive_seconds(seconds: object, *, path: str) -> float:
    """Check a setting in seconds: a finite number above 0.

    Raises:
        ValidationError: it is not.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise ValidationError(f"must be a finite number of seconds above 0, not {shown(seconds)}", path=path)
    return float(seconds)


def _integer(value: object, highest: int, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= highest:
        raise ValidationError(f"must be an integer from 1 to {highest}, not {shown(value)}", path=path)
    return int(value)


def _key(value: object, most: int, path: str) -> bytes:
    if isinstance(value, str):
        key = _text(value, path).encode()
    elif isinstance(value, bytes | bytearray | memoryview):
        key = bytes(value)
    else:
        raise ValidationError(f"must be a string or bytes, not {shown(value)}", path=path)
    if not 1 <= len(key) <= most:
        raise ValidationError(f"has {len(key)} bytes, 1 to {most} are allowed", path=path)
    return key


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise ValidationError(f"must be a string, not {shown(value)}", path=path)
    if not value.strip():
        raise ValidationError(f"must not be empty or blank, as {shown(value)} is", path=path)
    if "\x00" in value:
        raise ValidationError(f"contains a NUL character, which Postgres cannot store: {shown(value)}", path=path)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValidationError(f"contains a lone surrogate, which is not text: {shown(value)}", path=path) from None
    return str(value)
