"""A durable server for benchmarks: the settings the peers are measured with, on a disk, unlike the tests' server."""

import tempfile
from collections.abc import Iterator

import pytest
import trio
from bench_meters import Meters, Table

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
    parser.addoption("--large", type=int, default=500, help="jobs with 100 KiB of args, per system and measurement")
    parser.addoption("--repeats", type=int, default=3, help="measurements per figure")
    parser.addoption("--seconds", type=float, default=10.0, help="length of a measurement at a steady rate")
    parser.addoption("--pinned", type=float, default=30.0, help="seconds for which the horizon is pinned; 600 is meant")
    parser.addoption("--stored", type=int, default=200_000, help="jobs beside a drain; 1000000 is meant")
    parser.addoption("--memory", type=int, default=20_000, help="jobs before memory is read; a tenth of all")


@pytest.fixture(scope="session")
def table() -> Iterator[Table]:
    """Where every benchmark puts its row."""
    table = Table()
    yield table
    if table.rows:
        print(f"\n\n{table.markdown()}\n")


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
