"""Text from outside (errors, reasons, reprs) made storable and bounded.

A failure path must not be able to fail: nothing here raises because of the object it is given.
"""

import linecache
from collections import deque
from collections.abc import Iterator
from types import TracebackType

TEXT_LIMIT = 4096
"""Characters kept of one piece of text."""

ERROR_LIMIT = 8192
"""Characters kept of a whole error entry: message, leaves, causes and traceback."""

TRACEBACK_FRAMES = 5
"""Innermost frames kept: two lines each, so the ten lines of fact J18."""

LEAVES_LISTED = 20
"""Leaf errors of an exception group that are named one by one."""

CAUSES_LISTED = 3
"""Links of a ``__cause__``/``__context__`` chain that are named; also what bounds a cyclic chain."""

_REPLACEMENT = "\ufffd"


def storable(text: object, limit: int = TEXT_LIMIT) -> str:
    """Make any object's text something that a Postgres text or jsonb value can hold.

    NUL and lone surrogates become U+FFFD, surrogate pairs the character they mean, and text over the limit loses its
    middle, where a marker says how much went: errors begin with what happened and end with where.

    Args:
        text: a string, or any object; one whose ``str()`` raises yields a sentence that says so.
        limit: characters kept at most, marker included.

    Returns:
        Text of at most `limit` characters that encodes to UTF-8 and holds no NUL.

    Raises:
        KeyboardInterrupt: the only thing that gets through; it is the user's and not the object's.

    Source: field reports 074, 077.
    """
    whole = text if type(text) is str else _str_of(text)
    bounded = whole if len(whole) <= limit else _without_middle(whole, limit)
    return _clean(bounded)


def shown(value: object, limit: int = 80) -> str:
    """Give a value's repr for a one-line message: bounded, storable, never raising.

    Args:
        value: any object.
        limit: characters kept at most.
    """
    try:
        text = repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        text = f"<{_name(value)} whose repr() fails>"
    return " ".join(storable(text, limit).splitlines())


def error_text(exc: BaseException) -> str:
    """Describe an exception for a job's error history.

    The first line is ``<Qualname>: <message>``. An exception group is followed by its leaf errors, because the group's
    own message says nothing about what failed; then come up to three causes, and the innermost frames of the traceback
    (of the first leaf, for a group) under a marker of how many outer ones were cut.

    Args:
        exc: any exception, also one whose ``str()`` raises or whose context refers back to itself.

    Returns:
        Storable text of at most ``ERROR_LIMIT`` characters.

    Source: fact J18; field reports 077, 124.
    """
    lines = [_headline(exc)]
    try:
        origin = exc
        if isinstance(exc, BaseExceptionGroup):
            leaves = list(_leaves(exc))
            origin = leaves[0] if leaves else exc
            lines += [f"- {_headline(leaf)}" for leaf in leaves[:LEAVES_LISTED]]
            if len(leaves) > LEAVES_LISTED:
                lines.append(f"- [{len(leaves) - LEAVES_LISTED} more errors]")
        lines += [f"caused by {_headline(cause)}" for cause in _causes(origin)]
        lines += _traceback_lines(origin.__traceback__)
    except KeyboardInterrupt:
        raise
    except BaseException:
        lines.append("[describing this error further failed]")
    return storable("\n".join(lines), ERROR_LIMIT)


def _str_of(value: object) -> str:
    try:
        text = str(value)
        # A subclass of str may still lie about its length or its slices; this takes the plain characters.
        return text if type(text) is str else str.__getitem__(text, slice(None))
    except KeyboardInterrupt:
        raise
    except BaseException:
        return f"[{_name(value)} whose str() fails]"


def _name(value: object) -> str:
    # type() cannot be fooled by the object, and this slot cannot be overridden by its metaclass.
    return str(type.__dict__["__qualname__"].__get__(type(value)))


def _clean(text: str) -> str:
    if "\x00" in text:
        text = text.replace("\x00", _REPLACEMENT)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _without_middle(text: str, limit: int) -> str:
    marker = f"\n[middle cut: {len(text):,} characters in all]\n"
    kept = limit - len(marker)
    if kept < len(marker):
        return text[: max(limit, 0)]
    head = (kept + 1) // 2
    return text[:head] + marker + text[len(text) - (kept - head) :]


def _headline(exc: BaseException) -> str:
    message = storable(exc, TEXT_LIMIT // 2)
    return f"{_name(exc)}: {message}" if message else _name(exc)


def _leaves(group: BaseException) -> Iterator[BaseException]:
    pending: list[BaseException] = [group]
    seen: set[int] = set()
    while pending:
        exc = pending.pop()
        if not isinstance(exc, BaseExceptionGroup):
            yield exc
        elif id(exc) not in seen:
            seen.add(id(exc))
            pending.extend(reversed(exc.exceptions))


def _causes(exc: BaseException) -> Iterator[BaseException]:
    seen = {id(exc)}
    for _ in range(CAUSES_LISTED):
        cause = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause
        exc = cause


def _traceback_lines(traceback: TracebackType | None) -> list[str]:
    # Not traceback.format_tb(): it reads source and computes carets for every frame, and a recursion has a thousand.
    innermost: deque[TracebackType] = deque(maxlen=TRACEBACK_FRAMES)
    frames = 0
    while traceback is not None:
        innermost.append(traceback)
        frames += 1
        traceback = traceback.tb_next
    lines = [f"[{frames - len(innermost)} outer frames cut]"] if frames > len(innermost) else []
    for entry in innermost:
        code = entry.tb_frame.f_code
        lines.append(f'  File "{code.co_filename}", line {entry.tb_lineno}, in {code.co_qualname}')
        source = linecache.getline(code.co_filename, entry.tb_lineno, entry.tb_frame.f_globals).strip()
        if source:
            lines.append(f"    {source}")
    return lines
