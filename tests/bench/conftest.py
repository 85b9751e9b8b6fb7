"""A durable server for benchmarks: the settings the peers are measured with, on a disk, unlike the tests' server."""

import tempfile
from collections.abc import Iterator

import pytest
import trio
from bench_meters import Meters

import awa_actors as awa

SETTINGS = {
    "shared_buffers": "512MB",
    "max_connections": "200",
    "max_wal_size": "4GB",
    "min_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "work_mem": "16MB",
    "jit": "off",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`nox -s bench -- --peers` runs the other systems too, from the folder that PEERBENCH names."""
    parser.addoption("--peers", action="store_true", help="run the peer benchmark as well")
    parser.addoption("--jobs", type=int, default=20_000, help="jobs per measurement")
    parser.addoption("--repeats", type=int, default=3, help="measurements per figure")


@pytest.fixture(scope="session")
def durable_server() -> Iterator[tuple[str, int]]:
    """URL and postmaster's pid of a server of the benchmark's own."""
    with tempfile.TemporaryDirectory(prefix="awa-bench-") as folder:
        server = awa.PrivatePostgres(f"{folder}/data", settings=SETTINGS).start()
        try:
            yield server.url, server.pid
        finally:
            server.stop()


@pytest.fixture
def meters(durable_server: tuple[str, int]) -> Iterator[Meters]:
    """Meters on an empty, migrated database."""
    url, pid = durable_server
    meters = Meters(url, pid)
    meters._connection.execute("DROP SCHEMA IF EXISTS awa CASCADE")
    meters._connection.execute("DROP SCHEMA IF EXISTS awa_queue CASCADE")
    trio.run(_migrate, url)
    meters._connection.execute("CHECKPOINT")
    yield meters
    meters.close()


async def _migrate(url: str) -> None:
    async with awa.open_client(url) as client:
        await client.migrate()
