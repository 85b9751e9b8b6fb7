"""What a callback request means and what is answered, for any framework: verify, parse, resolve, reply.

The service knows neither sockets nor databases. An application that has its own server gives it the parts of a request
and a function that resolves (a bridge's, on the connection of its own transaction), and sends what it replies.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs
import orjson

from awa_actors.bridge.statements import translated
from awa_actors.core.callbacks import check_callback_id
from awa_actors.errors import (
    AwaError,
    CallbackNotFound,
    FollowUpError,
    TransientStoreError,
    UsageError,
    ValidationError,
)
from awa_actors.store import resolve as resolutions
from awa_actors.store.decided import outcome_of
from awa_actors.store.resolve import Resolution, Resolved
from awa_actors.store.resolve_together import Done
from awa_actors.web import signing

ACTIONS = frozenset({"complete", "fail", "heartbeat", "resolve", "resume", "retry"})
DEFAULT_ACTIONS = ("complete", "fail", "ignore")
BODY_LIMIT = 1_048_576
HEARTBEAT_SECONDS = 3600.0
SOON, LATER = "1", "5"
"""Seconds in Retry-After: for a moment that was bad, and for something that somebody has to look at."""

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

logger = logging.getLogger("awa_actors.callbacks")


@attrs.frozen
class Reply:
    """What to send back: a status, a JSON body, and headers beside the usual ones."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = attrs.field(factory=dict)

    def encode(self) -> bytes:
        """The bytes of the body."""
        return orjson.dumps(self.body)


@attrs.define
class Refused(Exception):
    """A request that is answered without asking the database."""

    reply: Reply


def refused(status: int, error: str, **headers: str) -> Refused:
    """A refusal with its reason; header names are written with underscores."""
    return Refused(Reply(status, {"error": error}, {name.replace("_", "-"): text for name, text in headers.items()}))


@attrs.frozen
class CallbackRequest:
    """One request, as far as it matters.

    Args:
        action: the last part of its path.
        callback_id: the part before.
        headers: by lower-case name.
        body: all of it.
        request_id: for the log and the reply.
    """

    action: str
    callback_id: str
    headers: Mapping[str, str]
    body: bytes = b""
    request_id: str = attrs.field(factory=lambda: uuid.uuid4().hex)


def request_id(headers: Mapping[str, str]) -> str:
    """The request's own id when it has a usable one, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _secrets(secret: str | bytes | Sequence[str | bytes] | None) -> tuple[bytes, ...]:
    if secret is None:
        return ()
    given = [secret] if isinstance(secret, str | bytes) else list(secret)
    return tuple(signing.read_secret(one) for one in given)


@attrs.frozen
class CallbackService:
    """Verifies, parses and answers callbacks.

    Args:
        secret: 32 bytes or 64 hex characters; several while they are rotated, any of which is good.
        allow_unsigned: take requests without a signature, for networks that are trusted otherwise.
        id_signatures: take the older signature, which covers nothing but the id.
        prefix: of the paths, for :meth:`route`.
        body_limit: most bytes of a body.
        clock: seconds since 1970.

    Raises:
        UsageError: no secret, and unsigned requests are not allowed either.
    """

    secret: tuple[bytes, ...] = attrs.field(converter=_secrets, repr=False)
    allow_unsigned: bool = attrs.field(default=False, kw_only=True)
    id_signatures: bool = attrs.field(default=True, kw_only=True)
    prefix: str = attrs.field(default=signing.PREFIX, converter=signing.normal_prefix, kw_only=True)
    body_limit: int = attrs.field(default=BODY_LIMIT, kw_only=True)
    clock: Callable[[], float] = attrs.field(default=time.time, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Refuse to stand open by accident."""
        if not self.secret and not self.allow_unsigned:
            raise UsageError("callbacks need a secret (64 hex characters), or allow_unsigned to take them from anybody")

    def route(self, method: str, path: str) -> tuple[str, str]:
        """Find action and callback id in a path.

        Raises:
            Refused: 404 for what is not ours, 405 for another method than POST.
        """
        start = self.prefix + "/"
        callback_id, slash, action = path[len(start) :].partition("/") if path.startswith(start) else ("", "", "")
        if not (callback_id and slash and action in ACTIONS):
            raise refused(404, "there is nothing here")
        if method != "POST":
            raise refused(405, "only POST", allow="POST")
        return action, callback_id

    def check_head(self, action: str, callback_id: str, headers: Mapping[str, str]) -> str:
        """Refuse what can be refused before a body is read; returns the id in its usual form.

        Raises:
            Refused: 400 for what is no id, 401 for a signature that is missing, wrong or too old.
        """
        if action not in ACTIONS:
            raise refused(404, "there is nothing here")
        try:
            checked = check_callback_id(callback_id)
        except ValidationError:
            raise refused(400, "the callback id is not a UUID") from None
        signature = headers.get(signing.REQUEST_HEADER.lower()) if self.secret else None
        if signature is not None:
            claimed = signing.request_time(signature)
            if claimed is None or abs(self.clock() - claimed) > signing.REPLAY_WINDOW:
                raise refused(401, "the signature is malformed or too old")
        else:
            self._check_id_signature(checked, headers.get(signing.ID_HEADER.lower()))
        return checked

    def _check_id_signature(self, callback_id: str, signature: str | None) -> None:
        if self.allow_unsigned and (signature is None or not self.secret):
            return
        if signature is None:
            raise refused(401, "a signature is required")
        if not (self.id_signatures and signing.verify_id(self.secret, callback_id, signature)):
            raise refused(401, "the signature is wrong")

    def admit(self, request: CallbackRequest, checked: str | None = None) -> Resolution:
        """Verify and parse a request. Nothing is asked of any database before this has returned.

        Args:
            request: what came.
            checked: what :meth:`check_head` has returned for it already.

        Raises:
            Refused: 400, 401 or 413.
        """
        if len(request.body) > self.body_limit:
            raise refused(413, f"a body has at most {self.body_limit} bytes", connection="close")
        callback_id = checked or self.check_head(request.action, request.callback_id, request.headers)
        signature = request.headers.get(signing.REQUEST_HEADER.lower()) if self.secret else None
        if signature is not None and not signing.verify_request(
            self.secret, request.action, callback_id, request.body, signature, self.clock()
        ):
            raise refused(401, "the signature is wrong")
        try:
            return self._parse(request.action, callback_id, _object(request.body))
        except ValidationError as error:
            raise refused(400, str(error)) from None

    def _parse(self, action: str, callback_id: str, body: dict[str, Any]) -> Resolution:
        match action:
            case "complete":
                return resolutions.complete(callback_id, body.get("payload"), limit=self.body_limit)
            case "resume":
                return resolutions.resume(callback_id, body.get("payload"), limit=self.body_limit)
            case "resolve":
                default = body.get("default_action", "ignore")
                if default not in DEFAULT_ACTIONS:
                    raise ValidationError("must be complete, fail or ignore", "$.default_action")
                return resolutions.by_expressions(callback_id, body.get("payload"), default, limit=self.body_limit)
            case "fail":
                if not isinstance(body.get("error"), str):
                    raise ValidationError("must be text: why the job failed", "$.error")
                return resolutions.fail(callback_id, body["error"])
            case "heartbeat":
                return resolutions.heartbeat(callback_id, body.get("timeout_seconds", HEARTBEAT_SECONDS))
        return resolutions.retry(callback_id)

    def respond(self, request: CallbackRequest, resolve: Callable[[Resolution], Done | Resolved]) -> Reply:
        """Answer a request, whatever happens.

        Args:
            request: what came.
            resolve: runs a resolution in a transaction; it is not called for requests that are refused.
        """
        began = time.perf_counter()
        try:
            reply = _done(resolve(self.admit(request)))
        except Exception as error:  # every failure has an answer
            reply = _failed(error, request)
        return _logged(request, reply, began)

    async def respond_async(
        self,
        request: CallbackRequest,
        resolve: Callable[[Resolution], Awaitable[Done | Resolved]],
        checked: str | None = None,
    ) -> Reply:
        """As :meth:`respond`, with a function that is awaited; `checked` as in :meth:`admit`."""
        began = time.perf_counter()
        try:
            reply = _done(await resolve(self.admit(request, checked)))
        except Exception as error:  # every failure has an answer
            reply = _failed(error, request)
        return _logged(request, reply, began)


def _object(body: bytes) -> dict[str, Any]:
    """Read a JSON object; an empty body is an empty one. Integers keep their digits, so this is not orjson."""
    if not body:
        return {}
    try:
        value = _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        raise refused(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise refused(400, "the body is a JSON object")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _done(resolved: Done | Resolved) -> Reply:
    if isinstance(resolved, Done):
        return Reply(200, {"id": resolved.job_id, "state": "completed"})
    body: dict[str, Any] = {"id": resolved.job.id, "state": resolved.job.state.value}
    if resolved.decision is not None:
        told = outcome_of(resolved)
        body |= {"outcome": told.outcome} | ({} if told.reason is None else {"reason": told.reason})
    return Reply(200, body)


_CONNECTION_ERRORS = frozenset({"InterfaceError", "InternalClientError", "OperationalError"})
"""What PEP 249 calls the errors of a connection, and asyncpg those of one that was cut in the middle of a call."""


def _ours(error: Exception) -> Exception:
    """An error of our tree for what a resolve function of somebody's own let through from its driver."""
    if isinstance(error, AwaError | Refused):
        return error
    lost = isinstance(error, OSError) or any(cls.__name__ in _CONNECTION_ERRORS for cls in type(error).__mro__)
    made = translated(error, lost=lost)
    return made if isinstance(made, TransientStoreError) else error


def _failed(raised: Exception, request: CallbackRequest) -> Reply:
    error = _ours(raised)
    match error:
        case Refused():
            return error.reply
        case CallbackNotFound():
            return Reply(404, {"error": "there is no open callback of this id"})
        case ValidationError():
            return Reply(400, {"error": str(error)})
        case TransientStoreError():
            logger.warning("callback %s: %s", request.callback_id, error, extra={"request_id": request.request_id})
            return Reply(503, {"error": "not possible now; try again"}, {"Retry-After": SOON})
        case FollowUpError():
            logger.error("callback %s: %s", request.callback_id, error, extra={"request_id": request.request_id})
            return Reply(503, {"error": "not possible now, the callback is open; try again"}, {"Retry-After": LATER})
        case AwaError():
            logger.error("callback %s: %s", request.callback_id, error, extra={"request_id": request.request_id})
        case _:
            logger.exception("callback %s", request.callback_id, extra={"request_id": request.request_id})
    return Reply(500, {"error": "internal error"})


def _logged(request: CallbackRequest, reply: Reply, began: float) -> Reply:
    if reply.status != 401:  # a flood of wrong signatures is counted, not listed
        logger.info(
            "callback %.36s %s: %d in %.1f ms, request %s",
            request.callback_id, request.action, reply.status, (time.perf_counter() - began) * 1000, request.request_id,
            extra={"request_id": request.request_id},
        )  # fmt: skip
    return attrs.evolve(reply, headers={**reply.headers, "X-Request-Id": request.request_id})
