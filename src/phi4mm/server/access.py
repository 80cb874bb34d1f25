"""What every request passes on its way in: size, key, a log line.  Plain ASGI, bodies untouched."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
import uuid
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from phi4mm.server.error import ApiError, status_and_body
from phi4mm.server.metrics import Metrics

_log = logging.getLogger("phi4mm.access")

# Open without a key: whoever watches over the server may not have one, and the page asks for it.
_OPEN_PATHS = ("/health", "/")
# How much of a body that is too long is read before the connection is closed.
_DRAIN_FACTOR = 4
# Of a body that is to be logged; pictures and clips are long and tell nothing.
_LOGGED_BYTES = 4096


class AccessLog:
    """Gives each request an id, and writes one line without any of its contents."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Iterable[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, is_gone = time.monotonic(), 499, False
        request_id = Headers(scope=scope).get("x-request-id", "")[:64] or uuid.uuid4().hex
        if not (request_id.isascii() and request_id.isprintable()):
            request_id = uuid.uuid4().hex

        async def noting_receive() -> Message:
            nonlocal is_gone
            message = await receive()
            is_gone = is_gone or message["type"] == "http.disconnect"
            return message

        async def noting_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, noting_receive, noting_send)
        finally:
            if is_gone:
                status = 499
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.count_request(path, status)
            _log.info(
                "%s %s %d",
                scope["method"],
                path,
                status,
                extra={"request_id": request_id, "seconds": round(time.monotonic() - began, 3)},
            )


class ContentsLog:
    """Writes a line with what was asked and one with what was answered, where that is wanted."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked, answered = _Beginning(), _Beginning()

        async def noting_receive() -> Message:
            message = await receive()
            asked.add(message.get("body", b""))
            return message

        async def noting_send(message: Message) -> None:
            answered.add(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, noting_receive, noting_send)
        finally:
            for word, contents in (("asked", asked), ("answered", answered)):
                if contents.n_bytes:
                    _log.info("%s %s: %s", scope["path"], word, contents)


class _Beginning:
    """What is logged of a body: its first bytes, as one printable line."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self._kept = b""

    def add(self, data: bytes) -> None:
        self.n_bytes += len(data)
        self._kept += data[: _LOGGED_BYTES - len(self._kept)]

    def __str__(self) -> str:
        text = self._kept.decode(errors="backslashreplace")
        left = self.n_bytes - len(self._kept)
        line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        return f"{line} ... {left} bytes more" if left else line


class KeyCheck:
    """Lets in who has one of the keys."""

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS or self._may_pass(scope):
            await self._app(scope, receive, send)
            return
        message = "no valid API key: send it as 'Authorization: Bearer KEY'"
        status, body = status_and_body(ApiError(401, message, code="invalid_api_key"))
        headers = {"WWW-Authenticate": "Bearer"}
        await JSONResponse(body, status, headers)(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        digest = _digest(key.strip())
        # every key is compared, so that the time tells nothing of which one is near
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return scheme.lower() == "bearer" and any(matches)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


async def _drain(receive: Receive, n_bytes: int) -> None:
    """Read a body that is refused: many clients look for an answer only once they have sent it."""
    is_more = True
    while is_more and n_bytes > 0:
        message = await receive()
        n_bytes -= len(message.get("body", b""))
        is_more = message.get("more_body", False)


class BodyLimit:
    """Refuses bodies that are too long, before they are read or while they come."""

    def __init__(self, app: ASGIApp, n_bytes: int) -> None:
        self._app = app
        self._n_bytes = n_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; reading beyond the limit raises ``ApiError``."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        declared = int(length) if length.isdigit() else 0
        n_read = 0

        async def counting_receive() -> Message:
            nonlocal n_read
            message = await receive()
            n_read += len(message.get("body", b""))
            if max(n_read, declared) > self._n_bytes:
                raise self._too_long()
            return message

        if declared > self._n_bytes:
            status, body = status_and_body(self._too_long())
            await _drain(receive, _DRAIN_FACTOR * self._n_bytes)
            await JSONResponse(body, status, {"Connection": "close"})(scope, receive, send)
            return
        await self._app(scope, counting_receive, send)

    def _too_long(self) -> ApiError:
        return ApiError(
            413,
            f"the body is longer than the limit of {self._n_bytes} bytes (--max-body)",
            code="request_too_large",
        )
