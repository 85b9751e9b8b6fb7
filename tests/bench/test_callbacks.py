"""How many signed callbacks one ingress process takes, how long each waits, and what a flood of forged ones costs."""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections.abc import Iterator

import attrs
import psycopg
import pytest
import trio
from callback_jobs import INSTANCE
from callback_servers import SECRET, served
from postgres_servers import Server

from awa_actors.web.signing import sign_id

CALLBACKS = int(os.environ.get("AWA_BENCH_CALLBACKS", "2000"))
CONNECTIONS = 32
FLOOD_CONNECTIONS = 32

PARKED = """
DO $$
BEGIN
    PERFORM awa.insert_jobs(ARRAY(SELECT '{}' FROM generate_series(1, %d)), ARRAY['plain'], ARRAY['bench'],
                            ARRAY[2]::smallint[], ARRAY[25]::smallint[]);
    PERFORM awa_queue.take('bench', %d, 100000000, '%s', 0, NULL, NULL);
    PERFORM awa_queue.register_callback(l.job_id, l.run_lease, l.instance, 3600, NULL) FROM awa_queue.leases l
    WHERE l.state = 'running';
    PERFORM awa_queue.park('%s', (SELECT jsonb_agg(jsonb_build_object('job_id', c.job_id, 'run_lease', c.run_lease,
        'callback_id', c.callback_id)) FROM awa_queue.callbacks c));
END $$
"""


def parked(url: str, count: int) -> list[str]:
    """Make that many parked jobs at once; gives the ids of their callbacks."""
    instance = uuid.uuid4()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(INSTANCE, (instance, "1 hour"))
        connection.execute((PARKED % (count, count, instance, instance)).encode())
        return [str(row[0]) for row in connection.execute("SELECT callback_id FROM awa_queue.callbacks").fetchall()]


def request(callback_id: str, signature: str) -> bytes:
    body = b'{"payload": {"status": "paid"}}'
    lines = [
        f"POST /api/callbacks/{callback_id}/complete HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"X-Awa-Signature: {signature}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@attrs.define
class Load:
    """What was sent, and how it was answered; seconds."""

    latencies: list[float] = attrs.field(factory=list)
    statuses: dict[bytes, int] = attrs.field(factory=dict)

    async def send(self, port: int, requests: Iterator[bytes]) -> None:
        """Send one request after the other on one connection."""
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            for one in requests:
                began = time.perf_counter()
                await stream.send_all(one)
                reply = await stream.receive_some(65_536)
                while b"\r\n\r\n" not in reply or not reply.endswith(b"}"):
                    reply += await stream.receive_some(65_536)
                self.latencies.append(time.perf_counter() - began)
                status = reply[9:12]
                self.statuses[status] = self.statuses.get(status, 0) + 1


async def complete_all(port: int, ids: list[str], flood: Load | None) -> tuple[Load, float]:
    """Complete every callback; with a flood, forged requests are sent beside it as fast as they are answered."""
    good, queue = Load(), iter([request(one, sign_id(SECRET, one)) for one in ids])
    async with trio.open_nursery() as nursery:
        if flood is not None:
            forged = request(str(uuid.uuid4()), "0" * 64)
            for _ in range(FLOOD_CONNECTIONS):
                nursery.start_soon(flood.send, port, iter(lambda: forged, b""))
        began = time.perf_counter()
        async with trio.open_nursery() as senders:
            for _ in range(CONNECTIONS):
                senders.start_soon(good.send, port, queue)
        seconds = time.perf_counter() - began
        nursery.cancel_scope.cancel()
    return good, seconds


def _said(name: str, load: Load, seconds: float) -> str:
    ordered = sorted(load.latencies)
    p99 = ordered[int(len(ordered) * 0.99)] * 1000
    return (
        f"{name}: {len(ordered) / seconds:,.0f}/s, median {statistics.median(ordered) * 1000:.1f} ms, p99 {p99:.1f} ms"
    )


@pytest.mark.parametrize("flavour", ["hypercorn on Trio, a client", "uvicorn"])
def test_signed_completions_alone_and_beside_a_flood(
    session_server: Server, migrated_template: str, flavour: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with session_server.fresh_database(migrated_template) as url:
        ids = parked(url, 2 * CALLBACKS)
        with served(flavour, url) as base:
            port = int(base.removesuffix("/api/callbacks").rpartition(":")[2])
            alone, seconds = trio.run(complete_all, port, ids[:CALLBACKS], None)
            flood = Load()
            beside, longer = trio.run(complete_all, port, ids[CALLBACKS:], flood)
        assert alone.statuses == beside.statuses == {b"200": CALLBACKS}
        assert set(flood.statuses) <= {b"401"}
    with capsys.disabled():
        print(f"\n{flavour}\n  {_said('alone', alone, seconds)}\n  {_said('beside a flood', beside, longer)}")
        print(f"  {_said('the flood', flood, longer)}; good ones keep {seconds / longer:.0%} of their rate")
