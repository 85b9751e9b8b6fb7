"""The options of a run, and which role each of them belongs to."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import attrs
import click

from awa_actors.cli.placement import ROLES
from awa_actors.config import QueueConfig
from awa_actors.core.storage import ROLES as STORAGE_ROLES
from awa_actors.core.validation import check_queue
from awa_actors.errors import ValidationError

EVERY = frozenset(ROLES)
WORKER = frozenset({"worker"})
MAINTENANCE = frozenset({"maintenance"})
CALLBACKS = frozenset({"callbacks"})
FILE = click.Path(path_type=Path, dir_okay=False)
LONGEST = 86_400.0
"""A day: no process waits longer for anything at its start or its end."""
MOST_AT_ONCE = 10_000
"""Jobs of one queue in one process: each is a task and a lease."""


Callback = Callable[[click.Context, click.Parameter, Any], Any]


def seconds(*, zero: bool = False) -> Callback:
    """Make the check of an option that is a number of seconds; 0 only where it means something."""

    def check(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
        if value is not None and not (0 < value <= LONGEST or (zero and value == 0)):
            above = "from" if zero else "above"
            raise click.BadParameter(f"{value:g} is not a number of seconds {above} 0 to {LONGEST:.0f}", ctx, param)
        return value

    return check


def _queues(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, int | None], ...]:
    """Read ``NAME`` or ``NAME=N``, each queue once."""
    found: dict[str, int | None] = {}
    for value in values:
        name, equals, number = value.partition("=")
        if equals and not (number.isascii() and number.isdigit() and 0 < int(number) <= MOST_AT_ONCE):
            what = f"{value!r}: after '=' stands how many jobs run at once, 1 to {MOST_AT_ONCE}"
            raise click.BadParameter(what, ctx, param)
        if name in found:
            raise click.BadParameter(f"queue {name!r} is named twice", ctx, param)
        try:
            found[check_queue(name)] = int(number) if equals else None
        except ValidationError as error:
            raise click.BadParameter(f"{value!r}: {error.reason}", ctx, param) from None
    return tuple(found.items())


class RunOption(click.Option):
    """An option of a run, and the roles that take it."""

    def __init__(self, *names: str, roles: Collection[str] = EVERY, **more: Any) -> None:
        super().__init__(names, **more)
        self.roles = frozenset(roles)


@attrs.frozen(kw_only=True)
class RunOptions:
    """What the command line says about a run; durations in seconds. The names are those of the options."""

    app: str | None
    config: Path | None
    queue: tuple[tuple[str, int | None], ...]
    concurrency: int | None
    no_maintenance: bool
    poll_only: bool
    pooler: bool
    pool_size: int
    grace: float
    connect_timeout: float
    stale_after: float
    rescue_interval: float | None
    health_addr: str | None
    otel: bool
    with_maintenance: bool
    host: str
    port: int
    path_prefix: str
    allow_unsigned: bool
    storage: str

    def queues(self) -> list[QueueConfig]:
        """The queues that --queue names."""
        return [queue_config(name, number or self.concurrency) for name, number in self.queue]


def _seconds(name: str, help: str, *, default: float | None = None, zero: bool = False) -> RunOption:
    return RunOption(
        name,
        type=float,
        callback=seconds(zero=zero),
        default=default,
        show_default=default is not None,
        metavar="SECONDS",
        help=help,
    )


def queue_config(name: str, max_workers: int | None) -> QueueConfig:
    """Describe a queue; None leaves the number to the library."""
    return QueueConfig(name) if max_workers is None else QueueConfig(name, max_workers)


def run_options(role: str | None = None) -> list[click.Parameter]:
    """Make the options of a run.

    Args:
        role: for which role; None for all of them.
    """
    positive = click.IntRange(1, MOST_AT_ONCE)
    options = [
        RunOption("--app", metavar="MODULE:REGISTRY", help="What the application declares; found in this directory."),
        RunOption(
            "--config", roles=MAINTENANCE, metavar="FILE", type=FILE, help="Declarations in TOML instead of --app."
        ),
        RunOption(
            "--queue",
            roles=WORKER,
            multiple=True,
            callback=_queues,
            metavar="NAME[=N]",
            help="Work on this queue, N jobs at once; may be repeated. Without: every queue of the registry.",
        ),
        RunOption("--concurrency", roles=WORKER, type=positive, help="Jobs at once on a queue without a number."),
        RunOption("--no-maintenance", roles=WORKER, is_flag=True, help="Leave maintenance to other processes."),
        RunOption("--with-maintenance", roles=CALLBACKS, is_flag=True, help="Stand for maintenance as well."),
        RunOption(
            "--host", roles=CALLBACKS, default="127.0.0.1", show_default=True, help="Where callbacks are served."
        ),
        RunOption("--port", roles=CALLBACKS, default=8000, show_default=True, type=click.IntRange(0, 65_535)),
        RunOption("--path-prefix", roles=CALLBACKS, default="", help="What callback URLs begin with."),
        RunOption("--allow-unsigned", roles=CALLBACKS, is_flag=True, help="Accept callbacks without a signature."),
        _seconds("--grace", "How long a drain may take.", default=30.0, zero=True),
        _seconds("--connect-timeout", "How long to wait for the database at start.", default=30.0),
        _seconds("--stale-after", "How long without a beat until this process counts as dead.", default=30.0),
        _seconds("--rescue-interval", "Between rescues when this process leads.  [default: 5]"),
        RunOption(
            "--storage",
            roles=WORKER | MAINTENANCE,
            type=click.Choice(STORAGE_ROLES),
            default="auto",
            hidden=True,
            help="canonical: know only the canonical plane, to rehearse a storage transition.",
        ),
        RunOption("--poll-only", is_flag=True, help="Do not LISTEN: poll."),
        RunOption("--pooler", is_flag=True, help="Behind a transaction pooler: no session state, no LISTEN."),
        RunOption("--pool-size", type=positive, default=10, show_default=True, help="Connections that handlers share."),
        RunOption("--otel", is_flag=True, help="Metrics and spans through OpenTelemetry's global providers."),
        RunOption("--health-addr", metavar="HOST:PORT", help="Answer GET /healthz and /readyz there."),
    ]
    return [option for option in options if role is None or role in option.roles]


def options_for(role: str, values: dict[str, Any]) -> RunOptions:
    """Put the parsed values of one role's options together; options of other roles have what they default to.

    Raises:
        click.UsageError: they do not fit together.
    """
    ctx = click.get_current_context()
    if values.get("app") and values.get("config"):
        raise click.UsageError("--app and --config both say what is declared: give one of them", ctx)
    if role == "worker" and not values.get("app"):
        raise click.UsageError("--role worker needs --app module:registry: the handlers it runs", ctx)
    defaults = {option.name: option.get_default(ctx) for option in run_options()}
    return RunOptions(**{**defaults, **values})
