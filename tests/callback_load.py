"""A load of signed callbacks on plain sockets: cheap enough that the server is what is measured.

Requests are made before the clock runs. A latency lasts until the whole answer is there; it begins when the request is
sent in a closed loop, and at a steady rate when it was due, whether or not a connection was free by then.
"""

from __future__ import annotations

import select
import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import attrs

from awa_actors.web.signing import sign_id

BODY = b'{"payload": {"status": "paid"}}'


def request(callback_id: str, signature: str) -> bytes:
    """A completion, as most clients send it."""
    lines = [
        f"POST /api/callbacks/{callback_id}/complete HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"X-Awa-Signature: {signature}",
        f"Content-Length: {len(BODY)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + BODY


def signed(secret: str, ids: Iterable[str]) -> list[bytes]:
    """A good request for each id."""
    return [request(one, sign_id(secret, one)) for one in ids]


@attrs.define
class Load:
    """What was sent, and how it was answered; seconds."""

    latencies: list[float] = attrs.field(factory=list)
    statuses: dict[bytes, int] = attrs.field(factory=dict)
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds

    def __str__(self) -> str:
        ordered = sorted(self.latencies)
        p99 = ordered[int(len(ordered) * 0.99)] * 1000
        return f"{self.rate:,.0f}/s, median {statistics.median(ordered) * 1000:.1f} ms, p99 {p99:.1f} ms"


@attrs.define(eq=False)
class _Connections:
    """Keep-alive connections to one port, each with at most one request under way."""

    load: Load
    epoll: select.epoll = attrs.field(factory=select.epoll)
    sockets: dict[int, socket.socket] = attrs.field(factory=dict)
    free: deque[int] = attrs.field(factory=deque)
    _began: dict[int, float] = attrs.field(factory=dict)
    _partly: dict[int, bytes] = attrs.field(factory=dict)

    def send(self, one: bytes, began: float) -> None:
        number = self.free.popleft()
        self._began[number] = began
        self.sockets[number].sendall(one)

    def receive(self, timeout: float) -> None:
        """Take what has come, or wait for it."""
        for number, _ in self.epoll.poll(timeout):
            came = self.sockets[number].recv(65_536)
            assert came, "the server closed a connection"
            reply = self._partly.pop(number, b"") + came
            if not reply.endswith(b"}"):  # every answer is a JSON object
                self._partly[number] = reply
                continue
            self.load.latencies.append(time.perf_counter() - self._began[number])
            status = reply[9:12]
            self.load.statuses[status] = self.load.statuses.get(status, 0) + 1
            self.free.append(number)


@contextmanager
def _connected(port: int, count: int) -> Iterator[_Connections]:
    made = _Connections(Load())
    try:
        for _ in range(count):
            one = socket.create_connection(("127.0.0.1", port))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.sockets[one.fileno()] = one
            made.free.append(one.fileno())
            made.epoll.register(one.fileno(), select.EPOLLIN)
        yield made
    finally:
        made.epoll.close()
        for one in made.sockets.values():
            one.close()


def closed_loop(port: int, requests: Iterable[bytes], connections: int, until: threading.Event | None = None) -> Load:
    """Each connection sends its next request when the last one is answered; until there are no more, or `until`."""
    with _connected(port, connections) as made:
        pending, began = iter(requests), time.perf_counter()
        going = True
        while going or len(made.free) < connections:
            going = going and not (until is not None and until.is_set())
            while going and made.free:
                one = next(pending, None)
                if one is None:
                    going = False
                else:
                    made.send(one, time.perf_counter())
            made.receive(1.0)
        made.load.seconds = time.perf_counter() - began
        return made.load


def at_rate(port: int, requests: Iterable[bytes], connections: int, rate: float) -> Load:
    """One request every 1 / rate seconds, however long the answers take."""
    with _connected(port, connections) as made:
        began = time.perf_counter()
        due = deque((began + n / rate, one) for n, one in enumerate(requests))
        while due or len(made.free) < connections:
            now = time.perf_counter()
            while due and made.free and due[0][0] <= now:
                moment, one = due.popleft()
                made.send(one, moment)
            wait = due[0][0] - time.perf_counter() if due and made.free else 1.0
            made.receive(max(0.0, wait))
        made.load.seconds = time.perf_counter() - began
        return made.load
