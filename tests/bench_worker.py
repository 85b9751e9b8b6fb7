"""A worker process for benchmarks: prints a line when it works; told to end, one JSON object of what it saw.

Run as ``python bench_worker.py URL MAX_WORKERS notify|poll``; it ends with its input.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import attrs
import trio
from bench_meters import process_cpu

import awa_actors as awa
from awa_actors.config import DatabaseSettings


@attrs.frozen
class Noop:
    """About 200 bytes of args; `t` is when it was enqueued, 0 for jobs whose latency nobody asks for."""

    queue: ClassVar[str] = "bench"
    i: int
    t: float = 0.0
    padding: str = "x" * 150


@attrs.frozen
class Large:
    """As many bytes of args as are asked for."""

    queue: ClassVar[str] = "bench"
    padding: str


async def main(url: str, max_workers: int, wakes: str) -> None:
    """Work until the input ends."""
    registry, late, handled = awa.Registry(), list[float](), 0

    @registry.worker(Noop)
    async def noop(job: awa.Job[Noop]) -> None:
        nonlocal handled
        handled += 1
        if job.args.t:
            late.append(time.time() - job.args.t)

    @registry.worker(Large)
    async def large(job: awa.Job[Large]) -> None:
        nonlocal handled
        handled += 1

    settings = DatabaseSettings(notify=wakes == "notify")
    queue = awa.QueueConfig("bench", max_workers)
    async with awa.open_client(url, registry=registry, settings=settings) as client, trio.open_nursery() as nursery:
        worker = await nursery.start(client.run_worker, queue)
        print("works", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        await worker.drain()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu = usage.ru_utime + usage.ru_stime
    print(json.dumps({"late": late, "handled": handled, "cpu": cpu}), flush=True)


@attrs.define
class WorkerProcess:
    """One of them, as the benchmark sees it; `seen` is there after the block of :func:`worker_process`."""

    process: subprocess.Popen[str]
    seen: dict[str, Any] = attrs.field(factory=dict)

    @property
    def memory(self) -> int:
        """Resident bytes now."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))

    @property
    def cpu(self) -> float:
        """CPU seconds so far, all threads."""
        return process_cpu(self.process.pid)


@contextmanager
def worker_process(url: str, max_workers: int = 512, wakes: str = "notify") -> Iterator[WorkerProcess]:
    """Run one for the block."""
    command = [sys.executable, __file__, url, str(max_workers), wakes]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    worker = WorkerProcess(process)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "works\n"
        yield worker
        said, _ = process.communicate(timeout=60)
        worker.seen = json.loads(said)
    finally:
        process.kill()
        process.wait()


@contextmanager
def worker_processes(url: str, count: int, max_workers: int = 512) -> Iterator[list[WorkerProcess]]:
    """Run several."""
    with ExitStack() as stack:
        yield [stack.enter_context(worker_process(url, max_workers)) for _ in range(count)]


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), sys.argv[3])
