from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import orjson
import pytest
import trio
import trio.testing

from awa_actors.errors import UsageError
from awa_actors.web import health
from awa_actors.web.health import parse_address, serve_health

Ready = Callable[[], Awaitable[dict[str, Any]]]


async def is_ready() -> dict[str, Any]:
    return {"ready": True, "leader": False}


async def is_not_ready() -> dict[str, Any]:
    return {"ready": False}


@asynccontextmanager
async def listening(ready: Ready = is_ready) -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(serve_health, ("127.0.0.1", 0), ready)
        nursery.cancel_scope.cancel()


async def said(port: int, request: bytes) -> bytes:
    """Everything that is answered to these bytes."""
    with trio.fail_after(10):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(request)
            return b"".join([part async for part in stream])


async def ask(port: int, line: str) -> tuple[int, Any, str]:
    """Status, body and headers of the answer to a request line."""
    head, _, body = (await said(port, f"{line}\r\nHost: probe\r\n\r\n".encode())).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), orjson.loads(body), head.decode()


async def test_healthz_is_always_ok() -> None:
    async with listening(is_not_ready) as port:
        assert (await ask(port, "GET /healthz HTTP/1.1"))[:2] == (200, {"status": "ok"})


@pytest.mark.parametrize(("ready", "status"), [(is_ready, 200), (is_not_ready, 503)])
async def test_readyz_gives_its_fields_with_200_or_503(ready: Ready, status: int) -> None:
    async with listening(ready) as port:
        assert (await ask(port, "GET /readyz?verbose HTTP/1.0"))[:2] == (status, await ready())


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET / HTTP/1.1", 404),
        ("GET /healthz/ HTTP/1.1", 404),
        ("POST /metrics HTTP/1.1", 404),
        ("POST /healthz HTTP/1.1", 405),
        ("HEAD /readyz HTTP/1.1", 405),
        ("GET /healthz", 400),
        ("GET /healthz HTTP/2.0", 400),
        ("nonsense", 400),
    ],
)
async def test_there_is_nothing_else_on_it(line: str, status: int) -> None:
    async with listening() as port:
        found, _, head = await ask(port, line)
        assert found == status
        assert ("Allow: GET" in head) == (status == 405)


@pytest.mark.parametrize("size", [4096, 40_960, 4_194_304])
async def test_an_oversize_request_is_431_and_the_answer_arrives(size: int) -> None:
    async with listening() as port:
        answer = await said(port, b"GET /healthz HTTP/1.1\r\nX: " + b"x" * size + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_the_largest_request_is_answered() -> None:
    head = b"GET /healthz HTTP/1.1\r\nX: "
    async with listening() as port:
        answer = await said(port, head + b"x" * (4096 - len(head) - 4) + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_a_request_in_pieces_is_put_together() -> None:
    async with listening() as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        for piece in (b"GET /heal", b"thz HTTP/1.1\r\n", b"\r", b"\n"):
            await stream.send_all(piece)
            await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(10):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_a_connection_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CONNECTION_DEADLINE", 0.05)
    async with listening() as port, await trio.open_tcp_stream("127.0.0.1", port) as silent:
        with trio.fail_after(10), suppress(trio.BrokenResourceError):
            assert await silent.receive_some() == b""
        assert (await ask(port, "GET /healthz HTTP/1.1"))[0] == 200


async def test_clients_that_go_away_and_a_failing_answer_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> dict[str, Any]:
        raise RuntimeError("no answer")

    async with listening(broken) as port:
        for request in (b"", b"GET /rea", b"GET /readyz HTTP/1.1\r\n\r\n"):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(request)
            await stream.aclose()
        assert await said(port, b"GET /readyz HTTP/1.1\r\n\r\n") == b""
        assert (await ask(port, "GET /healthz HTTP/1.1"))[0] == 200
    assert "could not answer" in caplog.text


async def test_silent_connections_keep_a_probe_out_no_longer_than_their_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "CONNECTION_DEADLINE", 0.2)
    monkeypatch.setattr(health, "CONNECTIONS", 2)
    async with listening() as port, AsyncExitStack() as silent:
        for _ in range(4):
            await silent.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
        answer = b""
        with trio.fail_after(10):
            while not answer.startswith(b"HTTP/1.1 200 "):
                with suppress(trio.BrokenResourceError):  # turned away while every place is taken
                    answer = await said(port, b"GET /healthz HTTP/1.1\r\n\r\n")


def test_an_address_is_host_and_port() -> None:
    assert parse_address("127.0.0.1:8080") == ("127.0.0.1", 8080)
    assert parse_address("[::1]:0") == ("::1", 0)
    assert parse_address(":8080") == ("", 8080)


@pytest.mark.parametrize("text", ["", "8080", "localhost", "localhost:", "localhost:http", "localhost:70000", "::1:80"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)


async def test_an_address_that_is_taken_is_an_error_at_once() -> None:
    async with listening() as port, trio.open_nursery() as nursery:
        with pytest.raises(OSError, match=r"."):
            await nursery.start(partial(serve_health, ("127.0.0.1", port), is_ready))
