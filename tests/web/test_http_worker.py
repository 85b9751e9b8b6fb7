"""The HTTP worker against a server that is really there: what it sends, and what each answer means."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import attrs
import httpx2
import psycopg
import pytest
from at_work import becomes, until, working
from callback_servers import SECRET, served

import awa_actors as awa
from awa_actors.errors import AlreadyRegistered, UsageError, ValidationError
from awa_actors.jobs import JobState
from awa_actors.web.http_worker import HttpWorker, retry_after
from awa_actors.web.signing import verify_id, verify_request

KEY = bytes.fromhex(SECRET)
BASE = "http://127.0.0.1:1"


@attrs.frozen
class Resize:
    kind: ClassVar[str] = "resize"
    image: str


@attrs.define
class Function:
    """A function behind a URL: keeps what it is sent, and answers what the test wants."""

    url: str = ""
    requests: list[tuple[dict[str, str], bytes]] = attrs.field(factory=list)
    answers: list[tuple[int, dict[str, str], bytes]] = attrs.field(factory=list)
    before: Callable[[dict[str, Any]], None] = lambda body: None

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answer the next request so; the last answer stands for all that come after it."""
        self.answers.append((status, {name.replace("_", "-"): text for name, text in headers.items()}, body))


@contextmanager
def function() -> Iterator[Function]:
    made = Function()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.requests.append(({name.lower(): text for name, text in self.headers.items()}, body))
            made.before(json.loads(body))
            status, headers, reply = made.answers.pop(0) if len(made.answers) > 1 else made.answers[0]
            self.send_response(status)
            for name, text in {"Content-Length": str(len(reply)), **headers}.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        made.url = f"http://127.0.0.1:{server.server_address[1]}/run"
        try:
            yield made
        finally:
            server.shutdown()
            thread.join()


def registry_for(url: str, **options: Any) -> awa.Registry:
    registry = awa.Registry()
    registry.http_worker("resize", url, **options)
    return registry


async def test_an_async_job_is_posted_parked_and_completed_by_its_callback(database: str) -> None:
    with function() as made, served("hypercorn on Trio", database) as base:
        made.answer(202)
        origin = base.removesuffix("/api/callbacks")
        registry = registry_for(made.url, callback_base=origin, secret=SECRET, headers={"Authorization": "Bearer x"})
        async with working(database, registry) as (client, _):
            job = await client.insert(Resize("a.png"))
            await becomes(client, job.id, JobState.WAITING_EXTERNAL)
            headers, raw = made.requests[0]
            body = json.loads(raw)
            callback_id = body["callback_id"]
            assert body == {
                "job_id": job.id, "kind": "resize", "args": {"image": "a.png"}, "attempt": 1, "max_attempts": 25,
                "callback_id": callback_id, "callback_url": f"{base}/{callback_id}/complete",
            }  # fmt: skip
            assert headers["authorization"] == "Bearer x"
            assert verify_id([KEY], callback_id, headers["x-awa-signature"])
            signature = headers["x-awa-request-signature"]
            assert verify_request([KEY], "run", callback_id, raw, signature, time.time())
            # The function answers with the signature that it was given.
            async with httpx2.AsyncClient() as http:
                back = {"X-Awa-Signature": headers["x-awa-signature"]}
                reply = await http.post(body["callback_url"], json={"payload": {"width": 7}}, headers=back)
            assert reply.status_code == 200
            assert (await client.admin.job(job.id)).result == {"width": 7}


async def test_a_callback_that_comes_before_the_response_completes_the_job(database: str) -> None:
    with function() as made:

        def call_back(body: dict[str, Any]) -> None:
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute("SELECT awa.complete_external(%s, '1')", [body["callback_id"]])

        made.before = call_back
        made.answer(202)
        async with working(database, registry_for(made.url, callback_base=BASE)) as (client, worker):
            job = await client.insert(Resize("a.png"))
            assert (await becomes(client, job.id, JobState.COMPLETED)).result == 1

            async def is_idle() -> bool:
                return worker.running == 0

            await until(is_idle)
            assert (await client.admin.job(job.id)).state is JobState.COMPLETED


async def test_the_response_of_a_sync_job_is_its_answer(database: str) -> None:
    with function() as made:
        made.answer(200, b"done")
        async with working(database, registry_for(made.url, mode="sync", secret=SECRET)) as (client, _):
            job = await client.insert(Resize("a.png"))
            await becomes(client, job.id, JobState.COMPLETED)
        headers, raw = made.requests[0]
        assert set(json.loads(raw)) == {"job_id", "kind", "args", "attempt", "max_attempts"}
        assert "x-awa-signature" not in headers
        assert verify_request([KEY], "run", str(job.id), raw, headers["x-awa-request-signature"], time.time())


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_what_is_refused_for_the_moment_is_tried_again(database: str, status: int, mode: str) -> None:
    with function() as made:
        made.answer(status, b"busy\x00", Retry_After="60")
        async with working(database, registry_for(made.url, mode=mode, callback_base=BASE)) as (client, _):
            job = await client.insert(Resize("a.png"))
            row = await becomes(client, job.id, JobState.RETRYABLE)
            assert row.errors[-1]["error"] == f"the function answered {status}: busy\ufffd"
            assert 55 < (row.run_at - row.created_at).total_seconds() < 70


@pytest.mark.parametrize("status", [300, 301, 302, 307, 400, 401, 403, 404, 410, 422])
async def test_every_other_refusal_is_final(database: str, status: int) -> None:
    with function() as made:
        made.answer(status, b"no", Location=f"{BASE}/elsewhere")
        async with working(database, registry_for(made.url, mode="sync")) as (client, _):
            job = await client.insert(Resize("a.png"))
            row = await becomes(client, job.id, JobState.FAILED)
            assert f"the function answered {status}: no" in row.errors[-1]["error"]
        assert len(made.requests) == 1


async def test_a_function_that_is_not_there_or_too_slow_is_tried_again(database: str) -> None:
    slow = threading.Event()
    with function() as made:

        def wait(body: dict[str, Any]) -> None:
            slow.wait(10)

        made.before = wait
        made.answer(200)
        for url, bound, said in ((BASE, 30.0, "the request failed"), (made.url, 0.2, "did not answer within 0.2 s")):
            async with working(database, registry_for(url, mode="sync", request_timeout=bound)) as (client, _):
                job = await client.insert(Resize("a.png"))
                row = await becomes(client, job.id, JobState.RETRYABLE)
                assert said in row.errors[-1]["error"]
        slow.set()


async def test_a_function_that_is_killed_and_started_again_gets_its_job_twice(database: str) -> None:
    with function() as made:
        made.answer(200)
        url = made.url
    registry = registry_for(url, mode="sync")
    async with working(database, registry) as (client, _):
        job = await client.insert(Resize("a.png"))
        await becomes(client, job.id, JobState.RETRYABLE)
        with function() as again:
            again.answer(200)
            registry.workers["resize"].handler.url = again.url  # type: ignore[attr-defined]
            await client.admin.retry(job.id)
            await becomes(client, job.id, JobState.COMPLETED)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "9" * 50}, 86_400.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:00 GMT"}, 60.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:00 GMT", "Date": "Thu, 01 Jan 1970 00:00:50 GMT"}, 10.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:01:00 GMT", "Date": "Thu, 01 Jan 1970 00:02:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-1"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, 0.0) == seconds


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("ftp://example.com", {"mode": "sync"}, "http or https"),
        ("https://", {"mode": "sync"}, "host"),
        ("https://user:pw@example.com", {"mode": "sync"}, "password"),
        ("https://example.com", {}, "callback_base"),
        ("https://example.com", {"mode": "fast"}, "async"),
        ("https://example.com", {"mode": "sync", "secret": "short"}, "64 hex"),
    ],
)
def test_what_could_never_work_is_refused_at_registration(url: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refusal:
        registry_for(url, **options)
    assert "pw" not in str(refusal.value)
    with pytest.raises(ValidationError):
        HttpWorker("https://example.com", mode="sync", request_timeout=0)


def test_a_kind_has_one_handler() -> None:
    registry = registry_for("https://example.com", mode="sync")
    with pytest.raises(AlreadyRegistered):
        registry.http_worker("resize", "https://example.com", mode="sync")


def test_certificates_are_verified_and_redirects_are_not_followed() -> None:
    worker = HttpWorker("https://example.com", mode="sync")
    assert worker.verify is True
    assert worker._opened().follow_redirects is False
