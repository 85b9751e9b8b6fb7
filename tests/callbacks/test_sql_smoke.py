import awa_actors as awa
from at_work import ask

async def test_migrates(database: str) -> None:
    async with awa.open_client(database) as client:
        assert await ask(client, "SELECT awa.complete_external(gen_random_uuid())") is None
        assert await ask(client, "SELECT count(*) from awa_queue.rescue_callbacks(10,5)") == 0
