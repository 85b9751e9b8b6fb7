"""A worker process for tests that kill, freeze and cut it off: says on stdout what it does, one line each.

Run as ``python worker_process.py URL [--hold SECONDS] [--stale SECONDS] [--workers N] [--freeze-at TEXT]``.
Lines: ``ready``, ``started JOB ATTEMPT RUN_LEASE``, ``finished JOB``, ``stopped``.
"""

import argparse
import os
import signal
import sys
from typing import Any

import attrs
import trio

import awa_actors as awa
from awa_actors.config import MaintenanceSettings, WorkerSettings
from awa_actors.core.liveness import Liveness
from awa_actors.store.pool import Session


@attrs.frozen
class Errand:
    """Args: `fails` is how many attempts raise before one succeeds."""

    n: int = 0
    fails: int = 0


def say(*words: object) -> None:
    """Print a line that the test waits for."""
    print(*words, flush=True)


def freeze_at(text: str) -> None:
    """Stop this process right after it has sent the second statement with `text`; the first one only prepares it."""
    seen = 0

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def watched(name: str) -> Any:
        original = getattr(Session, name)

        async def call(self: Session, sql: str, *args: Any) -> Any:
            nonlocal seen
            if text in sql:
                seen += 1
                if seen == 2:
                    # The driver's first step, which sends, comes between these two.
                    self._loop.call_soon(self._loop.call_soon, stop)
            return await original(self, sql, *args)

        return call

    for name in ("fetch", "fetchrow", "fetchval", "execute"):
        setattr(Session, name, watched(name))


def registry(hold: float) -> awa.Registry:
    """One handler that takes its time."""
    registry = awa.Registry()

    @registry.worker(Errand)
    async def run(job: awa.Job[Errand]) -> None:
        say("started", job.id, job.attempt, job.run_lease)
        try:
            await trio.sleep(hold)
            if job.attempt <= job.args.fails:
                raise RuntimeError("not yet")
            say("finished", job.id)
        finally:
            say("ended", job.id)

    return registry


async def main(options: argparse.Namespace) -> None:
    """Work until killed, or until stdin says to stop."""
    settings = WorkerSettings(liveness=Liveness(options.stale))
    # A lease that a frozen leader holds is waited for.
    lease = awa.LeaseTiming(lease=4.0, trust=3.0, renew=0.8)
    maintenance = MaintenanceSettings(
        rescue_interval=0.1, hygiene_interval=0.1, ring_turn=0.2, deadline_margin=1.0, lease=lease
    )
    if options.freeze_at:
        freeze_at(options.freeze_at)
    async with awa.open_client(options.url, registry=registry(options.hold)) as client, trio.open_nursery() as nursery:
        queue = awa.QueueConfig("default", max_workers=options.workers, poll_interval=0.1)

        async def work(task_status: trio.TaskStatus[awa.Worker]) -> None:
            await client.run_worker(queue, settings=settings, maintenance=maintenance, task_status=task_status)

        worker: awa.Worker = await nursery.start(work)
        say("ready")
        await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        await worker.drain()
        nursery.cancel_scope.cancel()
    say("stopped")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--hold", type=float, default=0.0)
    parser.add_argument("--stale", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--freeze-at", default="")
    trio.run(main, parser.parse_args())
