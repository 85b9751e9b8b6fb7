"""Any number of jobs, encoded while those before them are being stored: client and server work at the same time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs
import trio

from awa_actors.jobs import InsertedJob, InsertOpts
from awa_actors.store.insert import CHUNK_CHARACTERS, NewJob, admissions, call, characters, inserted

if TYPE_CHECKING:  # a process that only enqueues over a bridge needs no driver
    from awa_actors.store.pool import Session

_Statement = tuple[Sequence[NewJob], str, tuple[Any, ...]]
PIECE, SLICE = 2_000, 100
"""Jobs that are stored while the next ones are encoded, and that are encoded without letting others run."""


@attrs.define(eq=False)
class Pieces:
    """Jobs as they are encoded, in pieces that are small enough for one statement each.

    Args:
        wanted: instances of args classes.
        opts: of every one of them, without a unique key: unique jobs are inserted by one statement.
        limit: most bytes of the args of each.
    """

    wanted: Sequence[Any]
    opts: InsertOpts | None
    limit: int
    left: int = attrs.field(init=False)
    _encoded: Iterator[NewJob] = attrs.field(init=False)
    _over: list[NewJob] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        self.left = len(self.wanted)
        self._encoded = admissions(self.wanted, self.opts, self.limit)

    async def encode(self, between: Callable[[], None] | None = None) -> list[NewJob]:
        """Encode the next piece: PIECE jobs and CHUNK_CHARACTERS of args at most, but at least one job.

        Args:
            between: what else there is to do whenever others may run.

        Raises:
            ValidationError, UsageError: as :func:`~awa_actors.store.insert.admit_many`.

        Cancellation: nothing but encoded jobs is lost.
        """
        piece, self._over = self._over, []
        room = CHUNK_CHARACTERS - characters(piece)
        for number, job in enumerate(islice(self._encoded, PIECE - len(piece)), 1):
            room -= len(job.args)
            if room < 0 and piece:
                self._over.append(job)
                break
            piece.append(job)
            if number % SLICE == 0:
                if between is not None:
                    between()
                await trio.lowlevel.checkpoint()
        self.left -= len(piece)
        return piece


async def insert_jobs(session: Session, jobs: Sequence[NewJob]) -> list[InsertedJob]:
    """Insert jobs that one statement can hold.

    Raises:
        UniqueConflict: another job holds a key; nothing was inserted, and the transaction is as it was before.
    """
    sql, values = call(jobs)
    return inserted(jobs, await session.fetchrow(sql, *values))


async def insert_many(session: Session, first: Sequence[NewJob], pieces: Pieces) -> list[InsertedJob]:
    """Insert a piece in the transaction that is open on the session, and encode and insert what is left meanwhile.

    Args:
        session: in a transaction, which is to be rolled back when this raises.
        first: the piece that was encoded first.
        pieces: where it came from.

    Raises:
        ValidationError, UsageError: as :func:`~awa_actors.store.insert.admit_many`.

    Cancellation: as any statement.
    """
    send, receive = trio.open_memory_channel[_Statement | Exception](1)
    answers: deque[tuple[Sequence[NewJob], Any]] = deque()
    done: list[InsertedJob] = []

    def read_answers() -> None:
        while answers:
            done.extend(inserted(*answers.popleft()))

    async def encode() -> None:
        jobs = first
        async with send:
            try:
                while jobs:
                    await send.send((jobs, *call(jobs)))
                    jobs = await pieces.encode(read_answers) if pieces.left else []
            except Exception as error:  # what args do when they are encoded is theirs
                await send.send(error)

    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(encode, name="encode jobs")
        try:
            async for made in receive:
                if isinstance(made, Exception):
                    raise made
                jobs, sql, values = made
                answers.append((jobs, await session.fetchrow(sql, *values)))
            read_answers()
        except Exception as error:  # bare, not in the group that a nursery would make of it
            failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return done
