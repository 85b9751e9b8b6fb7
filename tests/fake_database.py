"""A pool without a database, for timing tests on Trio's mock clock, which breaks real connections."""

from collections.abc import Callable
from typing import Any

import attrs


@attrs.define(eq=False)
class FakeConnection:
    """The part of a driver's connection that actors touch."""

    closed: bool = False
    listeners: list[Callable[[Any], None]] = attrs.field(factory=list)

    def add_termination_listener(self, listener: Callable[[Any], None]) -> None:
        """Remember who wants to know."""
        self.listeners.append(listener)

    def remove_termination_listener(self, listener: Callable[[Any], None]) -> None:
        """Forget them."""
        self.listeners.remove(listener)

    def is_closed(self) -> bool:
        """Whether it was cut."""
        return self.closed

    def cut(self) -> None:
        """End as a server ends a session: at once, and told."""
        self.closed = True
        for listener in self.listeners:
            listener(self)


@attrs.define(eq=False)
class FakeSession:
    """A session that runs nothing; the verbs of the store are replaced in the tests that use it."""

    raw: FakeConnection = attrs.field(factory=FakeConnection)
    broken: bool = False
    pooler: bool = False

    async def close(self) -> None:
        """Close."""
        self.raw.closed = True

    def cut(self) -> None:
        """Close without waiting."""
        self.raw.closed = True


@attrs.define(eq=False)
class FakePool:
    """Opens fake sessions and remembers them."""

    opened: list[FakeSession] = attrs.field(factory=list)

    async def connect(self, name: str) -> FakeSession:
        """Open one."""
        self.opened.append(FakeSession())
        return self.opened[-1]
