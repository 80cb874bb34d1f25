"""The translator's application: chat, the model's name, and health."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive

from phi4mm.errors import Cancelled
from phi4mm.server import wire
from phi4mm.server.access import AccessLog, BodyLimit, KeyCheck
from phi4mm.server.app import ERRORS
from phi4mm.server.error import ApiError, respond, status_and_body
from phi4mm.server.metrics import Metrics
from phi4mm.upstream.answer import AnswerTranslator
from phi4mm.upstream.endpoint import Endpoint
from phi4mm.upstream.question import upstream_request
from phi4mm.upstream.settings import UpstreamSettings

_ALIASES = ("vision", "speech")
_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


async def health(request: Request) -> Response:
    """Whether the endpoint answers."""
    is_healthy = await request.app.state.endpoint.is_healthy()
    status = "ok" if is_healthy else "upstream unavailable"
    return JSONResponse({"status": status}, 200 if is_healthy else 503)


async def models(request: Request) -> Response:
    """The model, and the names it answers to."""
    settings: UpstreamSettings = request.app.state.settings
    model = {
        "id": settings.served_name,
        "object": "model",
        "created": 0,
        "owned_by": "phi4mm",
        "aliases": list(_ALIASES),
    }
    return JSONResponse({"object": "list", "data": [model]})


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    settings: UpstreamSettings = request.app.state.settings
    endpoint: Endpoint = request.app.state.endpoint
    content = await request.body()
    body = wire.ChatRequest.model_validate_json(content)
    _require_model(body.model, settings)
    translated = upstream_request(json.loads(content), body, settings)
    translator = AnswerTranslator(body, settings.served_name)
    if not body.stream:
        answer = await _unless_gone(request.receive, endpoint.chat(translated))
        return JSONResponse(translator.completion(answer))
    async with AsyncExitStack() as stack:
        chunks = await stack.enter_async_context(endpoint.chat_stream(translated))
        events = _events(translator, chunks, stack.pop_all())
    return StreamingResponse(
        events,
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


def _require_model(name: str | None, settings: UpstreamSettings) -> None:
    if name is not None and name not in (settings.served_name, *_ALIASES):
        message = f"the model {name!r} does not exist: use {settings.served_name!r}"
        raise ApiError(404, message, code="model_not_found", param="model")


async def _unless_gone(receive: Receive, work: Awaitable[_Result]) -> _Result:
    """Wait for work, and stop it when the client goes away.

    Raises:
        Cancelled: the client has gone.
    """
    answer = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise Cancelled("the client has gone")
    finally:
        gone.cancel()
        answer.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _events(
    translator: AnswerTranslator, chunks: AsyncIterator[dict[str, Any]], stack: AsyncExitStack
) -> AsyncIterator[str]:
    """The answer as server-sent events; the connection to the endpoint is closed in any case."""
    async with stack:
        try:
            async for chunk in chunks:
                for piece in translator.chunk(chunk):
                    yield _event(json.dumps(piece, ensure_ascii=False, separators=(",", ":")))
                if translator.is_over:
                    break
        except Exception as error:
            status, body = status_and_body(error)
            if status == 500:
                _log.exception("a stream ended with an error")
            yield _event(json.dumps(body))
            return
    yield _event("[DONE]")


def _event(data: str) -> str:
    return f"data: {data}\n\n"


ROUTES = (
    Route("/health", health),
    Route("/v1/models", models),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
)


def make_app(settings: UpstreamSettings) -> Starlette:
    """The ASGI application of a translator."""
    paths = [route.path for route in ROUTES]
    middleware = [Middleware(AccessLog, metrics=Metrics(), paths=paths)]
    if settings.cors_origins:
        origins = list(settings.cors_origins)
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=origins, allow_headers=["*"],
                       allow_methods=["GET", "POST"])
        )  # fmt: skip
    if settings.api_keys:
        middleware.append(Middleware(KeyCheck, keys=settings.api_keys))
    middleware.append(Middleware(BodyLimit, n_bytes=settings.body_bytes))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.endpoint = Endpoint(settings)
        try:
            yield
        finally:
            await app.state.endpoint.close()

    app = Starlette(
        routes=list(ROUTES),
        middleware=middleware,
        exception_handlers=dict.fromkeys(ERRORS, respond),
        lifespan=lifespan,
    )
    app.state.settings = settings
    return app
