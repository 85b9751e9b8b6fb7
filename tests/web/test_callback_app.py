"""The ingress under pressure: floods, crowds, bodies that do not end. No server, no database, no real time."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from awa_actors.errors import CallbackNotFound, UsageError
from awa_actors.store.resolve import Resolution, Resolved
from awa_actors.web import callback_app as module
from awa_actors.web.callback_app import PROMPT_REFUSALS, TARPIT, callback_app
from awa_actors.web.service import CallbackService
from awa_actors.web.signing import sign_id

SECRET = "07" * 32
CALLBACK = str(uuid.UUID(int=7))
GOOD = {"x-awa-signature": sign_id(SECRET, CALLBACK)}
WRONG = {"x-awa-signature": "0" * 64}


@attrs.define
class Ingress:
    """The ASGI callable on a database that this test plays."""

    asked: list[Resolution] = attrs.field(factory=list)
    free: trio.Event = attrs.field(factory=trio.Event)
    concurrency: int = 4
    endpoint: Any = None

    def __attrs_post_init__(self) -> None:
        service = CallbackService(SECRET, body_limit=100)
        self.endpoint = module._Endpoint(service, self.concurrency, None, self.resolve)  # type: ignore[arg-type]

    async def resolve(self, resolution: Resolution) -> Resolved:
        self.asked.append(resolution)
        await self.free.wait()
        raise CallbackNotFound("as far as this test knows")

    async def post(self, headers: dict[str, str], receive: Any = None) -> tuple[int, dict[str, str]]:
        """Send a request; gives status and headers of the answer."""
        sent: list[dict[str, Any]] = []

        async def whole() -> dict[str, Any]:
            return {"type": "http.request", "body": b"{}", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": f"/api/callbacks/{CALLBACK}/complete",
            "root_path": "",
            "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        }
        await self.endpoint(scope, receive or whole, send)
        return sent[0]["status"], {name.decode(): text.decode() for name, text in sent[0]["headers"]}


async def test_a_flood_of_wrong_signatures_waits_and_nobody_waits_for_it(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    ingress = Ingress()
    ingress.free.set()
    took: list[float] = []

    async def forge() -> None:
        began = trio.current_time()
        assert (await ingress.post(WRONG))[0] == 401
        took.append(trio.current_time() - began)

    with caplog.at_level(logging.WARNING):
        async with trio.open_nursery() as nursery:
            for _ in range(500):
                nursery.start_soon(forge)
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            for _ in range(50):
                assert (await ingress.post(GOOD))[0] == 404
            assert trio.current_time() == began
    assert len(ingress.asked) == 50
    assert sorted(took)[:PROMPT_REFUSALS] == [0.0] * PROMPT_REFUSALS
    assert sorted(took)[PROMPT_REFUSALS + 1] == pytest.approx(TARPIT)
    assert len(caplog.records) <= 3


async def test_a_flood_beyond_all_places_is_cut(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TARPIT_PLACES", 0)
    ingress = Ingress()
    answers = [await ingress.post(WRONG) for _ in range(PROMPT_REFUSALS + 1)]
    assert [headers.get("connection") for _, headers in answers] == [None] * PROMPT_REFUSALS + ["close"]


async def test_more_at_once_than_there_is_room_for_are_asked_to_come_again() -> None:
    ingress = Ingress()
    statuses: list[int] = []

    async def send() -> None:
        statuses.append((await ingress.post(GOOD))[0])

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        status, headers = await ingress.post(GOOD)
        assert (status, headers["retry-after"]) == (503, "1")
        ingress.free.set()
    assert statuses == [404] * 4


async def test_a_body_that_does_not_end_is_given_up(autojump_clock: MockClock) -> None:
    async def dribble() -> dict[str, Any]:
        await trio.sleep(3)
        return {"type": "http.request", "body": b" ", "more_body": True}

    ingress = Ingress()
    status, headers = await ingress.post(GOOD, dribble)
    assert (status, headers["connection"], ingress.asked) == (408, "close", [])


@pytest.mark.parametrize("said", [{"content-length": "101"}, {}])
async def test_no_more_is_read_of_a_body_that_is_too_large_than_it_said(said: dict[str, str]) -> None:
    read = 0

    async def more() -> dict[str, Any]:
        nonlocal read
        read += 1
        return {"type": "http.request", "body": b" " * 60, "more_body": True}

    ingress = Ingress()
    assert (await ingress.post({**GOOD, **said}, more))[0] == 413
    assert read == 2


async def test_a_body_is_not_read_for_a_wrong_signature() -> None:
    async def never() -> dict[str, Any]:
        raise AssertionError("the body was read")

    assert (await Ingress().post(WRONG, never))[0] == 401


async def test_a_client_that_goes_away_is_forgotten() -> None:
    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    ingress = Ingress()
    with pytest.raises(IndexError):  # nothing was sent
        await ingress.post(GOOD, gone)
    assert (ingress.asked, ingress.endpoint.busy) == ([], 0)


async def test_a_websocket_is_closed() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await Ingress().endpoint({"type": "websocket"}, None, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_an_ingress_without_a_secret_must_be_asked_for() -> None:
    with pytest.raises(UsageError, match="secret"):
        callback_app("postgresql:///nowhere")
    callback_app("postgresql:///nowhere", allow_unsigned=True)


async def test_what_is_added_to_the_app_sees_every_request() -> None:
    seen: list[str] = []

    class Watching:
        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["path"])
            await self.app(scope, receive, send)

    async def send(message: dict[str, Any]) -> None:
        statuses.append(message.get("status"))

    statuses: list[Any] = []
    bare, watched = (callback_app("postgresql:///nowhere", secret=SECRET) for _ in range(2))
    watched.add_middleware(Watching)
    for app in (bare, watched):
        scope = {"type": "http", "method": "POST", "path": "/elsewhere", "root_path": "", "headers": []}
        await app(scope, None, send)  # type: ignore[arg-type]
    assert (statuses, seen) == ([404, None] * 2, ["/elsewhere"])
