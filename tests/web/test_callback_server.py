"""The callback server as a role: it listens, answers, drains, and keeps maintenance company without depending on it."""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx2
import psycopg
import pytest
import trio
from callback_jobs import found, registered
from callback_servers import SECRET

import awa_actors as awa
from awa_actors.errors import UsageError
from awa_actors.web.callback_server import SECRET as VARIABLE
from awa_actors.web.callback_server import CallbackServer, run_callback_server
from awa_actors.web.signing import sign_request

LIMIT = 10.0


@attrs.frozen
class Options:
    host: str = "127.0.0.1"
    port: int = 0
    path_prefix: str = ""
    allow_unsigned: bool = False
    with_maintenance: bool = False
    grace: float = 5.0
    stale_after: float = 30.0
    rescue_interval: float | None = 0.02


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"{'08' * 32}, {SECRET}")


@asynccontextmanager
async def serving(client: awa.Client, **options: Any) -> AsyncIterator[CallbackServer]:
    async with trio.open_nursery() as nursery:
        server: CallbackServer = await nursery.start(run_callback_server, client, Options(**options))
        yield server
        with trio.fail_after(LIMIT):
            await server.drain()


async def complete(base: str, callback_id: str, prefix: str = "/api/callbacks") -> httpx2.Response:
    signature = sign_request(SECRET, "complete", callback_id, b"{}", time.time())
    async with httpx2.AsyncClient(timeout=LIMIT) as http:
        return await http.post(
            f"{base}{prefix}/{callback_id}/complete", content=b"{}", headers={"X-Awa-Request-Signature": signature}
        )


async def test_a_server_answers_until_it_is_drained(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        job = registered(connection, "parked")
        async with awa.open_client(database) as client:
            async with serving(client) as server:
                url = server.urls[0]
                assert (await complete(url, job.callback_id)).status_code == 200
            with pytest.raises(httpx2.ConnectError):
                await complete(url, job.callback_id)
        assert found(connection, job.job_id)["state"] == "completed"


async def test_another_prefix_is_served_instead(database: str) -> None:
    async with awa.open_client(database) as client, serving(client, path_prefix="hooks/") as server:
        nobody = "00000000-0000-4000-8000-000000000000"
        reply = await complete(server.urls[0], nobody, "/hooks")
        assert (reply.status_code, reply.json()["error"]) == (404, "there is no open callback of this id")
        assert (await complete(server.urls[0], nobody)).json()["error"] == "there is nothing here"


async def test_the_server_answers_whoever_leads_and_maintenance_goes_on_beside_it(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        first, second = registered(connection, "parked"), registered(connection, "parked")
        expired = registered(connection, "parked", seconds=0.001)
        async with awa.open_client(database) as client, trio.open_nursery() as nursery:
            other: awa.Maintenance = await nursery.start(client.run_maintenance)
            with trio.fail_after(LIMIT):
                await other.wait_leader()
            async with serving(client, with_maintenance=True) as server:
                assert server.maintenance is not None
                assert not server.maintenance.is_leader
                assert (await complete(server.urls[0], first.callback_id)).status_code == 200
                other.resign()
                with trio.fail_after(LIMIT):
                    await server.maintenance.wait_leader()
                assert (await complete(server.urls[0], second.callback_id)).status_code == 200
                with trio.fail_after(LIMIT):
                    while found(connection, expired.job_id)["state"] != "retryable":  # noqa: ASYNC110 - the database tells
                        await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


async def test_an_address_that_is_taken_is_one_line(database: str) -> None:
    async with awa.open_client(database) as client:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            run = functools.partial(run_callback_server, client, Options(port=taken.getsockname()[1]))
            with pytest.RaisesGroup(UsageError, match=None, flatten_subgroups=True) as refusal:
                await run()
    assert "cannot listen on 127.0.0.1" in str(refusal.value.exceptions)


async def test_without_a_secret_nothing_is_served(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    async with awa.open_client(database) as client:
        with pytest.raises(UsageError, match="secret"):
            await run_callback_server(client, Options())
        async with serving(client, allow_unsigned=True):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("maintenance", [False, True])
def test_the_role_runs_on_the_command_line(database: str, maintenance: bool) -> None:
    arguments = ["--role", "callbacks", "--port", "0", "--database-url", database, "--grace", "5"]
    process = subprocess.Popen(
        [sys.executable, "-m", "awa_actors", *arguments, *(["--with-maintenance"] if maintenance else [])],
        env={**os.environ, VARIABLE: SECRET},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        url = ""
        for line in process.stderr:
            if at := re.search(r"POST (http://\S+?)/api/callbacks", line):
                url = at[1]
                break
        with psycopg.connect(database, autocommit=True) as connection:
            job = registered(connection, "parked")
            assert trio.run(complete, url, job.callback_id).status_code == 200
            assert found(connection, job.job_id)["state"] == "completed"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 0
    finally:
        process.kill()
        process.communicate()
