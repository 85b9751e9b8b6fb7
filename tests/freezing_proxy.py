"""A proxy before a Postgres socket that stops forwarding, or cuts, the connections of one application name.

A frozen peer closes nothing and answers nothing: it is what a dead host, a full network queue and a stopped server look
like from here, and what killing a session cannot imitate.
"""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import trio
from postgres_servers import socket_directory

CHUNK = 65_536


@attrs.define(eq=False)
class _Link:
    """One connection through the proxy."""

    name: str
    client: trio.SocketStream
    server: trio.SocketStream
    frozen: bool = False


@attrs.define(eq=False)
class FreezingProxy:
    """What a test turns.

    Attributes:
        url: of the database, through the proxy.
    """

    url: str
    _target: str
    _frozen: set[str] = attrs.field(factory=set)
    _unanswered: set[str] = attrs.field(factory=set)
    _changed: trio.Event = attrs.field(factory=trio.Event)
    _links: list[_Link] = attrs.field(factory=list)

    def freeze(self, name: str) -> None:
        """Forward nothing more on connections, old and new, whose application name contains this."""
        self._frozen.add(name)

    def freeze_open(self, name: str) -> None:
        """Forward nothing more on such connections that are open now; new ones work."""
        for link in self._links:
            link.frozen = link.frozen or name in link.name

    def freeze_answers(self, name: str) -> None:
        """Forward what such connections ask, but nothing of what is answered."""
        self._unanswered.add(name)

    def thaw(self) -> None:
        """Forward again, what was held back first."""
        self._frozen.clear()
        self._unanswered.clear()
        for link in self._links:
            link.frozen = False
        self._changed.set()
        self._changed = trio.Event()

    async def cut(self, name: str) -> None:
        """Close such connections, on both sides."""
        for link in [link for link in self._links if name in link.name]:
            self._links.remove(link)
            await trio.aclose_forcefully(link.client)
            await trio.aclose_forcefully(link.server)

    async def serve(self, client: trio.SocketStream) -> None:
        """Forward one connection until either side closes it."""
        async with client, await trio.open_unix_socket(self._target) as server:
            first = bytes(await client.receive_some(CHUNK))
            link = _Link(_application(first), client, server)
            self._links.append(link)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, link, True, first, nursery.cancel_scope)
                nursery.start_soon(self._pump, link, False, b"", nursery.cancel_scope)

    async def _pump(self, link: _Link, asks: bool, data: bytes, both_ways: trio.CancelScope) -> None:
        source, sink = (link.client, link.server) if asks else (link.server, link.client)
        try:
            while True:
                while self._holds(link, asks):
                    await self._changed.wait()
                if data:
                    await sink.send_all(data)
                if not (data := bytes(await source.receive_some(CHUNK))):
                    break
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        both_ways.cancel()

    def _holds(self, link: _Link, asks: bool) -> bool:
        names = self._frozen if asks else self._frozen | self._unanswered
        return link.frozen or any(name in link.name for name in names)


def _application(startup: bytes) -> str:
    """The application name in a startup packet; a request to cancel has none, and passes under any freeze."""
    fields = startup[8:].split(b"\0")
    return fields[fields.index(b"application_name") + 1].decode() if b"application_name" in fields else ""


@asynccontextmanager
async def freezing_proxy(url: str) -> AsyncIterator[FreezingProxy]:
    """Run a proxy before the server of a URL for the body."""
    with tempfile.TemporaryDirectory(prefix="awa-proxy-") as directory:
        path = Path(directory, ".s.PGSQL.5432")
        with trio.socket.socket(trio.socket.AF_UNIX) as listening:
            await listening.bind(str(path))
            listening.listen(100)
            database = urlsplit(url).path[1:]
            target = str(socket_directory(url) / ".s.PGSQL.5432")
            proxy = FreezingProxy(f"postgresql:///{database}?host={directory}&port=5432&user=postgres", target)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.serve_listeners, proxy.serve, [trio.SocketListener(listening)])
                yield proxy
                nursery.cancel_scope.cancel()
