"""The application of the demo, which its processes load; a small example of a registry, too."""

from __future__ import annotations

from typing import ClassVar

import attrs
import trio

import awa_actors as awa

WORK = 0.4
"""Seconds that a handler works, so that one can watch it."""
FOREVER = 60.0
"""Seconds that the interrupted handler would work if nobody killed its worker."""
SCHEDULE = "every-second"
"""Name of the schedule."""


@attrs.frozen
class Greeting:
    """Runs at once."""

    queue: ClassVar[str] = "demo"
    name: str


@attrs.frozen
class Reminder:
    """Is enqueued for later."""

    queue: ClassVar[str] = "demo"
    text: str


@attrs.frozen
class FlakyMail:
    """Needs three attempts."""

    queue: ClassVar[str] = "demo"
    to: str


@attrs.frozen
class BusyReport:
    """Has to wait for something, which is no failure."""

    queue: ClassVar[str] = "demo"
    month: str


@attrs.frozen
class Invoice:
    """Must exist once."""

    queue: ClassVar[str] = "demo"
    number: int


@attrs.frozen
class BadAddress:
    """Cannot succeed."""

    queue: ClassVar[str] = "demo"
    to: str


@attrs.frozen
class StaleOrder:
    """Is not needed any more."""

    queue: ClassVar[str] = "demo"
    number: int


@attrs.frozen
class LongImport:
    """Takes so long that its worker can be killed meanwhile."""

    queue: ClassVar[str] = "demo"
    rows: int


@attrs.frozen
class Payment:
    """Waits for somebody outside."""

    queue: ClassVar[str] = "demo"
    order: int


@attrs.frozen
class Pulse:
    """What the schedule enqueues."""

    queue: ClassVar[str] = "pulse"


@attrs.frozen
class Note:
    """What every follow-up enqueues: that something has happened to a job."""

    queue: ClassVar[str] = "notes"
    about: int
    outcome: str


registry = awa.Registry("demo")
# Catching up: seconds without a leader are not left out.
registry.cron(SCHEDULE, "* * * * * *", Pulse(), missed_fire=awa.MissedFire.CATCH_UP)


async def work(job: awa.Job[object]) -> None:
    """Take a moment, and succeed."""
    await trio.sleep(WORK)


for plain in (Greeting, Reminder, Invoice, Note):
    registry.worker(plain)(work)


@registry.worker(FlakyMail)
async def mail(job: awa.Job[FlakyMail]) -> awa.Verdict:
    """Ask for another attempt twice."""
    await trio.sleep(WORK)
    return awa.RetryAfter(0.5, reason="the mail server is busy") if job.attempt < 3 else None


@registry.worker(BusyReport)
async def report(job: awa.Job[BusyReport]) -> awa.Verdict:
    """Snooze once."""
    await trio.sleep(WORK)
    return awa.Snooze(1.0) if job.snoozes == 0 else None


@registry.worker(BadAddress)
async def check_address(job: awa.Job[BadAddress]) -> None:
    """Fail for good."""
    await trio.sleep(WORK)
    raise awa.TerminalError(f"there is no such address: {job.args.to}")


@registry.worker(StaleOrder)
async def ship(job: awa.Job[StaleOrder]) -> awa.Verdict:
    """Cancel."""
    await trio.sleep(WORK)
    return awa.Cancel("the customer changed their mind")


@registry.worker(LongImport)
async def import_rows(job: awa.Job[LongImport]) -> None:
    """Take long, unless a worker has died of it before."""
    # The first worker never gets to the end: the demo kills it.
    await trio.sleep(FOREVER if job.rescues == 0 else WORK)


@registry.worker(Payment)
async def await_payment(job: awa.Job[Payment]) -> awa.Verdict:
    """Park until somebody calls back."""
    # Here it would tell the payment provider the callback's URL.
    token = await job.register_callback(expires_in=FOREVER)
    await trio.sleep(WORK)
    return awa.WaitForCallback(token)


@registry.worker(Pulse)
async def beat(job: awa.Job[Pulse]) -> None:
    """Succeed at once."""


@registry.on_completed_enqueue(Greeting)
def after_greeting(event: awa.events.Completed[Greeting]) -> Note:
    """Follow a completion."""
    return Note(event.job.id, "completed")


@registry.on_retried_enqueue(FlakyMail)
def after_retry(event: awa.events.Retried[FlakyMail]) -> Note:
    """Follow every retry."""
    return Note(event.job.id, "retried")


@registry.on_exhausted_enqueue(BadAddress)
def after_failure(event: awa.events.Exhausted[BadAddress]) -> Note:
    """Follow the failure."""
    return Note(event.job.id, "exhausted")


@registry.on_cancelled_enqueue(StaleOrder)
def after_cancellation(event: awa.events.Cancelled[StaleOrder]) -> Note:
    """Follow the cancellation."""
    return Note(event.job.id, "cancelled")


@registry.on_waiting_for_callback_enqueue(Payment)
def after_parking(event: awa.events.WaitingForCallback[Payment]) -> Note:
    """Follow the beginning of the wait."""
    return Note(event.job.id, "parked")


@registry.on_completed_enqueue(Payment)
def after_payment(event: awa.events.Completed[Payment]) -> Note:
    """Follow a completion, which is the callback server's."""
    return Note(event.job.id, "completed")


# Through the outbox: the leader that rescues may be killed right afterwards.
@registry.on_rescued_enqueue(LongImport, delivery=awa.Delivery.OUTBOX)
def after_rescue(event: awa.events.Rescued[LongImport]) -> Note:
    """Follow the rescue."""
    return Note(event.job.id, "rescued")
