"""The HTTP worker: a kind whose jobs are requests to a URL, such as a function in a cloud.

``async`` mode registers a callback, posts, and parks the job until the function answers; ``sync`` mode takes the
response itself for the answer. A request may be sent more than once, as any attempt may run more than once.
"""

from __future__ import annotations

import contextlib
import email.utils
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs
import httpx2
import orjson
import trio

from awa_actors.core.text import storable
from awa_actors.core.validation import positive_seconds
from awa_actors.errors import AwaError, TerminalError, UsageError
from awa_actors.jobs import RetryAfter, Verdict, WaitForCallback
from awa_actors.running_job import Job
from awa_actors.web import signing

AGAIN = frozenset({408, 425, 429})
"""Refusals of the moment: the same request may be taken later."""
LONGEST_WAIT = 86_400.0
"""Seconds of Retry-After that are honoured: a server that says more gets asked once a day."""
ERROR_BYTES = 2048
"""Of a response's body that is kept as the reason of a failure."""
USER_AGENT = "awa-actors-http-worker/1"


class HttpWorkerError(AwaError):
    """The request failed for now; the attempt is retried."""


def _mode(instance: object, attribute: Any, value: str) -> None:
    if value not in ("async", "sync"):
        raise UsageError(f"mode is 'async' or 'sync', not {value!r}")


def _url(instance: object, attribute: Any, value: str) -> None:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{attribute.name} must be an http or https URL with a host")
    if parts.username or parts.password:
        raise UsageError(f"{attribute.name} must not carry a password: put it into headers")


def _seconds(instance: object, attribute: Any, value: float) -> None:
    positive_seconds(value, path=f"$.{attribute.name}")


@attrs.define(eq=False)
class HttpWorker:
    """A handler that posts its job. Made by :meth:`awa_actors.Registry.http_worker`.

    Args:
        url: where to.
        mode: ``async``: the function answers through the callback; ``sync``: the response is the answer.
        callback_base: scheme and host of the callback ingress, for ``async``.
        callback_prefix: path prefix of the ingress.
        callback_timeout: seconds until the wait ends by itself.
        request_timeout: seconds that one request may take.
        headers: sent with every request, for instance an authorization.
        secret: signs every request: ``X-Awa-Request-Signature`` over action ``run``, the callback's id (sync: the
            job's) and the body; with a callback also ``X-Awa-Signature``, which the function may send back as it is.
        max_connections: at once, in this process.
        verify: TLS certificates are verified; an ``ssl.SSLContext`` says against what.
    """

    url: str = attrs.field(validator=_url)
    mode: str = attrs.field(default="async", validator=_mode, kw_only=True)
    callback_base: str | None = attrs.field(default=None, validator=attrs.validators.optional(_url), kw_only=True)
    callback_prefix: str = attrs.field(default=signing.PREFIX, kw_only=True)
    callback_timeout: float = attrs.field(default=3600.0, validator=_seconds, kw_only=True)
    request_timeout: float = attrs.field(default=30.0, validator=_seconds, kw_only=True)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False, kw_only=True)
    secret: bytes | None = attrs.field(
        default=None, converter=attrs.converters.optional(signing.read_secret), repr=False, kw_only=True
    )
    max_connections: int = attrs.field(default=100, kw_only=True)
    verify: bool | ssl.SSLContext = attrs.field(default=True, kw_only=True)
    _client: httpx2.AsyncClient | None = attrs.field(default=None, init=False, repr=False)
    _busy: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Refuse what could never be answered."""
        if self.mode == "async" and self.callback_base is None:
            raise UsageError("an async HTTP worker needs callback_base: where the function sends its answer")

    async def __call__(self, job: Job[Any]) -> Verdict:
        """Run one attempt.

        Raises:
            HttpWorkerError: to be retried.
            TerminalError: never to be retried.
        """
        body: dict[str, Any] = {
            "job_id": job.id,
            "kind": job.kind,
            "args": job.args,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
        }
        if self.mode == "sync":
            return await self._post(orjson.dumps(body), str(job.id), {})
        assert self.callback_base is not None
        token = await job.register_callback(expires_in=self.callback_timeout)
        callback_id = token.callback_id
        url = signing.callback_url(self.callback_base, callback_id, prefix=self.callback_prefix)
        signed = {} if self.secret is None else {signing.ID_HEADER: signing.sign_id(self.secret, callback_id)}
        body |= {"callback_id": callback_id, "callback_url": url}
        verdict = await self._post(orjson.dumps(body), callback_id, signed)
        return WaitForCallback(token) if verdict is None else verdict

    async def _post(self, body: bytes, subject: str, more: dict[str, str]) -> RetryAfter | None:
        headers = {"Content-Type": "application/json", "User-Agent": USER_AGENT, **self.headers, **more}
        if self.secret is not None:
            signature = signing.sign_request(self.secret, "run", subject, body, time.time())
            headers[signing.REQUEST_HEADER] = signature
        self._busy += 1
        try:
            # The client's own timeouts are those of single reads: a function that dribbles would never meet one.
            with trio.fail_after(self.request_timeout):
                async with self._opened().stream("POST", self.url, content=body, headers=headers) as response:
                    return await _judged(response)
        except trio.TooSlowError:
            raise HttpWorkerError(f"the function did not answer within {self.request_timeout:g} s") from None
        except httpx2.HTTPError as error:
            raise HttpWorkerError(f"the request failed: {type(error).__name__}: {storable(error, 500)}") from error
        finally:
            self._busy -= 1

    def _opened(self) -> httpx2.AsyncClient:
        if self._client is None:
            self._client = httpx2.AsyncClient(
                verify=self.verify,
                timeout=self.request_timeout,
                follow_redirects=False,
                limits=httpx2.Limits(max_connections=self.max_connections, max_keepalive_connections=20),
            )
        return self._client

    async def aclose(self) -> None:
        """Close the connections, unless another worker of this process is using them."""
        client = self._client
        if client is not None and not self._busy:
            self._client = None
            await client.aclose()


async def _judged(response: httpx2.Response) -> RetryAfter | None:
    """What a response means: None is success."""
    status = response.status_code
    if 200 <= status < 300:
        return None
    reason = f"the function answered {status}: {await _beginning(response)}".rstrip(": ")
    if status in AGAIN or status >= 500:
        delay = retry_after(response.headers, time.time())
        if delay is not None:
            return RetryAfter(delay, reason)
        raise HttpWorkerError(reason)
    raise TerminalError(reason)


async def _beginning(response: httpx2.Response) -> str:
    kept = b""
    async for chunk in response.aiter_bytes():
        kept += chunk
        if len(kept) >= ERROR_BYTES:
            break
    return storable(kept[:ERROR_BYTES].decode("utf-8", "replace")).strip()


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Read Retry-After, seconds or a date, as seconds from now; None when there is none or it cannot be read.

    Args:
        headers: of the response; its own Date is the clock that a date is read by.
        now: seconds since 1970, where it has none.
    """
    given = headers.get("Retry-After", "").strip()
    if given.isascii() and given.isdigit():
        return min(float(given[:10]), LONGEST_WAIT)
    try:
        at = email.utils.parsedate_to_datetime(given).timestamp()
    except (ValueError, OverflowError):
        return None
    with contextlib.suppress(ValueError, OverflowError):
        now = email.utils.parsedate_to_datetime(headers.get("Date", "")).timestamp()
    return min(max(at - now, 0.0), LONGEST_WAIT)
