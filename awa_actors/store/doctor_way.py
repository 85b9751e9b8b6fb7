"""How a connection gets to the server: two sessions of our own tell whether something shares a server process out."""

from __future__ import annotations

import uuid

import attrs
import trio

from awa_actors.core.doctor_server import Way
from awa_actors.errors import StoreError, TransientStoreError
from awa_actors.store.failures import CONNECTION_ERRORS
from awa_actors.store.pool import Pool, Session

HEARD_WITHIN = 2.0
"""Seconds a notification may take."""
PID = "SELECT pg_backend_pid()"
MARK = "SELECT set_config('awa.doctor', $1, false)"
MARKED = "SELECT current_setting('awa.doctor', true)"
TELL = "SELECT pg_notify($1, '')"


async def way(pool: Pool) -> Way:
    """Look how sessions fare between transactions, with two of them open at once.

    Sessions that keep nothing are opened first, since they are let through everywhere; one with the settings of our
    processes comes after them.
    """
    plain = attrs.evolve(pool.settings, pooler=True)
    looking = Pool(pool.url, plain, pool._loop)
    first = await looking.connect("doctor")
    try:
        second = await looking.connect("doctor")
        try:
            return await _compared(pool, first, second)
        finally:
            second.cut()
    finally:
        # Cut, not given back: a pooler must not hand what we set to somebody else.
        first.cut()


async def _compared(pool: Pool, first: Session, second: Session) -> Way:
    proxied = await first.fetchval(PID) != first.raw.get_server_pid()
    shared = await _shared(first, second)
    mark = uuid.uuid4().hex
    await first.fetchval(MARK, mark)
    seen = await second.fetchval(MARKED)
    kept = await first.fetchval(MARKED) == mark
    prepared = not shared and await _keeps_prepared(first, second)
    heard = None if shared else await _heard(first, second)
    return Way(proxied, shared, prepared, kept and seen != mark, heard, await _refusal(pool))


async def _shared(first: Session, second: Session) -> bool:
    """Whether a session meets another server process from one transaction to the next."""
    mine, theirs = {await first.fetchval(PID)}, {await second.fetchval(PID)}
    if mine == theirs:
        return True
    # A pooler with more than one server process: let them change places.
    async with first.transaction():
        mine.add(await first.fetchval(PID))
        theirs.add(await second.fetchval(PID))
    theirs.add(await second.fetchval(PID))
    mine.add(await first.fetchval(PID))
    return len(mine) > 1 or len(theirs) > 1


async def _keeps_prepared(first: Session, second: Session) -> bool:
    """Whether a prepared statement is still there after another session was served."""
    try:
        statement = await first.call(first.raw.prepare(PID, name="awa_doctor"))
        await second.fetchval(PID)
        return await first.call(statement.fetchval()) is not None
    except StoreError:
        return False


async def _heard(first: Session, second: Session) -> float | None:
    """Seconds that a notification takes from one session to the other; None when it does not come."""
    channel, arrived = f"awa:doctor:{uuid.uuid4().hex}", trio.Event()

    def notified(connection: object, pid: int, channel: str, payload: object) -> None:
        arrived.set()

    try:
        await first.call(first.raw.add_listener(channel, notified))
        sent = trio.current_time()
        await second.fetchval(TELL, channel)
        with trio.move_on_after(HEARD_WITHIN):
            await arrived.wait()
            return trio.current_time() - sent
    except StoreError:
        return None
    return None


async def _refusal(pool: Pool) -> str | None:
    """What a session with the settings of our processes is told; None when it is let in."""
    usual = Pool(pool.url, attrs.evolve(pool.settings, pooler=False), pool._loop)
    try:
        session = await usual.connect("doctor")
    except TransientStoreError:
        raise
    except (StoreError, *CONNECTION_ERRORS) as error:
        return str(error)
    await session.close()
    return None
