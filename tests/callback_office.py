"""Handlers that register a callback, and where a test meets them."""

from __future__ import annotations

from typing import Any

import attrs
import trio
from at_work import LIMIT

import awa_actors as awa
from awa_actors.config import MaintenanceSettings, WorkerSettings
from awa_actors.jobs import CallbackToken

SWIFT = WorkerSettings(cancel_poll=0.02)
QUICK_SWEEPS = MaintenanceSettings(rescue_interval=0.02)
NOBODY = "00000000-0000-0000-0000-000000000000"


@attrs.frozen
class Errand:
    n: int = 0


@attrs.define
class Office:
    """A handler that registers a callback, and where the test meets it."""

    registry: awa.Registry = attrs.field(factory=awa.Registry)
    tokens: list[CallbackToken] = attrs.field(factory=list)
    results: list[Any] = attrs.field(factory=list)
    told: trio.Event = attrs.field(factory=trio.Event)
    go_on: trio.Event = attrs.field(factory=trio.Event)

    async def register(self, job: awa.Job[Errand], **options: Any) -> CallbackToken:
        token = await job.register_callback(**options)
        self.tokens.append(token)
        self.told.set()
        return token

    async def next_id(self) -> str:
        """The id of the newest callback, when there is one."""
        with trio.fail_after(LIMIT):
            await self.told.wait()
        return self.tokens[-1].callback_id


def parking(**options: Any) -> Office:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> awa.Verdict:
        if job.callback_result is not None:
            office.results.append(job.callback_result)
            return None
        return awa.WaitForCallback(await office.register(job, **options))

    return office


def waiting_inside(**options: Any) -> Office:
    office = Office()

    @office.registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> None:
        token = await office.register(job, **options)
        office.results.append(await job.wait_for_callback(token))

    return office
