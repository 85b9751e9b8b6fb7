"""Where the keys of a TOML text stand: the parser of the standard library tells only where a syntax error is."""

from __future__ import annotations

import re
import tomllib

Keys = tuple[str, ...]

_PART = re.compile(r"""\s*(?P<part>"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)\s*""")
_VALUE = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}' + r"|'''(?:[^']|'(?!''))*'{3,5}" + r'|"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'"
    r"|#[^\n]*|[\[\]{}]|\n|[^\"'#\[\]{}\n]+",
    re.DOTALL,
)


def line_numbers(text: str) -> dict[Keys, int]:
    """Find the line of every key and table header that is not inside an inline table or an array.

    Args:
        text: valid TOML.

    Returns:
        Line numbers, from 1, by the full path of the key. A table that is only implied by a longer header stands where
        that header does.
    """
    found: dict[Keys, int] = {}
    table: Keys = ()
    position = 0
    while position < len(text):
        line = text.count("\n", 0, position) + 1
        stripped = text[position:].lstrip(" \t\r")
        if stripped[:1] in ("", "\n", "#"):
            end = text.find("\n", position)
            position = len(text) if end < 0 else end + 1
        elif stripped[0] == "[":
            start = text.index("[", position)
            table, position = _keys(text, start + (2 if text.startswith("[[", start) else 1))
            _note(found, table, line)
            end = text.find("\n", position)
            position = len(text) if end < 0 else end + 1
        else:
            keys, position = _keys(text, position)
            _note(found, table + keys, line)
            position = _after_value(text, text.index("=", position) + 1)
    return found


def _note(found: dict[Keys, int], keys: Keys, line: int) -> None:
    for length in range(1, len(keys) + 1):
        found.setdefault(keys[:length], line)


def _keys(text: str, position: int) -> tuple[Keys, int]:
    """Read a dotted key; returns its parts and where it ends."""
    parts: list[str] = []
    while match := _PART.match(text, position):
        part = match["part"]
        parts.append(tomllib.loads(f"k = {part}")["k"] if part[0] in "\"'" else part)
        position = match.end()
        if not text.startswith(".", position):
            break
        position += 1
    return tuple(parts), position


def _after_value(text: str, position: int) -> int:
    """Skip a value; returns where the line after it begins."""
    depth = 0
    while (match := _VALUE.match(text, position)) is not None:
        position = match.end()
        token = match[0]
        if token in ("[", "{"):
            depth += 1
        elif token in ("]", "}"):
            depth -= 1
        elif token == "\n" and depth == 0:
            return position
    return len(text)
