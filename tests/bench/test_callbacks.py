"""How many signed callbacks one ingress process takes while a worker runs, how long each waits, what it all costs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import psycopg
import pytest
from bench_meters import Meters, Table, client_cpu, process_cpu, server_cpu
from bench_worker import worker_process
from callback_jobs import INSTANCE
from callback_load import Load, at_rate, closed_loop, request, signed
from callback_servers import SECRET, serving

CALLBACKS = int(os.environ.get("AWA_BENCH_CALLBACKS", "4000"))
CONNECTIONS = 32
FLOOD_CONNECTIONS = 32
PACE = 0.6
"""Of the rate of the closed loop, for the steady one."""

PARKED = """
DO $$
BEGIN
    PERFORM awa.insert_jobs(ARRAY(SELECT '{}' FROM generate_series(1, %d)), ARRAY['plain'], ARRAY['outside'],
                            ARRAY[2]::smallint[], ARRAY[25]::smallint[]);
    PERFORM awa_queue.take('outside', %d, 100000000, '%s', 0, NULL, NULL);
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


@contextmanager
def role(url: str) -> Iterator[tuple[str, int]]:
    """The callback server of the command line, its log in a file."""
    command = [sys.executable, "-m", "awa_actors", "--role", "callbacks", "--port", "0", "--database-url", url]
    with tempfile.NamedTemporaryFile("w+") as log:
        process = subprocess.Popen(command, env={**os.environ, "AWA_CALLBACK_HMAC_SECRET": SECRET}, stderr=log)
        try:
            found = None
            while found is None:
                assert process.poll() is None, log.read()
                time.sleep(0.05)
                log.seek(0)
                found = re.search(r"POST (http://\S+?/api/callbacks)", log.read())
            yield found[1], process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()


SERVERS: dict[str, Callable[[str], object]] = {"--role callbacks": role, "uvicorn": lambda url: serving("uvicorn", url)}


@attrs.frozen
class Costs:
    """CPU of everybody who takes part, in seconds so far."""

    ingress: float
    server: float
    worker: float
    client: float

    def each(self, before: Costs, count: int) -> str:
        """What one of so many took since."""
        spent = {name: (value - getattr(before, name)) / count * 1e6 for name, value in attrs.asdict(self).items()}
        return "CPU each, µs: " + ", ".join(f"{name} {value:,.0f}" for name, value in spent.items())


@pytest.mark.parametrize("server", list(SERVERS))
def test_signed_completions_while_a_worker_runs(
    meters: Meters, durable_server: tuple[str, int], table: Table, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, postmaster = durable_server
    good = signed(SECRET, parked(url, 4 * CALLBACKS))
    warm, alone, paced, beside = (good[n * CALLBACKS : (n + 1) * CALLBACKS] for n in range(4))
    with SERVERS[server](url) as (base, pid), worker_process(url) as worker:  # type: ignore[attr-defined]
        port = int(base.removesuffix("/api/callbacks").rpartition(":")[2])

        def measured(load: Callable[[], Load]) -> tuple[Load, str]:
            def costs() -> Costs:
                return Costs(process_cpu(pid), server_cpu(postmaster), worker.cpu, client_cpu())

            before = costs()
            done = load()
            assert done.statuses == {b"200": CALLBACKS}
            return done, costs().each(before, CALLBACKS)

        closed_loop(port, warm, CONNECTIONS)
        closed = measured(lambda: closed_loop(port, alone, CONNECTIONS))
        steady = measured(lambda: at_rate(port, paced, 4 * CONNECTIONS, PACE * closed[0].rate))
        flood, over = list[Load](), threading.Event()
        forged = iter(lambda: request(str(uuid.uuid4()), "0" * 64), b"")
        flooding = threading.Thread(
            target=lambda: flood.append(closed_loop(port, forged, FLOOD_CONNECTIONS, over)), daemon=True
        )
        flooding.start()
        flooded = measured(lambda: closed_loop(port, beside, CONNECTIONS))
        over.set()
        flooding.join()
        assert set(flood[0].statuses) <= {b"401"}
    rows = {
        f"signed callbacks, {server}, {CONNECTIONS} connections": closed,
        f"the same at {PACE:.0%} of that rate": steady,
        f"the same beside a flood of {flood[0].rate:,.0f}/s": flooded,
    }
    with capsys.disabled():
        print()
        for name, (load, cost) in rows.items():
            print(f"  {name}: {load}\n    {cost}")
            table.row(name, f"{load}; {cost}")
        print(f"  good ones keep {flooded[0].rate / closed[0].rate:.0%} of their rate beside the flood")
