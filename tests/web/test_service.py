"""What a callback request means and what is answered, without a server or a database."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import attrs
import psycopg
import pytest

from awa_actors.errors import (
    CallbackNotFound,
    FollowUpError,
    StoreError,
    TransientStoreError,
    UsageError,
    ValidationError,
)
from awa_actors.store.resolve import Resolution, Resolved
from awa_actors.web import signing
from awa_actors.web.service import CallbackRequest, CallbackService, Refused, request_id

SECRET, OTHER = "07" * 32, "08" * 32
CALLBACK = str(uuid.UUID(int=7))
NOW = 1_700_000_000.0


def service(**options: Any) -> CallbackService:
    return CallbackService(options.pop("secret", SECRET), clock=lambda: NOW, **options)


def request(
    action: str = "complete", body: bytes = b"", callback_id: str = CALLBACK, **headers: str
) -> CallbackRequest:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return CallbackRequest(
        action, callback_id, given or {"x-awa-signature": signing.sign_id(SECRET, callback_id)}, body
    )


def signed(action: str, body: bytes, secret: str = SECRET, at: float = NOW) -> CallbackRequest:
    signature = signing.sign_request(secret, action, CALLBACK, body, at)
    return request(action, body, x_awa_request_signature=signature)


def unreachable(resolution: Resolution) -> Resolved:
    raise AssertionError("the database was asked")


def raising(error: Exception) -> Any:
    def resolve(resolution: Resolution) -> Resolved:
        raise error

    return resolve


@pytest.mark.parametrize(
    ("action", "body", "arguments"),
    [
        ("complete", b"", (CALLBACK, "null")),
        ("complete", b"{}", (CALLBACK, "null")),
        ("complete", b'{"payload": {"a": [1, 2.5, "x"]}, "more": 1}', (CALLBACK, '{"a":[1,2.5,"x"]}')),
        ("complete", b'{"payload": 9007199254740993}', (CALLBACK, "9007199254740993")),
        ("complete", b'{"payload": "a\\u0000b\\ud800"}', (CALLBACK, '"a\ufffdb\ufffd"')),
        ("resume", b'{"payload": 1}', (CALLBACK, "1")),
        ("fail", b'{"error": "no"}', (CALLBACK, "no")),
        ("heartbeat", b"", (CALLBACK, 3600.0)),
        ("heartbeat", b'{"timeout_seconds": 0.5}', (CALLBACK, 0.5)),
        ("resolve", b'{"payload": 1, "default_action": "fail"}', (CALLBACK,)),
        ("retry", b"", (CALLBACK,)),
    ],
)
def test_a_signed_request_is_understood(action: str, body: bytes, arguments: tuple[Any, ...]) -> None:
    for asked in (signed(action, body), request(action, body)):
        assert service().admit(asked).arguments == arguments


@pytest.mark.parametrize(
    ("action", "body"),
    [
        ("complete", b"{"),
        ("complete", b"[]"),
        ("complete", b"null"),
        ("complete", b"\xff\xfe"),
        ("complete", b'{"payload": NaN}'),
        ("complete", b'{"payload": 1e999}'),
        ("complete", b'{"payload": 99999999999999999999999}'),
        ("complete", b'{"payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        ("fail", b""),
        ("fail", b'{"error": 7}'),
        ("heartbeat", b'{"timeout_seconds": -1}'),
        ("resolve", b'{"default_action": "guess"}'),
        ("resolve", b'{"default_action": ["fail"]}'),
        ("heartbeat", b'{"timeout_seconds": "60"}'),
        ("heartbeat", b'{"timeout_seconds": true}'),
        ("heartbeat", b'{"timeout_seconds": Infinity}'),
    ],
)
def test_a_body_that_cannot_be_meant_is_refused(action: str, body: bytes) -> None:
    assert service().respond(signed(action, body), unreachable).status == 400


@pytest.mark.parametrize("wrong", ["", "x", "7", CALLBACK[:-1], "x" * 5_000])
def test_an_id_that_is_none_is_refused_before_anything_else(wrong: str) -> None:
    assert service().respond(request(callback_id=wrong, x_awa_signature="0" * 64), unreachable).status == 400


@pytest.mark.parametrize(
    "asked",
    [
        request(x_nothing="1"),
        request(x_awa_signature=signing.sign_id(OTHER, CALLBACK)),
        request(x_awa_signature=signing.sign_id(SECRET, str(uuid.UUID(int=8)))),
        request(x_awa_signature=""),
        signed("complete", b"", OTHER),
        signed("complete", b"", at=NOW - 301),
        signed("complete", b"", at=NOW + 301),
        attrs.evolve(signed("complete", b""), action="fail", body=b'{"error": "no"}'),
        attrs.evolve(signed("complete", b"{}"), body=b'{"payload": 1}'),
        request(x_awa_request_signature="nonsense", x_awa_signature=signing.sign_id(SECRET, CALLBACK)),
    ],
    ids=["none", "secret", "id", "empty", "secret 2", "old", "future", "action", "body", "malformed beside a good one"],
)
def test_a_wrong_signature_is_refused_before_the_database_is_asked(asked: CallbackRequest) -> None:
    assert service().respond(asked, unreachable).status == 401


def test_either_secret_is_good_while_they_are_rotated() -> None:
    both = service(secret=[OTHER, SECRET])
    for asked in (signed("retry", b""), signed("retry", b"", OTHER), request("retry")):
        both.admit(asked)


def test_the_older_signature_can_be_turned_off() -> None:
    strict = service(id_signatures=False)
    assert strict.respond(request(), unreachable).status == 401
    strict.admit(signed("complete", b""))


def test_unsigned_requests_must_be_asked_for() -> None:
    with pytest.raises(UsageError, match="allow_unsigned"):
        CallbackService(None)
    CallbackService(None, allow_unsigned=True).admit(request(x_nothing="1"))
    lenient = service(allow_unsigned=True)
    lenient.admit(request(x_nothing="1"))
    assert lenient.respond(request(x_awa_signature="0" * 64), unreachable).status == 401


def test_a_body_over_the_limit_is_refused() -> None:
    small = service(body_limit=10)
    assert small.respond(signed("complete", b'{"payload": 1}'), unreachable).status == 413


@pytest.mark.parametrize(
    ("error", "status", "after"),
    [
        (CallbackNotFound("gone"), 404, None),
        (TransientStoreError("read-only (SQLSTATE 25006); try again"), 503, "1"),
        (FollowUpError("broken"), 503, "5"),
        (ValidationError("cannot store"), 400, None),
        (StoreError("secret detail"), 500, None),
        (UsageError("the client is closed"), 500, None),
        (RuntimeError("secret detail"), 500, None),
        (ConnectionResetError("secret detail"), 503, "1"),
        (psycopg.OperationalError("secret detail"), 503, "1"),
        (psycopg.errors.ReadOnlySqlTransaction("secret detail"), 503, "1"),
        (psycopg.errors.UndefinedTable("secret detail"), 500, None),
    ],
)
def test_every_failure_has_an_answer_that_gives_nothing_away(
    error: Exception, status: int, after: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    asked = attrs.evolve(signed("complete", b""), request_id="r-1")
    with caplog.at_level(logging.INFO):
        reply = service().respond(asked, raising(error))
    assert (reply.status, reply.headers.get("Retry-After"), reply.headers["X-Request-Id"]) == (status, after, "r-1")
    assert "secret" not in reply.body["error"]
    assert all(getattr(record, "request_id", None) == "r-1" for record in caplog.records)
    assert f"complete: {status}" in caplog.records[-1].getMessage()


def test_a_request_keeps_its_own_id_when_it_has_a_usable_one() -> None:
    assert request_id({"x-request-id": "abc-1"}) == "abc-1"
    for unusable in ("", "a b", "x" * 200, "a\nb", "\N{SNOWMAN}"):
        assert len(request_id({"x-request-id": unusable})) == 32
    assert len(request_id({})) == 32


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"/api/callbacks/{CALLBACK}/complete", 405),
        ("OPTIONS", f"/api/callbacks/{CALLBACK}/complete", 405),
        ("POST", f"/api/callbacks/{CALLBACK}/explode", 404),
        ("POST", f"/api/callbacks/{CALLBACK}/complete/", 404),
        ("POST", f"/api/callbacks/{CALLBACK}", 404),
        ("POST", "/api/callbacks//complete", 404),
        ("POST", f"/elsewhere/{CALLBACK}/complete", 404),
        ("GET", "/", 404),
    ],
)
def test_only_the_routes_of_callbacks_exist(method: str, path: str, status: int) -> None:
    with pytest.raises(Refused) as refusal:
        service().route(method, path)
    assert refusal.value.reply.status == status


@pytest.mark.parametrize("prefix", ["api/callbacks", "/api/callbacks/", "/", "", "hooks"])
def test_the_prefix_is_where_the_routes_are(prefix: str) -> None:
    path = f"{signing.normal_prefix(prefix)}/{CALLBACK}/fail"
    assert service(prefix=prefix).route("POST", path) == ("fail", CALLBACK)
