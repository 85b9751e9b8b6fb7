"""A transaction pooler before a Postgres socket: clients share one server session, each for a transaction at a time.

It does what makes such poolers hard to live with: settings and prepared statements of one client are there for the
next one, notifications reach nobody, and settings in the startup packet are refused.
"""

import struct
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import trio
from postgres_servers import socket_directory

CHUNK = 65_536
SSL_REQUEST = 80877103
HELLO = b"R\0\0\0\x08\0\0\0\0"  # authenticated
KEY = b"K\0\0\0\x0c" + struct.pack("!ii", 4711, 1)  # a process id of its own
READY = b"Z\0\0\0\x05I"
ACCEPTED = {"user", "database", "application_name", "client_encoding"}


def _refused(parameter: str) -> bytes:
    fields = f"SFATAL\0C08P01\0Munsupported startup parameter: {parameter}\0\0".encode()
    return b"E" + struct.pack("!i", len(fields) + 4) + fields


@attrs.define(eq=False)
class _Server:
    """The one session on the server."""

    stream: trio.SocketStream
    parameters: bytes = b""
    turn: trio.Lock = attrs.field(factory=trio.Lock)
    _buffer: bytes = b""

    async def message(self) -> bytes:
        """The next whole message."""
        while len(self._buffer) < 5 or len(self._buffer) < 1 + struct.unpack("!i", self._buffer[1:5])[0]:
            data = bytes(await self.stream.receive_some(CHUNK))
            if not data:
                raise trio.BrokenResourceError
            self._buffer += data
        end = 1 + struct.unpack("!i", self._buffer[1:5])[0]
        found, self._buffer = self._buffer[:end], self._buffer[end:]
        return found

    async def log_in(self, startup: bytes) -> None:
        await self.stream.send_all(startup)
        while (message := await self.message())[:1] != b"Z":
            if message[:1] == b"S":
                self.parameters += message


async def _serve(client: trio.SocketStream, server: _Server) -> None:
    async with client:
        try:
            if await _greeted(client, server):
                await _share(client, server)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


async def _greeted(client: trio.SocketStream, server: _Server) -> bool:
    startup = bytes(await client.receive_some(CHUNK))
    if struct.unpack("!i", startup[4:8])[0] == SSL_REQUEST:
        await client.send_all(b"N")
        startup = bytes(await client.receive_some(CHUNK))
    names = [name.decode() for name in startup[8:].split(b"\0")[0::2] if name]
    if unknown := [name for name in names if name not in ACCEPTED]:
        await client.send_all(_refused(unknown[0]))
        return False
    await client.send_all(HELLO + server.parameters + KEY + READY)
    return True


async def _share(client: trio.SocketStream, server: _Server) -> None:
    while data := bytes(await client.receive_some(CHUNK)):
        if data[:1] == b"X":
            return
        async with server.turn:
            await server.stream.send_all(data)
            async with trio.open_nursery() as nursery:
                # The rest of this transaction, as it comes.
                nursery.start_soon(_forward, client, server.stream)
                while not (message := await server.message()).startswith(READY):
                    if message[:1] != b"A":
                        await client.send_all(message)
                nursery.cancel_scope.cancel()
            await client.send_all(READY)


async def _forward(client: trio.SocketStream, server: trio.SocketStream) -> None:
    while data := bytes(await client.receive_some(CHUNK)):
        await server.send_all(data)
    raise trio.BrokenResourceError


@asynccontextmanager
async def transaction_pooler(url: str) -> AsyncIterator[str]:
    """Run a pooler before the server of a URL for the body; gives the URL that leads through it."""
    parts = urlsplit(url)
    with (
        tempfile.TemporaryDirectory(prefix="awa-pooler-") as directory,
        trio.socket.socket(trio.socket.AF_UNIX) as listening,
    ):
        await listening.bind(str(Path(directory, ".s.PGSQL.5432")))
        listening.listen(100)
        stream = await trio.open_unix_socket(str(socket_directory(url) / ".s.PGSQL.5432"))
        async with stream, trio.open_nursery() as nursery:
            server = _Server(stream)
            body = f"user\0postgres\0database\0{parts.path[1:]}\0client_encoding\0utf-8\0\0".encode()
            await server.log_in(struct.pack("!ii", len(body) + 8, 196608) + body)

            async def serve(client: trio.SocketStream) -> None:
                await _serve(client, server)

            nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listening)])
            yield f"postgresql:///{parts.path[1:]}?host={directory}&port=5432&user=postgres"
            nursery.cancel_scope.cancel()
