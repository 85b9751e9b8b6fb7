"""The callback server: the ingress on hypercorn's Trio worker, with maintenance beside it if asked."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, Protocol, cast

import attrs
import trio
from hypercorn.config import Config
from hypercorn.logging import Logger
from hypercorn.trio import serve
from starlette.applications import Starlette

from awa_actors.actors.maintenance import Maintenance
from awa_actors.actors.maintenance_role import MaintenanceRole
from awa_actors.client import Client
from awa_actors.config import MaintenanceSettings, WorkerSettings
from awa_actors.core.liveness import Liveness
from awa_actors.errors import UsageError
from awa_actors.store.migrate import check
from awa_actors.web.callback_app import callback_app
from awa_actors.web.signing import PREFIX, normal_prefix

if TYPE_CHECKING:
    from hypercorn.typing import Framework

SECRET = "AWA_CALLBACK_HMAC_SECRET"
"""Environment variable: 64 hex characters; several, separated by commas, while they are rotated."""
BACKLOG = 1024
HEADERS_LIMIT = 16_384
"""Bytes of a request's head."""
IDLE = 15.0
"""Seconds that a connection without a request, or in the middle of one, is kept."""

logger = logging.getLogger("awa_actors.callbacks")


class ServerOptions(Protocol):
    """What the command line says about a callback server; durations in seconds."""

    @property
    def host(self) -> str: ...  # noqa: D102 - the names say it, here and below
    @property
    def port(self) -> int: ...  # noqa: D102
    @property
    def path_prefix(self) -> str: ...  # noqa: D102
    @property
    def allow_unsigned(self) -> bool: ...  # noqa: D102
    @property
    def with_maintenance(self) -> bool: ...  # noqa: D102
    @property
    def grace(self) -> float: ...  # noqa: D102
    @property
    def stale_after(self) -> float: ...  # noqa: D102
    @property
    def rescue_interval(self) -> float | None: ...  # noqa: D102


@attrs.define(eq=False)
class CallbackServer:
    """A running server: where it listens, and its maintenance when it has some."""

    urls: list[str]
    maintenance: Maintenance | None
    _draining: trio.Event = attrs.field(factory=trio.Event)
    _ended: trio.Event = attrs.field(factory=trio.Event)

    async def drain(self) -> None:
        """Take no more requests, answer those that have begun; returns when the server has ended."""
        self._draining.set()
        await self._ended.wait()


class _Log(Logger):
    """Hypercorn's own lines go where ours go; each request already has a line of the ingress."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.access_logger, self.error_logger = None, logger


async def run_callback_server(
    client: Client,
    options: ServerOptions,
    *,
    task_status: trio.TaskStatus[CallbackServer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve callbacks until drained or cancelled, as ``await nursery.start(run_callback_server, client, options)``.

    With maintenance, the role of a maintenance process runs beside it: the server answers whether or not this process
    leads, and maintenance goes on whatever the server is asked.

    Args:
        client: open; its registry's follow-ups are enqueued with what happens.
        options: where and how. The secret comes from the environment.
        task_status: gives the :class:`CallbackServer`.

    Raises:
        UsageError: no usable secret, or an address that cannot be had.
        SchemaNotMigrated, SchemaNewerThanCode: before `started`.
    """
    prefix = normal_prefix(options.path_prefix or PREFIX)
    app = callback_app(client, secret=_secrets(), prefix=prefix, allow_unsigned=options.allow_unsigned)
    async with client.pool.acquire() as session:
        await check(session)
    handle = CallbackServer([], None)
    try:
        async with trio.open_nursery() as nursery:
            if options.with_maintenance:
                handle.maintenance = await nursery.start(_maintenance(client, options).run, name="maintenance role")
            handle.urls = await _start(nursery, app, options, handle._draining)
            for url in handle.urls:
                logger.info("callbacks are taken at POST %s%s/{id}/{action}", url, prefix)
            task_status.started(handle)
    finally:
        handle._ended.set()


async def _start(nursery: trio.Nursery, app: Starlette, options: ServerOptions, draining: trio.Event) -> list[str]:
    """Start to listen; when the server has answered its last request, everything else in the nursery ends too."""

    async def listen(*, task_status: trio.TaskStatus[list[str]]) -> None:
        # Hypercorn describes apps more narrowly than Starlette does.
        await serve(cast("Framework", app), _config(options), shutdown_trigger=draining.wait, task_status=task_status)
        nursery.cancel_scope.cancel()

    urls: list[str] = await nursery.start(listen, name="callback server")
    return urls


def _bound(options: ServerOptions) -> int:
    """Take the address here: hypercorn would leave a socket open when it cannot be had."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family, backlog=BACKLOG).detach()
    except OSError as error:
        raise UsageError(f"cannot listen on {options.host}:{options.port}: {error.strerror or error}") from None


def _secrets() -> list[str] | None:
    given = [part.strip() for part in os.environ.get(SECRET, "").split(",")]
    return [part for part in given if part] or None


def _config(options: ServerOptions) -> Config:
    config = Config()
    config.bind = [f"fd://{_bound(options)}"]
    config.graceful_timeout = options.grace
    config.keep_alive_timeout = IDLE
    config.keep_alive_max_requests = 1_000_000
    config.h11_max_incomplete_size = HEADERS_LIMIT
    config.backlog = BACKLOG
    config.include_server_header = False
    config.logger_class = _Log
    config.accesslog = None
    return config


def _maintenance(client: Client, options: ServerOptions) -> MaintenanceRole:
    settings = MaintenanceSettings()
    if options.rescue_interval is not None:
        settings = attrs.evolve(settings, rescue_interval=options.rescue_interval)
    return MaintenanceRole(
        client.pool, client.registry, settings, WorkerSettings(liveness=Liveness(options.stale_after)),
        meters=client.meters,
    )  # fmt: skip
