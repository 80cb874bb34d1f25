"""The application: routes, what stands before them, and the life of the engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from phi4mm.errors import Phi4MMError
from phi4mm.server import inspection
from phi4mm.server.access import AccessLog, BodyLimit, ContentsLog, KeyCheck
from phi4mm.server.chat import chat_completions
from phi4mm.server.completion import completions
from phi4mm.server.error import ApiError, respond
from phi4mm.server.openapi import openapi
from phi4mm.server.page import page
from phi4mm.server.service import Service
from phi4mm.server.transcription import transcriptions, translations

ROUTES = (
    Route("/", page),
    Route("/health", inspection.health),
    Route("/v1/models", inspection.models),
    Route("/v1/models/{name:path}", inspection.model),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/audio/transcriptions", transcriptions, methods=["POST"]),
    Route("/v1/audio/translations", translations, methods=["POST"]),
    Route("/tokenize", inspection.tokenize, methods=["POST"]),
    Route("/detokenize", inspection.detokenize, methods=["POST"]),
    Route("/apply-template", inspection.apply_template, methods=["POST"]),
    Route("/props", inspection.props),
    Route("/slots", inspection.slots),
    Route("/metrics", inspection.metrics),
    Route("/openapi.json", openapi),
)
ERRORS = (
    ApiError, Phi4MMError, ValidationError, HTTPException, ClientDisconnect, Exception
)  # fmt: skip


def make_app(service: Service) -> Starlette:
    """The ASGI application of a service, whose engine starts and stops with it."""
    settings = service.settings
    middleware = [
        Middleware(AccessLog, metrics=service.metrics, paths=[route.path for route in ROUTES]),
    ]
    if settings.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "POST"],
                allow_headers=["*"],
            )
        )
    if settings.api_keys:
        middleware.append(Middleware(KeyCheck, keys=settings.api_keys))
    if settings.log_contents:
        middleware.append(Middleware(ContentsLog))
    middleware.append(Middleware(BodyLimit, n_bytes=settings.limits.body_bytes))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.engine.start()
        try:
            yield
        finally:
            await service.close()

    app = Starlette(
        routes=list(ROUTES),
        middleware=middleware,
        exception_handlers=dict.fromkeys(ERRORS, respond),
        lifespan=lifespan,
    )
    app.state.service = service
    return app
