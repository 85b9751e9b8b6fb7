"""Signatures: the vector of the older one, and what the other one covers."""

from __future__ import annotations

import pytest

from awa_actors.errors import UsageError
from awa_actors.web import signing

SECRET = bytes([7]) * 32
OTHER = bytes([8]) * 32
BODY = b'{"payload": 1}'


def test_the_signature_of_an_id_is_the_known_one() -> None:
    signature = "b1495225f01fa8cd09e410d288d09b68c1cc9fb2414686c0d3ac13fc905497d9"
    assert signing.sign_id(SECRET, "abc") == signing.sign_id(SECRET.hex(), "abc") == signature
    assert signing.verify_id([OTHER, SECRET], "abc", signature)


@pytest.mark.parametrize("wrong", ["", "b14952", "B1495225" + "0" * 56, "\N{SNOWMAN}" * 64, "0" * 64])
def test_a_wrong_signature_of_an_id_is_refused(wrong: str) -> None:
    assert not signing.verify_id([SECRET], "abc", wrong)
    assert not signing.verify_id([], "abc", wrong)


def test_the_signature_of_a_request_is_stable() -> None:
    signature = signing.sign_request(SECRET, "complete", "abc", BODY, 1_700_000_000.9)
    assert signature == "t=1700000000,s=" + signature[-64:]
    assert signing.verify_request([SECRET], "complete", "abc", BODY, signature, 1_700_000_000)


@pytest.mark.parametrize(
    ("secret", "action", "callback_id", "body", "later"),
    [
        (OTHER, "complete", "abc", BODY, 0),
        (SECRET, "fail", "abc", BODY, 0),
        (SECRET, "complete", "abd", BODY, 0),
        (SECRET, "complete", "abc", BODY + b" ", 0),
        (SECRET, "complete", "abc", BODY, 301),
        (SECRET, "complete", "abc", BODY, -301),
    ],
    ids=["secret", "action", "id", "body", "too old", "from the future"],
)
def test_the_signature_of_a_request_covers_everything(
    secret: bytes, action: str, callback_id: str, body: bytes, later: int
) -> None:
    signature = signing.sign_request(SECRET, "complete", "abc", BODY, 1_000)
    assert not signing.verify_request([secret], action, callback_id, body, signature, 1_000 + later)


@pytest.mark.parametrize(
    "wrong", ["", "t=1", "t=1,s=xyz", "s=" + "0" * 64, "t=-1,s=" + "0" * 64, "t=1e3,s=" + "0" * 64]
)
def test_a_malformed_signature_of_a_request_is_refused(wrong: str) -> None:
    assert signing.request_time(wrong) is None
    assert not signing.verify_request([SECRET], "complete", "abc", BODY, wrong, 1)


def test_a_signature_of_an_id_is_none_of_a_request() -> None:
    signature = f"t=1000,s={signing.sign_id(SECRET, 'abc')}"
    assert not signing.verify_request([SECRET], "complete", "abc", b"", signature, 1_000)


@pytest.mark.parametrize("wrong", ["", "ab", "zz" * 32, "00" * 31, b"short", b"x" * 33])
def test_a_secret_of_another_length_is_refused_and_not_repeated(wrong: str | bytes) -> None:
    with pytest.raises(UsageError) as refusal:
        signing.read_secret(wrong)
    assert not wrong or str(wrong) not in str(refusal.value)


@pytest.mark.parametrize("prefix", ["api/callbacks", "/api/callbacks", "/api/callbacks/", "//api/callbacks//"])
def test_a_prefix_has_one_form(prefix: str) -> None:
    assert signing.normal_prefix(prefix) == "/api/callbacks"
    url = signing.callback_url("https://a.example/", "id", prefix=prefix)
    assert url == "https://a.example/api/callbacks/id/complete"
    assert signing.callback_url("https://a.example", "id", "fail", "/") == "https://a.example/id/fail"
