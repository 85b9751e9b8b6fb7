"""The health listener: two questions an orchestrator asks, answered on a socket of their own, and nothing else.

GET /healthz says that the event loop turns; GET /readyz whether this process can do its work. Small enough to do
without an HTTP library: one request per connection, no body is ever read, and a connection lives five seconds at most.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import orjson
import trio

from awa_actors.errors import UsageError

LARGEST_REQUEST = 4096
"""Bytes of request line and headers."""
CONNECTION_DEADLINE = 5.0
CONNECTIONS = 32
"""Answered at once; further ones wait for a place until their deadline."""

Ready = Callable[[], Awaitable[dict[str, Any]]]
"""Gives the fields of /readyz, ``ready`` among them. It bounds itself."""

logger = logging.getLogger("awa_actors.health")


@attrs.frozen
class Answer:
    """A status line and a JSON body."""

    status: str
    body: dict[str, Any]
    headers: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Give the bytes of the whole response."""
        body = orjson.dumps(self.body)
        lines = [
            f"HTTP/1.1 {self.status}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Connection: close",
            *self.headers,
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


TOO_LARGE = Answer("431 Request Header Fields Too Large", {"error": f"a request has at most {LARGEST_REQUEST} bytes"})
MALFORMED = Answer("400 Bad Request", {"error": "not an HTTP request"})
NOT_FOUND = Answer("404 Not Found", {"error": "there are /healthz and /readyz"})
NOT_ALLOWED = Answer("405 Method Not Allowed", {"error": "only GET"}, ("Allow: GET",))
ALIVE = Answer("200 OK", {"status": "ok"})


def parse_address(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``; ``[::1]:8080`` is IPv6, ``:8080`` every interface, port 0 any free one.

    Raises:
        UsageError: it is not written like that.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"an address is written HOST:PORT, for example 127.0.0.1:8080, not {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"an IPv6 host stands in brackets, for example [::1]:8080, not {text!r}")
    return host, int(port)


async def serve_health(
    address: tuple[str, int], ready: Ready, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
) -> None:
    """Listen until cancelled; `started` gives the port.

    Args:
        address: host (empty for every interface) and port (0 for any).
        ready: asked for every GET /readyz.
        task_status: gives the port that is listened on.

    Raises:
        OSError: the address cannot be had.
    """
    host, port = address
    listeners = await trio.open_tcp_listeners(port, host=host or None)
    bound: int = listeners[0].socket.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host or "*"
    logger.info("health listener on http://%s:%d, /healthz and /readyz", shown, bound)
    room = trio.CapacityLimiter(CONNECTIONS)
    task_status.started(bound)
    await trio.serve_listeners(functools.partial(_serve, ready, room), listeners)


async def _serve(ready: Ready, room: trio.CapacityLimiter, stream: trio.SocketStream) -> None:
    """Answer one connection. Whatever goes wrong with it is its own affair."""
    try:
        with trio.move_on_after(CONNECTION_DEADLINE):
            async with room:
                await stream.send_all((await _answer(stream, ready)).encode())
                await stream.send_eof()
                # Closing over unread bytes resets the connection, and the client may lose the answer.
                while await stream.receive_some(LARGEST_REQUEST):
                    pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        logger.debug("a client of the health listener went away")
    except Exception:  # a probe must not end the process it asks about
        logger.exception("the health listener could not answer")
    finally:
        await trio.aclose_forcefully(stream)


async def _answer(stream: trio.SocketStream, ready: Ready) -> Answer:
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) > LARGEST_REQUEST:
            return TOO_LARGE
        received = await stream.receive_some(LARGEST_REQUEST)
        if not received:
            return MALFORMED
        head += received
    if head.index(b"\r\n\r\n") + 4 > LARGEST_REQUEST:
        return TOO_LARGE
    request = head.partition(b"\r\n")[0].split(b" ")
    if len(request) != 3 or not request[2].startswith(b"HTTP/1."):
        return MALFORMED
    method, path = request[0], request[1].partition(b"?")[0]
    if path not in (b"/healthz", b"/readyz"):
        return NOT_FOUND
    if method != b"GET":
        return NOT_ALLOWED
    if path == b"/healthz":
        return ALIVE
    fields = await ready()
    return Answer("200 OK" if fields["ready"] else "503 Service Unavailable", fields)
