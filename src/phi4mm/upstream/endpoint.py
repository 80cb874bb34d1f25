"""Talks to the endpoint: one request, whole or as a stream of events."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2

from phi4mm.server.error import ApiError
from phi4mm.upstream.settings import UpstreamSettings

Json = dict[str, Any]

_CHAT: Final = "/v1/chat/completions"
_CONNECT_S: Final = 10.0
_HEALTH_S: Final = 5.0
# What the endpoint says of its own settings is no fault of the client's.
_OURS: Final = (401, 403, 404, 405)

_log = logging.getLogger(__name__)


class Endpoint:
    """The endpoint behind the translator."""

    def __init__(self, settings: UpstreamSettings) -> None:
        key = settings.upstream_key
        self._client = httpx2.AsyncClient(
            base_url=settings.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(settings.request_s, connect=_CONNECT_S),
            limits=httpx2.Limits(max_connections=None),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def is_healthy(self) -> bool:
        """Whether it answers."""
        try:
            answer = await self._client.get("/health", timeout=_HEALTH_S)
        except httpx2.HTTPError:
            return False
        return answer.status_code == 200

    async def chat(self, body: Json) -> Json:
        """A whole answer.

        Raises:
            ApiError: it refuses, or cannot be reached.
        """
        async with self._open(body) as answer:
            content: Json = json.loads(await answer.aread())
            return content

    @asynccontextmanager
    async def chat_stream(self, body: Json) -> AsyncIterator[AsyncIterator[Json]]:
        """The pieces of an answer as they come; leaving the context ends the answer.

        Raises:
            ApiError: it refuses, or cannot be reached.
        """
        async with self._open(body) as answer:
            yield _events(answer)

    @asynccontextmanager
    async def _open(self, body: Json) -> AsyncIterator[httpx2.Response]:
        try:
            async with self._client.stream("POST", _CHAT, json=body) as answer:
                if answer.status_code != 200:
                    raise _refusal(answer.status_code, await answer.aread())
                yield answer
        except httpx2.HTTPError as error:
            _log.error("the endpoint %s failed: %r", self._client.base_url, error)
            message = "the engine behind this server does not answer: try again later"
            raise ApiError(502, message, code="upstream_unavailable") from None


async def _events(answer: httpx2.Response) -> AsyncIterator[Json]:
    async for line in answer.aiter_lines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        event: Json = json.loads(data)
        if "choices" not in event:  # an error after the beginning
            raise _refusal(500, data.encode())
        yield event


def _refusal(status: int, content: bytes) -> ApiError:
    """The endpoint's own error, as this API words it."""
    try:
        body = json.loads(content)
    except ValueError:
        body = {}
    error = body.get("error") if isinstance(body, dict) else None
    found = error if isinstance(error, dict) else body if isinstance(body, dict) else {}
    message = str(found.get("message") or f"the engine behind this server answers {status}")
    code, param = found.get("code"), found.get("param")
    if status in _OURS:
        return ApiError(502, f"the engine behind this server: {message}", code="upstream_refused")
    return ApiError(
        status,
        message,
        code=code if isinstance(code, str) else None,
        param=param if isinstance(param, str) else None,
    )
