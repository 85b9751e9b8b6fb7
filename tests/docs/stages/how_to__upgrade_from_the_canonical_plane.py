"""An empty installation on the canonical plane, whose worker is there as soon as the move is prepared."""

from typing import Any

FILES = {
    "shop.py": """
import attrs
import awa_actors as awa


@attrs.frozen
class Greet:
    name: str


registry = awa.Registry()


@registry.worker(Greet)
async def greet(job: awa.Job[Greet]) -> None: ...
"""
}
# The worker that the page starts ends with its command, and no process may be there before that.
WORKER = """
CREATE FUNCTION public.start_worker() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO awa.instances (id, role, hostname, pid, version, stale_after, details)
    VALUES (gen_random_uuid(), 'worker', 'shop', 1, '0', interval '1 hour', '{"storage": "queue_storage"}');
    RETURN NULL;
END $$
"""
TRIGGER = """
CREATE TRIGGER start_worker AFTER UPDATE ON awa.storage_transition_state FOR EACH ROW WHEN (NEW.state = 'prepared')
EXECUTE FUNCTION public.start_worker()
"""


async def begin(client: Any) -> None:
    await client.migrate(storage="canonical")
    async with client.transaction() as tx:
        await tx.execute(WORKER)
        await tx.execute(TRIGGER)
    assert (await client.admin.storage.status()).state == "canonical"


async def end(client: Any) -> None:
    now = await client.admin.storage.status()
    assert (now.state, now.schema, now.canonical_live_backlog) == ("active", "shop_jobs", 0)
