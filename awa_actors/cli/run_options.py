"""The options of a run, and which role each of them belongs to."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import attrs
import click

from awa_actors.cli.placement import ROLES
from awa_actors.config import QueueConfig
from awa_actors.core.validation import check_queue
from awa_actors.errors import ValidationError

EVERY = frozenset(ROLES)
WORKER = frozenset({"worker"})
MAINTENANCE = frozenset({"maintenance"})
CALLBACKS = frozenset({"callbacks"})
LONGEST = 86_400.0
"""A day: no process waits longer for anything at its start or its end."""


class Seconds(click.ParamType[float]):
    """A finite number of seconds, above 0 unless 0 means something."""

    name = "seconds"

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read a number; ``click`` adds the name of the option to what is wrong with it."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (0 < number <= LONGEST or (self.zero and number == 0)):
            self.fail(f"{value!r} is not a number of seconds {'from' if self.zero else 'above'} 0 to {LONGEST:.0f}", param, ctx)
        return number


class QueueAndWorkers(click.ParamType[tuple[str, int | None]]):
    """``NAME`` or ``NAME=N``."""

    name = "name[=n]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int | None]:
        """Read a queue and how many of its jobs may run at once."""
        if isinstance(value, tuple):
            return value
        name, equals, number = value.partition("=")
        if equals and not (number.isascii() and number.isdigit() and 0 < int(number) <= 10_000):
            self.fail(f"{value!r}: after '=' stands how many jobs run at once, 1 to 10000", param, ctx)
        try:
            return check_queue(name), int(number) if equals else None
        except ValidationError as error:
            self.fail(f"{value!r}: {error.reason}", param, ctx)


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
    maintenance: bool
    poll_only: bool
    pooler: bool
    pool_size: int
    grace: float
    connect_timeout: float
    stale_after: float
    rescue_interval: float | None
    health_addr: str | None
    with_maintenance: bool
    host: str
    port: int
    path_prefix: str
    allow_unsigned: bool

    def queues(self) -> list[QueueConfig]:
        """The queues that --queue names."""
        fallback = {} if self.concurrency is None else {"max_workers": self.concurrency}
        return [QueueConfig(name, **({"max_workers": number} if number else fallback)) for name, number in self.queue]


def run_options(role: str | None = None) -> list[click.Parameter]:
    """Make the options of a run.

    Args:
        role: for which role; None for all of them.
    """
    positive = click.IntRange(1, 10_000)
    options = [
        RunOption("--app", metavar="MODULE:REGISTRY", help="What the application declares; found in the working directory."),
        RunOption(
            "--config", roles=MAINTENANCE, metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
            help="Declarations for maintenance in TOML, instead of --app.",
        ),
        RunOption(
            "--queue", roles=WORKER, multiple=True, type=QueueAndWorkers(), metavar="NAME[=N]",
            help="Work on this queue, N jobs at once; again for more. Without any: every queue of the registry.",
        ),
        RunOption("--concurrency", roles=WORKER, type=positive, help="Jobs at once on queues that name no number of their own."),
        RunOption(
            "--no-maintenance", "maintenance", roles=WORKER, flag_value=False, default=True,
            help="Leave maintenance to other processes.",
        ),
        RunOption("--with-maintenance", roles=CALLBACKS, is_flag=True, help="Stand for maintenance as well."),
        RunOption("--host", roles=CALLBACKS, default="127.0.0.1", show_default=True, help="Address to serve callbacks on."),
        RunOption("--port", roles=CALLBACKS, default=8000, show_default=True, type=click.IntRange(0, 65_535)),
        RunOption("--path-prefix", roles=CALLBACKS, default="", help="What callback URLs begin with."),
        RunOption("--allow-unsigned", roles=CALLBACKS, is_flag=True, help="Accept callbacks without a signature."),
        RunOption("--grace", type=Seconds(zero=True), default=30.0, show_default=True, help="Seconds a drain may take."),
        RunOption(
            "--connect-timeout", type=Seconds(), default=30.0, show_default=True, help="Seconds to wait for the database at start."
        ),
        RunOption(
            "--stale-after", type=Seconds(), default=30.0, show_default=True,
            help="Seconds without a beat after which this process counts as dead.",
        ),
        RunOption("--rescue-interval", type=Seconds(), help="Seconds between rescues when this process leads (5)."),
        RunOption("--poll-only", is_flag=True, help="Do not LISTEN: poll."),
        RunOption("--pooler", is_flag=True, help="Behind a transaction pooler: no session state, no LISTEN."),
        RunOption("--pool-size", type=positive, default=10, show_default=True, help="Connections for work; control ones are extra."),
        RunOption("--health-addr", metavar="HOST:PORT", help="Answer GET /healthz and /readyz there."),
    ]  # fmt: skip
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
    names = [name for name, _ in values.get("queue", ())]
    if len(set(names)) != len(names):
        raise click.UsageError(f"--queue names a queue twice: {', '.join(names)}", ctx)
    defaults = {option.name: option.get_default(ctx) for option in run_options()}
    return RunOptions(**{**defaults, **values})
