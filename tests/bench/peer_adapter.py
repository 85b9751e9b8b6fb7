"""This project's adapter for the peer benchmark: the same phases and meters as every other system.

The harness runs it as ``python peer_adapter.py PHASE --dsn …`` with ``PEERBENCH`` naming its folder.
"""

import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from importlib.metadata import version
from typing import Any, ClassVar

import attrs
import trio

sys.path.insert(0, os.environ["PEERBENCH"])

import common  # type: ignore[import-not-found]  # the harness is found at run time only

import awa_actors as awa
import awa_actors.actors.worker


@attrs.frozen
class Noop:
    """The payload every system gets."""

    queue: ClassVar[str] = "bench"
    i: int
    t: float


@attrs.frozen
class TextNoop:
    """The payload of the variant ``large-args``, in which a text takes the integer's place."""

    queue: ClassVar[str] = "bench"
    i: str
    t: float


class AwaActors(common.Adapter):  # type: ignore[misc]  # the harness has no types
    """Public API only."""

    name = "awa_actors"
    transactional = (True, "client.transaction(), awa_actors.bridge.*")
    done_sql = "SELECT (SELECT count(*) FROM awa_queue.done)"
    sleep = staticmethod(trio.sleep)
    to_thread = staticmethod(trio.to_thread.run_sync)

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.args_class: type[Any] = TextNoop if self.variant == "large-args" else Noop

    @classmethod
    def run_loop(cls, fn: Callable[[], Any], args: Any) -> Any:
        """Trio, whatever --loop says."""
        return trio.run(fn)

    def versions(self) -> dict[str, str]:
        """What is measured."""
        return {name: version(name) for name in ("trio", "trio-asyncio", "asyncpg")}

    def settings(self) -> dict[str, Any]:
        """How it is set."""
        return {"max_workers": self.concurrency or 50, "maintenance": True}

    async def install(self) -> None:
        """Migrate."""
        async with awa.open_client(self.dsn) as client:
            await client.migrate()

    async def open(self) -> None:
        """A producer's client."""
        self._stack = contextlib.AsyncExitStack()
        self.client = await self._stack.enter_async_context(awa.open_client(self.dsn))

    async def close(self) -> None:
        """Close it."""
        await self._stack.aclose()

    async def enqueue_many(self, payloads: list[dict[str, Any]]) -> None:
        """Bulk."""
        await self.client.insert_many([self.args_class(**payload) for payload in payloads])

    async def enqueue_one(self, payload: dict[str, Any]) -> None:
        """Single."""
        await self.client.insert(self.args_class(**payload))

    @contextlib.asynccontextmanager
    async def worker(self, on_start: Callable[[dict[str, Any]], None]) -> AsyncIterator[None]:
        """One worker, with maintenance in it, as users run it."""
        registry = awa.Registry()

        @registry.worker(self.args_class)
        async def noop(job: awa.Job[Any]) -> None:
            on_start({"i": job.args.i, "t": job.args.t})

        async with awa.open_client(self.dsn, registry=registry) as client, trio.open_nursery() as nursery:
            worker = await nursery.start(client.run_worker, awa.QueueConfig("bench", self.concurrency or 50))
            yield
            await worker.drain()


if __name__ == "__main__":
    common.main(AwaActors)
