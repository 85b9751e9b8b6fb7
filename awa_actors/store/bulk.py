"""Any number of jobs, encoded while those before them are being stored: client and server work at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import trio

from awa_actors.jobs import InsertedJob, InsertOpts
from awa_actors.store.insert import NewJob, admit_many, chunks, inserted, parameters, statement

if TYPE_CHECKING:  # a process that only enqueues over a bridge needs no driver
    from awa_actors.store.pool import Session

_Piece = tuple[Sequence[NewJob], str, tuple[Any, ...]]
PIECE, SLICE = 2_000, 100
"""Jobs that are stored while the next ones are encoded, and that are encoded without letting others run."""


async def insert_jobs(session: Session, jobs: Sequence[NewJob]) -> list[InsertedJob]:
    """Insert jobs that one statement can hold.

    Raises:
        UniqueConflict: another job holds a key; nothing was inserted, and the transaction is as it was before.
    """
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
    send, receive = trio.open_memory_channel[_Piece | Exception](1)
    answers: deque[tuple[Sequence[NewJob], Any]] = deque()
    done: list[InsertedJob] = []

    def read_answers() -> None:
        while answers:
            done.extend(inserted(*answers.popleft()))

    async def encode() -> None:
        async with send:
            try:
                for first in range(0, len(wanted), PIECE):
                    piece: list[NewJob] = []
                    for start in range(first, min(first + PIECE, len(wanted)), SLICE):
                        piece += admit_many(wanted[start : start + SLICE], opts, limit=limit, first=start)
                        read_answers()
                        await trio.lowlevel.checkpoint()
                    for jobs in chunks(piece):
                        await send.send((jobs, statement(jobs), parameters(jobs)))
            except Exception as error:  # what args do when they are encoded is theirs
                await send.send(error)

    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(encode, name="encode jobs")
        try:
            async for piece in receive:
                if isinstance(piece, Exception):
                    raise piece
                jobs, sql, values = piece
                answers.append((jobs, await session.fetchrow(sql, *values)))
            read_answers()
        except Exception as error:  # bare, not in the group that a nursery would make of it
            failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return done
