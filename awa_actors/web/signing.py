"""Signatures of callbacks: the older one over the id, and one over everything that a request says.

The older signature stays valid for as long as its callback: whoever sees it may complete, fail or extend that callback.
The other covers action, time and body, and is worth nothing a few minutes later.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable

from blake3 import blake3

from awa_actors.errors import UsageError

ID_HEADER = "X-Awa-Signature"
"""Lower-case hex of the keyed BLAKE3 of the callback id."""
REQUEST_HEADER = "X-Awa-Request-Signature"
"""``t=<unix seconds>,s=<hex>``, see :func:`sign_request`."""
KEY_BYTES = 32
REPLAY_WINDOW = 300.0
"""Seconds that a request signature is good for, before and after its own time."""
PREFIX = "/api/callbacks"

_REQUEST = re.compile(r"t=([0-9]{1,15}),s=([0-9a-f]{64})")


def read_secret(secret: str | bytes) -> bytes:
    """Read a secret: 32 bytes, or 64 hex characters.

    Raises:
        UsageError: it is neither. The message does not repeat it.
    """
    if isinstance(secret, str):
        try:
            secret = bytes.fromhex(secret)
        except ValueError:
            raise UsageError("a callback secret is 64 hex characters (or 32 bytes)") from None
    if len(secret) != KEY_BYTES:
        raise UsageError(f"a callback secret has {KEY_BYTES} bytes (64 hex characters), not {len(secret)}")
    return secret


def sign_id(secret: str | bytes, callback_id: str) -> str:
    """Sign a callback id: the value of ``X-Awa-Signature``.

    Source: fact C21.
    """
    return _digest(read_secret(secret), callback_id.encode())


def sign_request(secret: str | bytes, action: str, callback_id: str, body: bytes, timestamp: float) -> str:
    """Sign one request: the value of ``X-Awa-Request-Signature``.

    Args:
        secret: 32 bytes, or their hex.
        action: complete, fail, heartbeat, resume or retry.
        callback_id: as in the URL.
        body: the bytes that are sent.
        timestamp: seconds since 1970, of the sender's clock.
    """
    seconds = int(timestamp)
    return f"t={seconds},s={_digest(read_secret(secret), _message(seconds, action, callback_id, body))}"


def verify_id(secrets: Iterable[bytes], callback_id: str, signature: str) -> bool:
    """Check a signature of an id, in constant time."""
    return _matches(secrets, callback_id.encode(), signature)


def request_time(signature: str) -> float | None:
    """The time that a request signature claims; None when it is malformed."""
    found = _REQUEST.fullmatch(signature)
    return None if found is None else float(found[1])


def verify_request(
    secrets: Iterable[bytes], action: str, callback_id: str, body: bytes, signature: str, now: float
) -> bool:
    """Check a signature of a request, in constant time, and that its time is near `now` (seconds since 1970)."""
    found = _REQUEST.fullmatch(signature)
    if found is None or abs(now - float(found[1])) > REPLAY_WINDOW:
        return False
    return _matches(secrets, _message(int(found[1]), action, callback_id, body), found[2])


def callback_url(base: str, callback_id: str, action: str = "complete", prefix: str = PREFIX) -> str:
    """The URL to which the outside world sends its answer.

    Args:
        base: scheme and host of the ingress, for example ``https://hooks.example.com``.
        callback_id: of the registered callback.
        action: what it asks for.
        prefix: of the ingress.

    Source: facts C18, C25.
    """
    return f"{base.rstrip('/')}{normal_prefix(prefix)}/{callback_id}/{action}"


def normal_prefix(prefix: str) -> str:
    """A path prefix with a leading slash and without a trailing one; empty for the root."""
    stripped = prefix.strip("/")
    return f"/{stripped}" if stripped else ""


def _message(seconds: int, action: str, callback_id: str, body: bytes) -> bytes:
    # None of the fields before the body can hold a colon, so one message says one thing.
    return f"awa-callback:{seconds}:{action}:{callback_id}:".encode() + body


def _digest(key: bytes, message: bytes) -> str:
    return blake3(message, key=key).hexdigest()


def _matches(secrets: Iterable[bytes], message: bytes, signature: str) -> bool:
    given = signature.encode("utf-8", "replace")
    matched = False
    for key in secrets:  # all of them, whichever it is
        matched |= hmac.compare_digest(_digest(key, message).encode(), given)
    return matched
