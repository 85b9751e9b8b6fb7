"""Many jobs at once: plain ones by COPY, and encoded while those before them are being stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import trio

from awa_actors.jobs import InsertedJob, InsertOpts
from awa_actors.store.insert import NewJob, admit_many, chunks, inserted, parameters, statement

if TYPE_CHECKING:  # a process that only enqueues over a bridge needs no driver
    from awa_actors.store.pool import Session

OPEN_COPY = """
SELECT slot, rslot, at, ids FROM awa_queue.open_copy($1::pg_catalog.text[], $2::pg_catalog.text[], $3::smallint[],
    $4::smallint[], $5)
"""
WAKE = "SELECT awa.wake(q, awa.queue_channel(q)) FROM pg_catalog.unnest($1::pg_catalog.text[]) q"
BODIES = ("slot", "priority", "max_attempts", "shard", "job_id", "created_at", "kind", "queue", "args")
READY = ("rslot", "priority", "shard", "slot", "attempt", "pos", "job_id", "run_lease", "ready_at", "queue")
WORTH_COPYING = 500
"""Jobs for which four short statements are cheaper than one long one."""
PIECE, SLICE = 2_500, 100
"""Jobs that are stored while the next ones are encoded, and that are encoded without letting others run."""
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def worth_copying(jobs: Sequence[NewJob]) -> bool:
    """Whether these are many and have nothing but their args: inserted in an open transaction, they are copied."""
    return len(jobs) >= WORTH_COPYING and not any(job.options for job in jobs)


async def insert_jobs(session: Session, jobs: Sequence[NewJob]) -> list[InsertedJob]:
    """Insert jobs that one statement can hold; where they are worth copying, a transaction is open on the session.

    Raises:
        UniqueConflict: another job holds a key; nothing was inserted, and the transaction is as it was before.
    """
    if worth_copying(jobs) and (copied := await copy_in(session, jobs)) is not None:
        return copied
    return inserted(jobs, await session.fetchrow(statement(jobs), *parameters(jobs)))


async def insert_many(
    session: Session, wanted: Sequence[Any], opts: InsertOpts | None, limit: int
) -> list[InsertedJob]:
    """Encode and insert any number of jobs in the transaction that is open on the session, both at the same time.

    Args:
        session: in a transaction, which is to be rolled back when this raises.
        wanted: instances of args classes.
        opts: of every one of them, without a unique key: unique jobs are inserted by one statement.
        limit: most bytes of the args of each.

    Raises:
        ValidationError, UsageError: as :func:`~awa_actors.store.insert.admit_many`.

    Cancellation: as any statement.
    """
    send, receive = trio.open_memory_channel[list[NewJob] | Exception](1)

    async def encode() -> None:
        piece: list[NewJob] = []
        async with send:
            for first in range(0, len(wanted), SLICE):
                try:
                    piece += admit_many(wanted[first : first + SLICE], opts, limit=limit, first=first)
                except Exception as error:  # what args do when they are encoded is theirs
                    return await send.send(error)
                if len(piece) >= PIECE:
                    await send.send(piece)
                    piece = []
                await trio.lowlevel.checkpoint()
            await send.send(piece)

    done: list[InsertedJob] = []
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(encode, name="encode jobs")
        try:
            async for piece in receive:
                if isinstance(piece, Exception):
                    raise piece
                for jobs in chunks(piece):
                    done += await insert_jobs(session, jobs)
        except Exception as error:  # bare, not in the group that a nursery would make of it
            failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return done


async def copy_in(session: Session, jobs: Sequence[NewJob]) -> list[InsertedJob] | None:
    """Copy plain jobs into both tables; None where they must be inserted: shards, row security.

    Shape: bodies and ready rows in.
    """
    _, kinds, queues, priorities, attempts, _ = parameters(jobs)
    opened = await session.fetchrow(OPEN_COPY, kinds, queues, priorities, attempts, len(jobs))
    if opened["ids"] is None:
        return None
    bodies, ready = rows(jobs, opened["ids"], opened["slot"], opened["rslot"], opened["at"])
    await session.copy("awa_queue.bodies", BODIES, bodies)
    await session.copy("awa_queue.ready", READY, ready)
    await session.fetch(WAKE, list(dict.fromkeys(queues)))
    return [InsertedJob(job_id, job.kind, job.queue) for job, job_id in zip(jobs, opened["ids"], strict=True)]


def rows(jobs: Sequence[NewJob], ids: Sequence[int], slot: int, rslot: int, at: str) -> tuple[str, str]:
    """Write jobs in the text format of COPY, as bodies and as ready rows. What many jobs share is written once."""
    shared: dict[tuple[str, str, int, int], tuple[str, str, str, str]] = {}
    bodies: list[str] = []
    ready: list[str] = []
    for job, job_id in zip(jobs, ids, strict=True):
        key = job.kind, job.queue, job.priority, job.max_attempts
        if (parts := shared.get(key)) is None:
            kind, queue = job.kind.translate(_ESCAPES), job.queue.translate(_ESCAPES)
            parts = shared[key] = (
                f"{slot}\t{job.priority}\t{job.max_attempts}\t0\t",
                f"\t{at}\t{kind}\t{queue}\t",
                f"{rslot}\t{job.priority}\t0\t{slot}\t0\t",
                f"\t0\t{at}\t{queue}\n",
            )
        head, middle, ready_head, ready_tail = parts
        # JSON has no raw control characters, so backslashes are all there is to escape.
        args = job.args.replace("\\", "\\\\") if "\\" in job.args else job.args
        bodies.append(f"{head}{job_id}{middle}{args}\n")
        ready.append(f"{ready_head}{job_id}\t{job_id}{ready_tail}")
    return "".join(bodies), "".join(ready)
