"""The application of the drain demo: jobs that sleep, wait, are tried again, and never come to an end."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

import awa_actors as awa

BEAT = 0.8
"""Seconds between the runs of a heartbeat."""
IMPORT = 3.0
"""Seconds that the longest handler takes: no drain is shorter than that."""
DAY = 86_400.0


@attrs.frozen
class Heartbeat:
    """Snoozes for ever, so that waiting for it to end is no use."""

    queue: ClassVar[str] = "demo"
    device: int


@attrs.frozen
class Reminder:
    """Is enqueued for next year."""

    queue: ClassVar[str] = "demo"
    text: str


@attrs.frozen
class Mail:
    """Fails once, and is tried again tomorrow."""

    queue: ClassVar[str] = "demo"
    to: int


@attrs.frozen
class Payment:
    """Waits for somebody outside."""

    queue: ClassVar[str] = "demo"
    order: int


@attrs.frozen
class Import:
    """Runs while everything moves."""

    queue: ClassVar[str] = "demo"
    rows: int


@attrs.frozen
class Order:
    """What producers enqueue all the time."""

    queue: ClassVar[str] = "demo"
    number: int


registry = awa.Registry("drain demo")


@registry.worker(Heartbeat)
async def beat(job: awa.Job[Heartbeat]) -> awa.Verdict:
    """Snooze, again and again."""
    return awa.Snooze(BEAT)


@registry.worker(Reminder)
async def remind(job: awa.Job[Reminder]) -> None:
    """Succeed, next year."""


@registry.worker(Mail)
async def mail(job: awa.Job[Mail]) -> awa.Verdict:
    """Ask for another attempt."""
    return awa.RetryAfter(DAY, reason="the mail server is down for today")


@registry.worker(Payment)
async def await_payment(job: awa.Job[Payment]) -> awa.Verdict:
    """Park until somebody calls back."""
    return awa.WaitForCallback(await job.register_callback(expires_in=DAY))


@registry.worker(Import)
async def import_rows(job: awa.Job[Import]) -> None:
    """Take long."""
    await trio.sleep(IMPORT)


@registry.worker(Order)
async def ship(job: awa.Job[Order]) -> None:
    """Succeed."""
