"""The callback ingress as an ASGI app: POST {prefix}/{callback id}/{action}, and nothing else.

Runs on Trio (with an open client, or opening one) and on asyncio (with a pool of its own on that loop). Has no admin
routes and no CORS. What is refused is refused before a database connection is borrowed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import trio
from starlette.applications import Starlette
from starlette.routing import Mount

from awa_actors.actors.meters import Meters
from awa_actors.client import Client, open_client
from awa_actors.config import DatabaseSettings
from awa_actors.errors import UsageError
from awa_actors.registry import Registry
from awa_actors.store.resolve import Resolution, Resolved
from awa_actors.store.resolve_together import Answer, Done, complete_together, resolve_one
from awa_actors.web.gathered import Gathered
from awa_actors.web.service import (
    ACTIONS,
    BODY_LIMIT,
    SOON,
    CallbackRequest,
    CallbackService,
    Refused,
    Reply,
    refused,
    request_id,
)
from awa_actors.web.signing import PREFIX

BODY_BOUND = 10.0
"""Seconds that a body may take to arrive."""
CONCURRENCY = 256
"""Requests at once that were let in: enough to keep every connection busy, few enough that each is answered soon."""
COUNT_EVERY = 1.0
"""Seconds between log lines about refused signatures."""
PROMPT_REFUSALS = 20
"""Refused signatures per COUNT_EVERY that are answered at once: mistakes are few, a flood is not."""
TARPIT = 1.0
"""Seconds that the answers to further ones take: whoever floods waits, and those who sign well do not wait for them."""
TARPIT_PLACES = 1024
"""Requests that wait so at once; beyond that they are answered at once and their connections are closed."""
DISCARDED = 4 * BODY_LIMIT
"""Bytes of a body that is too large which are read before the refusal is sent and the connection closed."""

if TYPE_CHECKING:
    from awa_actors.core.metrics import Telemetry
    from awa_actors.store.asyncio_pool import AsyncioPool

Resolver = Callable[[Resolution], Awaitable[Done | Resolved]]

logger = logging.getLogger("awa_actors.callbacks")


def callback_app(
    client_or_dsn: Client | str | None,
    *,
    secret: str | bytes | Sequence[str | bytes] | None = None,
    registry: Registry | None = None,
    prefix: str = PREFIX,
    allow_unsigned: bool = False,
    id_signatures: bool = True,
    body_limit: int = BODY_LIMIT,
    concurrency: int = CONCURRENCY,
    settings: DatabaseSettings | None = None,
    telemetry: Telemetry | None = None,
) -> Starlette:
    """Make the ingress.

    Args:
        client_or_dsn: an open client (on Trio), a Postgres URL, or None for the PG* environment. With a URL the app
            opens what it needs in its lifespan; mounted in another app on asyncio, at its first request.
        secret: 32 bytes or 64 hex characters; several while they are rotated.
        registry: whose follow-ups are enqueued with what happens; an open client's own unless given.
        prefix: of the paths.
        allow_unsigned: take requests without a signature, for networks that are trusted otherwise.
        id_signatures: take ``X-Awa-Signature`` too, which covers nothing but the id.
        body_limit: most bytes of a body.
        concurrency: requests at once; further ones are answered with 503.
        settings: of connections opened here.
        telemetry: where its metrics go when it has no client whose own they are.

    Raises:
        UsageError: no secret, and unsigned requests are not allowed either.
    """
    service = CallbackService(
        secret, allow_unsigned=allow_unsigned, id_signatures=id_signatures, prefix=prefix, body_limit=body_limit
    )
    if isinstance(client_or_dsn, Client):
        source = _Source(None, client_or_dsn.settings, registry or client_or_dsn.registry)
        endpoint = _Endpoint(service, concurrency, source, source.on(client_or_dsn), client_or_dsn.meters)
    else:
        source = _Source(client_or_dsn, settings or DatabaseSettings(), registry or Registry())
        meters = Meters(None if telemetry is None else telemetry.instruments)
        endpoint = _Endpoint(service, concurrency, source, None, meters)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if endpoint.resolve is not None:
            yield
            return
        async with source.opened() as endpoint.resolve:
            yield
        endpoint.resolve = None

    app = _App(routes=[Mount("/", app=endpoint)], lifespan=lifespan)
    app.endpoint = endpoint
    return app


class _App(Starlette):
    """What is asked of the ingress goes straight to its endpoint, unless the app was given more to do than that."""

    endpoint: _Endpoint

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or run the lifespan."""
        more = self.user_middleware or self.exception_handlers or len(self.routes) > 1
        if scope["type"] == "http" and not more:
            await self.endpoint(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


@attrs.frozen(eq=False)
class _Source:
    """Where resolutions run: on an open client, on one opened here, or on a pool of the asyncio loop."""

    dsn: str | None
    settings: DatabaseSettings
    registry: Registry

    def on(self, client: Client) -> Resolver:
        """Resolve on a client's pool."""

        async def alone(resolution: Resolution) -> Done | Resolved:
            async with client.pool.acquire() as session:
                return await resolve_one(session, self.registry, resolution)

        async def together(resolutions: Sequence[Resolution]) -> list[Answer]:
            async with client.pool.acquire() as session:
                return await complete_together(session, self.registry, resolutions)

        return Gathered(alone, together).resolve

    def on_asyncio(self) -> AsyncioPool:
        """A pool that opens its connections at the first use."""
        # Imported here: only servers on asyncio need it.
        from awa_actors.store.asyncio_pool import AsyncioPool

        return AsyncioPool(self.dsn, self.settings, self.registry)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Resolver]:
        """Open what this loop needs, for the life of the server."""
        if trio.lowlevel.in_trio_run():
            async with open_client(self.dsn, registry=self.registry, settings=self.settings) as client:
                yield self.on(client)
            return
        pool = self.on_asyncio()
        try:
            yield Gathered(pool.resolve, pool.resolve_together).resolve
        finally:
            await pool.close()


@attrs.define(eq=False)
class _Endpoint:
    """The ASGI callable below the app."""

    service: CallbackService
    concurrency: int
    source: _Source
    resolve: Resolver | None
    meters: Meters = attrs.field(factory=Meters)
    busy: int = 0
    unsigned: int = 0
    _waiting: int = 0
    _counted_at: float = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        began = time.perf_counter()
        try:
            reply = await self._reply(scope, headers, receive)
        except _Gone:
            return
        action = scope["path"].rpartition("/")[2]
        self.meters.answered(action if action in ACTIONS else "none", reply.status, time.perf_counter() - began)
        await _send(reply, send)

    async def _reply(self, scope: Any, headers: dict[str, str], receive: Any) -> Reply:
        try:
            action, callback_id = self.service.route(scope["method"], scope["path"].removeprefix(scope["root_path"]))
            checked = self.service.check_head(action, callback_id, headers)
            body = await self._body(headers, receive)
            if self.busy >= self.concurrency:
                raise refused(503, "too many callbacks at once; try again", retry_after=SOON)
            self.busy += 1
            try:
                request = CallbackRequest(action, callback_id, headers, body, request_id(headers))
                reply = await self.service.respond_async(request, partial(self._resolved, self._resolver()), checked)
            finally:
                self.busy -= 1
        except Refused as refusal:
            reply = refusal.reply
        return await self._slowed(reply) if reply.status == 401 else reply

    async def _resolved(self, resolve: Resolver, resolution: Resolution) -> Done | Resolved:
        resolved = await resolve(resolution)
        if isinstance(resolved, Resolved):
            self.meters.buried([resolved.job])
        return resolved

    def _resolver(self) -> Resolver:
        if self.resolve is None:
            # No lifespan ran: another app mounts this one.
            if trio.lowlevel.in_trio_run():
                raise UsageError("a callback_app that is mounted on Trio needs an open client instead of a URL")
            pool = self.source.on_asyncio()
            self.resolve = Gathered(pool.resolve, pool.resolve_together).resolve
        return self.resolve

    async def _body(self, headers: dict[str, str], receive: Any) -> bytes:
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self.service.body_limit:
            await self._discard(receive, min(int(length), DISCARDED))
            raise _too_large(self.service.body_limit)
        with _within(BODY_BOUND):
            return await self._read(receive)
        raise refused(408, "the body did not arrive in time", connection="close")

    async def _read(self, receive: Any) -> bytes:
        body: bytes = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise _Gone
            body += message.get("body", b"")
            if len(body) > self.service.body_limit:
                raise _too_large(self.service.body_limit)
            if not message.get("more_body"):
                return body

    async def _discard(self, receive: Any, left: int) -> None:
        """Take what a refused body said it has, within bounds: closed with bytes unread, a connection loses the answer.

        Args:
            receive: gives its messages.
            left: bytes at most.
        """
        with _within(BODY_BOUND):
            while left > 0:
                message = await receive()
                if not message.get("more_body"):
                    return
                left -= len(message["body"])

    async def _slowed(self, reply: Reply) -> Reply:
        """Let a flood of wrong signatures wait for its answers, at the cost of nobody else."""
        self._count()
        self.unsigned += 1
        if self.unsigned <= PROMPT_REFUSALS:
            return reply
        if self._waiting >= TARPIT_PLACES:
            return attrs.evolve(reply, headers={**reply.headers, "Connection": "close"})
        self._waiting += 1
        try:
            await anyio.sleep(TARPIT)
        finally:
            self._waiting -= 1
        return reply

    def _count(self) -> None:
        """Say how many were refused, once in a while: a flood of them must not become a flood of lines."""
        now = time.monotonic()
        if now - self._counted_at >= COUNT_EVERY:
            if self.unsigned:
                logger.warning("%d callbacks were refused for their signature", self.unsigned)
            self.unsigned, self._counted_at = 0, now


def _within(seconds: float) -> AbstractContextManager[object]:
    """A bound on either loop; on Trio without what anyio puts around it, as each request has one."""
    return trio.move_on_after(seconds) if trio.lowlevel.in_trio_task() else anyio.move_on_after(seconds)


class _Gone(Exception):
    """The client went away in the middle of its request."""


def _too_large(limit: int) -> Refused:
    return refused(413, f"a body has at most {limit} bytes", connection="close")


async def _send(reply: Reply, send: Any) -> None:
    body = reply.encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), text.encode()) for name, text in reply.headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
