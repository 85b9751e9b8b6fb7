"""The checks of the doctor: what each asks of the store, and which judgement it hands that to."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import attrs

from awa_actors.core import doctor_server, doctor_storage, doctor_work
from awa_actors.core.doctor import Process, Verdict, skipped
from awa_actors.core.follow_up_drift import Speaker, drift
from awa_actors.errors import StoreError, TransientStoreError
from awa_actors.registry import Registry

if TYPE_CHECKING:
    from awa_actors.store.pool import Pool, Session

STATEMENT_LIMIT = 4.0
"""Seconds that one statement of a check may take."""

logger = logging.getLogger("awa_actors.doctor")


@attrs.define
class Visit:
    """What checks share: how they ask, and what an earlier one found out for all.

    Args:
        pool: of the database.
        registry: what the application at hand declares.
        patience: seconds that something may wait before it counts as stuck.
        pooler: a transaction pooler is expected.
        schema_fits: None while that is unknown.
    """

    pool: Pool
    registry: Registry
    patience: float
    pooler: bool
    schema_fits: bool | None = None
    processes: list[Process] = attrs.field(factory=list)
    lease: doctor_work.Lease | None = None
    jobs_wait: bool = False
    way: doctor_server.Way | None = None

    def session(self) -> AbstractAsyncContextManager[Session]:
        """A transaction that writes nothing and cannot hang."""
        from awa_actors.store.doctor_look import looking

        return looking(self.pool, STATEMENT_LIMIT)


async def _server(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_server as look

    async with visit.session() as session:
        return doctor_server.judge_server(*await look.server(session))


async def _schema(visit: Visit) -> Verdict:
    from awa_actors.store import migrate

    async with visit.session() as session:
        found, expected = await migrate.schema_version(session), migrate.expected_version()
    visit.schema_fits = found == expected
    if visit.schema_fits:
        await _see_who_is_there(visit)
    return doctor_server.judge_schema(found, expected)


async def _see_who_is_there(visit: Visit) -> None:
    from awa_actors.store import doctor_work as look

    try:
        async with visit.session() as session:
            visit.processes, visit.lease = await look.processes(session), await look.lease(session)
    except TransientStoreError:
        raise
    except StoreError:
        # Without that little nothing can be said; the check of privileges says why.
        visit.schema_fits = None
        return
    try:
        async with visit.session() as session:
            visit.jobs_wait = await look.jobs_wait(session)
    except TransientStoreError:
        # Somebody locks what we look at, so that it can be taken to be in use; another check names them.
        visit.jobs_wait = True
    except StoreError:
        logger.debug("this role does not see whether jobs wait", exc_info=True)


async def _privileges(visit: Visit) -> Verdict:
    from awa_actors.store import grants

    if visit.schema_fits is False:
        return skipped("needs the schema of this release")
    async with visit.session() as session:
        return doctor_server.judge_privileges(await grants.held(session))


async def _pooler(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_way as look

    visit.way = await look.way(visit.pool)
    return doctor_server.judge_pooler(visit.way, visit.pooler, visit.processes)


async def _notify(visit: Visit) -> Verdict:
    if visit.way is None:
        return skipped("how this connection gets to the server is not known")
    return doctor_server.judge_notify(visit.way)


async def _clock(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_server as look

    async with visit.session() as session:
        return doctor_server.judge_clock(*await look.clock(session))


async def _connections(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_server as look

    async with visit.session() as session:
        return doctor_server.judge_connections(await look.seats(session), visit.processes)


async def _locks(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_server as look

    async with visit.session() as session:
        return doctor_server.judge_locks(
            await look.blockers(session), await look.strong_holders(session, visit.patience)
        )


async def _horizon(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_server as look

    async with visit.session() as session:
        return doctor_server.judge_horizon(*await look.pins(session, visit.patience))


async def _leader(visit: Visit) -> Verdict:
    return doctor_work.judge_leader(visit.lease, visit.jobs_wait, visit.processes)


async def _lanes(visit: Visit) -> Verdict:
    return doctor_work.judge_lanes(visit.lease, visit.processes)


async def _schedules(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_work as look

    async with visit.session() as session:
        return doctor_work.judge_schedules(await look.schedules(session))


async def _workers(visit: Visit) -> Verdict:
    return doctor_work.judge_workers(visit.processes, visit.jobs_wait)


async def _listeners(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_server as look

    async with visit.session() as session:
        return doctor_work.judge_listeners(visit.processes, await look.backends(session))


async def _queues(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_work as look

    async with visit.session() as session:
        return doctor_work.judge_queues(await look.queues(session), visit.processes, visit.patience)


async def _kinds(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_work as look

    async with visit.session() as session:
        return doctor_work.judge_kinds(await look.kinds(session), visit.processes, set(visit.registry.workers))


async def _poison(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_work as look

    async with visit.session() as session:
        return doctor_work.judge_poison(await look.poison(session))


async def _follow_ups(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_work as look

    leads = visit.lease.holder if visit.lease is not None else None
    speakers = [Speaker(one.name, one.kinds, _specs(one), one.id == leads) for one in visit.processes if one.alive]
    async with visit.session() as session:
        return doctor_work.judge_follow_ups(drift(speakers), *await look.failed_follow_ups(session))


def _specs(one: Process) -> set[tuple[str, str, str]]:
    found = one.details.get("follow_ups", ())
    return {(outcome, kind, name) for outcome, kind, name in found} if isinstance(found, list) else set()


async def _outbox(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_work as look

    specs = {name for one in visit.processes if one.alive for _, _, name in _specs(one)}
    async with visit.session() as session:
        return doctor_work.judge_outbox(await look.waiting_outbox(session), specs, visit.patience)


async def _rings(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_server as other
    from awa_actors.store import doctor_storage as look

    async with visit.session() as session:
        holders, rings = await other.holders(session, visit.patience), await look.rings(session)
    return doctor_storage.judge_rings(rings, holders)


async def _history(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_storage as look

    async with visit.session() as session:
        segments = [ring for ring in await look.rings(session) if ring.name == "segments"]
        return doctor_storage.judge_history(segments[0], *await look.sizes(session))


async def _copy(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_storage as look

    async with visit.session() as session:
        return doctor_storage.judge_copy(await look.copy(session))


async def _storage(visit: Visit) -> Verdict:
    from awa_actors.store import doctor_storage as look

    async with visit.session() as session:
        return doctor_storage.judge_storage(await look.plane(session))


CHECKS: dict[str, Callable[[Visit], Awaitable[Verdict]]] = {
    "server": _server,
    "schema": _schema,
    "privileges": _privileges,
    "pooler": _pooler,
    "notify": _notify,
    "clock": _clock,
    "connections": _connections,
    "locks": _locks,
    "horizon": _horizon,
    "leader": _leader,
    "lanes": _lanes,
    "schedules": _schedules,
    "workers": _workers,
    "listeners": _listeners,
    "queues": _queues,
    "kinds": _kinds,
    "poison": _poison,
    "follow-ups": _follow_ups,
    "outbox": _outbox,
    "rings": _rings,
    "history": _history,
    "copy": _copy,
    "storage": _storage,
}
"""In the order in which they are shown; the schema comes before what needs it."""
WITHOUT_SCHEMA = {"server", "schema", "privileges", "pooler", "notify", "clock", "connections", "locks", "horizon"}
