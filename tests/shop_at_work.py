"""An application for processes under test: its handlers say what they do, and wait for a word of the test."""

import sys
import time

import attrs
import trio

import awa_actors as awa


@attrs.frozen
class Wait:
    """Runs until a line arrives on standard input."""


@attrs.frozen
class Sleep:
    """Runs for so many seconds."""

    seconds: float


@attrs.frozen
class Linger:
    """Runs until it is cancelled."""


@attrs.frozen
class Block:
    """Blocks the event loop, as no handler should."""


@attrs.frozen
class Stubborn:
    """Swallows cancellation, as no handler should."""


registry = awa.Registry()


def say(text: str) -> None:
    print(text, flush=True)


@registry.worker(Wait)
async def wait(job: awa.Job[Wait]) -> None:
    say(f"started {job.id}")
    await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    say(f"finished {job.id}")


@registry.worker(Sleep)
async def sleep(job: awa.Job[Sleep]) -> None:
    say(f"started {job.id}")
    await trio.sleep(job.args.seconds)


@registry.worker(Linger)
async def linger(job: awa.Job[Linger]) -> None:
    say(f"started {job.id}")
    await trio.sleep_forever()


@registry.worker(Block)
async def block(job: awa.Job[Block]) -> None:
    say(f"started {job.id}")
    time.sleep(3600)  # noqa: ASYNC251 - this is what it is for


@registry.worker(Stubborn)
async def refuse(job: awa.Job[Stubborn]) -> None:
    say(f"started {job.id}")
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()
