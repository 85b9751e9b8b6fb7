"""Nothing but what the page makes, which goes again: roles are the whole server's."""

from typing import Any


async def begin(client: Any) -> None:
    async with client.transaction() as tx:
        await tx.execute("DROP ROLE IF EXISTS app_web, app_worker")


async def end(client: Any) -> None:
    async with client.transaction() as tx:
        assert await tx.fetchval("SELECT has_table_privilege('app_web', 'awa_queue.bodies', 'INSERT')")
        assert not await tx.fetchval("SELECT has_table_privilege('app_web', 'awa_queue.bodies', 'SELECT')")
        assert await tx.fetchval("SELECT has_table_privilege('app_worker', 'awa.leadership', 'INSERT')")
        await tx.execute("DROP OWNED BY app_web, app_worker")
        await tx.execute("DROP ROLE app_web, app_worker")
