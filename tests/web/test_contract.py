"""The contract of the ingress, kept by every server that it runs in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import attrs
import httpx2
import psycopg
import pytest
from callback_jobs import CallbackJob, found, look, registered
from callback_servers import BODY_LIMIT, FLAVOURS, SECRET, served
from postgres_servers import Server
from psycopg.types.json import Jsonb

from awa_actors.web.signing import sign_id, sign_request

pytestmark = pytest.mark.slow

Connection = psycopg.Connection[Any]
NOBODY = "00000000-0000-4000-8000-000000000000"
OWN_ROUTES = {"FastAPI", "Flask", "Django"}
"""Servers whose framework answers itself what is no callback at all."""


@pytest.fixture(scope="module")
def shared(session_server: Server, migrated_template: str) -> Iterator[str]:
    with session_server.fresh_database(migrated_template) as url:
        yield url


@pytest.fixture(scope="module")
def database_connection(shared: str) -> Iterator[Connection]:
    with psycopg.connect(shared, autocommit=True) as connection:
        yield connection


@attrs.frozen
class Ingress:
    """A running server, a client for it, and a connection to its database."""

    flavour: str
    client: httpx2.Client
    database: Connection

    def send(self, callback_id: str, action: str, body: bytes = b"", **headers: str) -> httpx2.Response:
        """Send a request, signed as a whole unless headers are given."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if not given:
            given["X-Awa-Request-Signature"] = sign_request(SECRET, action, callback_id, body, time.time())
        return self.client.post(f"/{callback_id}/{action}", content=body, headers=given)

    def job(self, state: str = "parked") -> CallbackJob:
        return registered(self.database, state)


@pytest.fixture(scope="module", params=list(FLAVOURS))
def ingress(request: pytest.FixtureRequest, shared: str, database_connection: Connection) -> Iterator[Ingress]:
    with served(request.param, shared) as url, httpx2.Client(base_url=url, timeout=10.0) as client:
        yield Ingress(request.param, client, database_connection)


def test_a_signed_completion_completes_the_job_and_enqueues_what_follows(ingress: Ingress) -> None:
    job = ingress.job()
    reply = ingress.send(job.callback_id, "complete", b'{"payload": {"ref": "x-1", "n": 9007199254740993}}')
    assert (reply.status_code, reply.json()) == (200, {"id": job.job_id, "state": "completed"})
    row = found(ingress.database, job.job_id)
    assert row["result"] == {"ref": "x-1", "n": 9007199254740993}
    follow_up = ingress.database.execute(
        "SELECT args ->> 'what' FROM awa.jobs WHERE kind = 'next' AND metadata ->> 'awa:follow_up_of' = %s",
        [str(job.job_id)],
    ).fetchall()
    assert follow_up == [("completed {'n': 9007199254740993, 'ref': 'x-1'}",)]


def test_the_older_signature_is_good_too(ingress: Ingress) -> None:
    job = ingress.job()
    reply = ingress.send(job.callback_id, "fail", b'{"error": "no"}', X_Awa_Signature=sign_id(SECRET, job.callback_id))
    assert (reply.status_code, reply.json()) == (200, {"id": job.job_id, "state": "failed"})
    assert found(ingress.database, job.job_id)["errors"][-1]["error"] == "no"


@pytest.mark.parametrize(
    ("action", "body", "state"),
    [
        ("retry", b"", "available"),
        ("resume", b'{"payload": 1}', "available"),
        ("heartbeat", b'{"timeout_seconds": 60}', "waiting_external"),
    ],
)
def test_every_action_has_its_effect(ingress: Ingress, action: str, body: bytes, state: str) -> None:
    job = ingress.job()
    reply = ingress.send(job.callback_id, action, body)
    assert (reply.status_code, reply.json()["state"]) == (200, state)


EXPRESSIONS = {
    "filter": "payload.kind == 'final'",
    "on_fail": "payload.status == 'declined'",
    "on_complete": "payload.status == 'paid'",
    "transform": "{'amount': payload.amount}",
}


def test_the_callbacks_own_expressions_decide(ingress: Ingress) -> None:
    pytest.importorskip("cel")
    job, other = ingress.job(), ingress.job()
    for one in (job, other):
        ingress.database.execute(
            "UPDATE awa_queue.callbacks SET cel = %s WHERE callback_id = %s", [Jsonb(EXPRESSIONS), one.callback_id]
        )
    reply = ingress.send(job.callback_id, "resolve", b'{"payload": {"kind": "draft"}, "default_action": "complete"}')
    assert (reply.status_code, reply.json()) == (
        200,
        {
            "id": job.job_id,
            "state": "waiting_external",
            "outcome": "ignored",
            "reason": "the filter is false for this payload",
        },
    )
    paid = b'{"payload": {"kind": "final", "status": "paid", "amount": 7}}'
    reply = ingress.send(job.callback_id, "resolve", paid)
    assert reply.json() == {"id": job.job_id, "state": "completed", "outcome": "completed"}
    assert found(ingress.database, job.job_id)["result"] == {"amount": 7}
    assert ingress.database.execute(
        "SELECT count(*) FROM awa.jobs WHERE kind = 'next' AND metadata ->> 'awa:follow_up_of' = %s", [str(job.job_id)]
    ).fetchone() == (1,)
    assert ingress.send(job.callback_id, "resolve", paid).status_code == 404
    reply = ingress.send(other.callback_id, "resolve", b'{"payload": {"kind": "final", "status": "declined"}}')
    assert (reply.json()["state"], reply.json()["reason"]) == (
        "failed",
        f"callback matched on_fail: {EXPRESSIONS['on_fail']}",
    )


@pytest.mark.parametrize(
    ("default", "state"), [("complete", "completed"), ("fail", "failed"), (None, "waiting_external")]
)
def test_a_default_decides_where_there_are_no_expressions(ingress: Ingress, default: str | None, state: str) -> None:
    body = b"{}" if default is None else f'{{"default_action": "{default}"}}'.encode()
    reply = ingress.send(ingress.job().callback_id, "resolve", body)
    assert (reply.status_code, reply.json()["state"]) == (200, state)


def test_a_handler_that_waits_inside_is_resumed(ingress: Ingress) -> None:
    job = ingress.job("inside")
    assert ingress.send(job.callback_id, "resume", b'{"payload": "x"}').json()["state"] == "running"
    assert look(ingress.database, job) == "resumed"


def test_a_retry_before_the_job_waits_is_asked_to_come_again(ingress: Ingress) -> None:
    reply = ingress.send(ingress.job("running").callback_id, "retry")
    assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")


def test_who_comes_second_finds_no_callback(ingress: Ingress) -> None:
    job = ingress.job()
    assert ingress.send(job.callback_id, "complete").status_code == 200
    for action, body in (("complete", b""), ("fail", b'{"error": "x"}'), ("heartbeat", b""), ("retry", b"")):
        reply = ingress.send(job.callback_id, action, body)
        assert (reply.status_code, reply.json()) == (404, {"error": "there is no open callback of this id"})
    assert ingress.send(NOBODY, "complete").status_code == 404


def test_a_wrong_signature_changes_nothing(ingress: Ingress) -> None:
    job = ingress.job()
    for headers in (
        {"X-Nothing": "1"},
        {"X_Awa_Signature": sign_id("08" * 32, job.callback_id)},
        {"X_Awa_Request_Signature": sign_request(SECRET, "fail", job.callback_id, b"", time.time())},
        {"X_Awa_Request_Signature": sign_request(SECRET, "complete", job.callback_id, b"", time.time() - 400)},
    ):
        reply = ingress.send(job.callback_id, "complete", b"", **headers)
        assert reply.status_code == 401
        assert set(reply.json()) == {"error"}
    assert found(ingress.database, job.job_id)["state"] == "waiting_external"


def test_what_cannot_be_meant_is_refused(ingress: Ingress) -> None:
    job = ingress.job()
    assert ingress.send("nonsense", "complete").status_code == 400
    assert ingress.send(job.callback_id, "complete", b"{").status_code == 400
    assert ingress.send(job.callback_id, "fail", b"{}").status_code == 400
    assert ingress.send(job.callback_id, "heartbeat", b'{"timeout_seconds": -1}').status_code == 400
    large = b'{"payload": "' + b"x" * BODY_LIMIT + b'"}'
    assert ingress.send(job.callback_id, "complete", large).status_code == 413
    assert found(ingress.database, job.job_id)["state"] == "waiting_external"


def test_text_that_postgres_cannot_hold_still_ends_the_job(ingress: Ingress) -> None:
    job = ingress.job()
    assert ingress.send(job.callback_id, "complete", b'{"payload": "a\\u0000b\\ud800"}').status_code == 200
    assert found(ingress.database, job.job_id)["result"] == "a\ufffdb\ufffd"


def test_nothing_else_is_served(ingress: Ingress) -> None:
    job = ingress.job()
    path = f"/{job.callback_id}/complete"
    assert ingress.client.get(path).status_code == 405
    preflight = ingress.client.options(
        path, headers={"Origin": "https://evil", "Access-Control-Request-Method": "POST"}
    )
    assert not any(name.lower().startswith("access-control") for name in preflight.headers)
    assert ingress.send(job.callback_id, "explode").status_code == 404
    if ingress.flavour not in OWN_ROUTES:
        assert preflight.status_code == 405
        for path in (
            "/",
            "/healthz",
            "/api/jobs",
            "/api/callbacks",
            "/docs" if "mounted" not in ingress.flavour else "/x",
        ):
            assert (
                ingress.client.get(f"{ingress.client.base_url}".removesuffix("/api/callbacks/") + path).status_code
                == 404
            )


def test_a_request_id_comes_back(ingress: Ingress) -> None:
    given = {"X-Awa-Signature": sign_id(SECRET, NOBODY), "X-Request-Id": "r-77"}
    reply = ingress.client.post(f"/{NOBODY}/complete", headers=given)
    assert (reply.status_code, reply.headers["X-Request-Id"]) == (404, "r-77")
    assert reply.headers["Content-Type"].startswith("application/json")
    assert len(ingress.send(NOBODY, "complete").headers["X-Request-Id"]) == 32


def test_a_follow_up_that_fails_leaves_the_callback_open(ingress: Ingress) -> None:
    job = ingress.job()
    reply = ingress.send(job.callback_id, "complete", b'{"payload": "break the follow-up"}')
    assert (reply.status_code, reply.headers["Retry-After"]) == (503, "5")
    assert ingress.send(job.callback_id, "complete", b'{"payload": "fine"}').status_code == 200


def test_a_read_only_database_is_told_from_a_lost_callback(ingress: Ingress) -> None:
    job = ingress.job()
    name = ingress.database.info.dbname
    others = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()"""
    ingress.database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    ingress.database.execute(others)
    try:
        replies = [ingress.send(job.callback_id, "complete") for _ in range(3)]
        assert {reply.status_code for reply in replies} == {503}
        assert replies[-1].headers["Retry-After"] == "1"
    finally:
        ingress.database.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())
        ingress.database.execute(others)
    deadline = time.monotonic() + 10
    while (reply := ingress.send(job.callback_id, "complete")).status_code != 200:
        assert reply.status_code == 503, reply.text
        assert time.monotonic() < deadline
