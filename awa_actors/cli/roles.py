"""The processes: a worker, maintenance, the callback server. Each is a role run until a signal asks for its end."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import attrs
import trio

from awa_actors.actors.maintenance import Maintenance
from awa_actors.actors.worker import Worker
from awa_actors.cli import database, logs
from awa_actors.cli.app import load_registry
from awa_actors.cli.failures import Failure
from awa_actors.cli.placement import Shared
from awa_actors.cli.process import Serve, Stop, run_until_stopped, signals, watchdog
from awa_actors.cli.readiness import Readiness
from awa_actors.cli.run_options import RunOptions, queue_config
from awa_actors.client import Client, open_client
from awa_actors.config import DatabaseSettings, MaintenanceSettings, WorkerSettings
from awa_actors.core.liveness import Liveness
from awa_actors.core.metrics import Telemetry
from awa_actors.errors import UsageError
from awa_actors.registry import Registry
from awa_actors.web.health import parse_address, serve_health

SHUTDOWN_WRITE = 3.0
"""Seconds the last step may take: it has to end well before the watchdog loses its patience."""
COLLECT_AFTER = 20_000
"""Objects made and not yet gone before the garbage collector looks at them."""
CALLBACK_SERVER = "awa_actors.web.callback_server"
"""Has ``run_callback_server(client, options, *, task_status)``; absent where the http extra is."""

NEVER_RUNS = "maintenance: keeps the database moving, never claims or runs jobs"
POOL_ONLY = "pool-only, for want of --app or --config: no cron, no descriptors, no follow-ups of its own"

logger = logging.getLogger("awa_actors.cli")


@attrs.frozen
class Role:
    """What a process declares and does: `serve` makes the coroutine that ``nursery.start`` runs."""

    registry: Registry
    serve: Callable[[Client], Serve]


@attrs.frozen
class _Draining:
    """The handle of a role, as the end of the process needs it."""

    handle: Any

    async def drain(self) -> None:
        """Drain what can be drained: maintenance has nothing that another process would not go on with."""
        if not isinstance(self.handle, Maintenance):
            await self.handle.drain()

    def jobs(self) -> list[int]:
        """Ids of the jobs that run now."""
        return self.handle.running_jobs if isinstance(self.handle, Worker) else []


def run_role(shared: Shared, role: str, options: RunOptions) -> int:
    """Run a process until it is asked to end; returns its exit status."""
    logs.configure(shared.log_format, verbose=shared.verbose, level=logging.INFO)
    address = None if options.health_addr is None else parse_address(options.health_addr)
    with signals() as stop:
        made = ROLES[role](options)
        _collect_seldom()
        with database.opened(shared) as where:
            running: list[_Draining] = []
            jobs = lambda: [job for one in running for job in one.jobs()]  # noqa: E731 - it is its name
            with watchdog(stop, options.grace, jobs, where.stop_by_force):
                return trio.run(_run, where.url, made, options, address, stop, running)


async def _run(
    url: str | None,
    role: Role,
    options: RunOptions,
    address: tuple[str, int] | None,
    stop: Stop,
    running: list[_Draining],
) -> int:
    stop.attach()
    settings = DatabaseSettings(
        pool_size=options.pool_size,
        pooler=options.pooler,
        notify=not options.poll_only,
        connect_timeout=min(options.connect_timeout, database.CONNECT_BOUND),
    )
    async with (
        open_client(url, registry=role.registry, settings=settings, telemetry=_telemetry(options)) as client,
        _health_listener(url, settings, address, stop) as readiness,
    ):
        waiting = functools.partial(database.reach, client, within=options.connect_timeout, writable=True)

        def started(handle: Any) -> _Draining:
            running.append(_Draining(handle))
            if readiness is not None:
                readiness.handle = handle
            return running[0]

        return await run_until_stopped(
            stop,
            role.serve(client),
            ready=waiting,
            grace=options.grace,
            connect_timeout=options.connect_timeout,
            started=started,
        )


def _telemetry(options: RunOptions) -> Telemetry | None:
    """Metrics and spans go to the global providers: `opentelemetry-instrument` sets them, and so may the --app."""
    if not options.otel:
        return None
    if find_spec("opentelemetry") is None:
        raise UsageError("--otel needs the extra: install awa-actors[otel]")
    made: Telemetry = import_module("awa_actors.telemetry").OpenTelemetry()
    return made


@contextlib.asynccontextmanager
async def _health_listener(
    url: str | None, settings: DatabaseSettings, address: tuple[str, int] | None, stop: Stop
) -> AsyncIterator[Readiness | None]:
    """Answer probes from before the role starts until after it has ended, with a connection of their own."""
    if address is None:
        yield None
        return
    async with open_client(url, settings=attrs.evolve(settings, pool_size=1)) as client, trio.open_nursery() as nursery:
        readiness = Readiness(client, stop)
        try:
            await nursery.start(serve_health, address, readiness)
        except OSError as error:
            raise Failure(f"--health-addr: cannot listen on {address[0]}:{address[1]}: {error}") from error
        yield readiness
        nursery.cancel_scope.cancel()


def _life(options: RunOptions) -> WorkerSettings:
    return WorkerSettings(
        liveness=Liveness(options.stale_after), shutdown_write=SHUTDOWN_WRITE, storage=options.storage
    )


def _lanes(options: RunOptions, settings: MaintenanceSettings) -> MaintenanceSettings:
    if options.rescue_interval is None:
        return settings
    return attrs.evolve(settings, rescue_interval=options.rescue_interval)


def _worker(options: RunOptions) -> Role:
    registry = load_registry(options.app or "")
    if not registry.workers:
        raise UsageError(f"--app {options.app}: the registry has no handler for a worker to run")
    queues = options.queues() or [queue_config(name, options.concurrency) for name in registry.queues()]
    lanes = False if options.no_maintenance else _lanes(options, MaintenanceSettings())
    life = _life(options)
    return Role(
        registry, lambda client: functools.partial(client.run_worker, *queues, maintenance=lanes, settings=life)
    )


def _maintenance(options: RunOptions) -> Role:
    registry, settings = Registry(), MaintenanceSettings()
    if options.app is not None:
        registry = load_registry(options.app)
    elif options.config is not None:
        registry, settings = _from_toml(options)
    declared = options.app or options.config
    logger.info("%s; %s", NEVER_RUNS, POOL_ONLY if declared is None else f"declarations of {declared}")
    settings, life = _lanes(options, settings), _life(options)
    return Role(registry, lambda client: functools.partial(client.run_maintenance, settings=settings, life=life))


def _from_toml(options: RunOptions) -> tuple[Registry, MaintenanceSettings]:
    if find_spec("awa_actors.toml_config") is None:
        raise UsageError("--config: this release reads no TOML; declare in Python and give --app module:registry")
    loaded = import_module("awa_actors.toml_config").load(options.config)
    return loaded.registry, loaded.maintenance


def _callbacks(options: RunOptions) -> Role:
    if not all(map(find_spec, ("starlette", "hypercorn", CALLBACK_SERVER))):
        raise UsageError("--role callbacks needs the HTTP extra: install awa-actors[http]")
    run_callback_server = import_module(CALLBACK_SERVER).run_callback_server
    registry = load_registry(options.app) if options.app is not None else Registry()

    return Role(registry, lambda client: functools.partial(run_callback_server, client, options))


def _collect_seldom() -> None:
    """Let collections of garbage pass over what lives as long as the process, and come less often.

    A job or a request makes hundreds of objects that end with it, and everybody waits while a collection looks at all
    others. An application that has set more than this has thought of it.
    """
    gc.collect()
    gc.freeze()
    if gc.isenabled() and gc.get_threshold()[0] < COLLECT_AFTER:
        gc.set_threshold(COLLECT_AFTER)


ROLES: dict[str, Callable[[RunOptions], Role]] = {
    "worker": _worker,
    "maintenance": _maintenance,
    "callbacks": _callbacks,
}
