"""The OpenAPI document, from the shapes that requests are checked with."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from phi4mm import __version__
from phi4mm.server import wire

_BODIES: dict[str, type[wire.WireModel]] = {
    "/v1/chat/completions": wire.ChatRequest,
    "/v1/completions": wire.CompletionRequest,
    "/tokenize": wire.TokenizeRequest,
    "/detokenize": wire.DetokenizeRequest,
    "/apply-template": wire.TemplateRequest,
}
_GETS = ("/health", "/v1/models", "/props", "/slots", "/metrics", "/openapi.json")
_FORMS = ("/v1/audio/transcriptions", "/v1/audio/translations")
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_FORM = {
    "type": "object",
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "model": {"type": "string"},
        "prompt": {"type": "string"},
        "language": {"type": "string"},
        "response_format": {"enum": ["json", "text", "srt", "verbose_json", "vtt"]},
        "temperature": {"type": "number", "minimum": 0},
        "timestamp_granularities[]": {"type": "array", "items": {"enum": ["segment"]}},
        "chunking_strategy": {"enum": ["auto"]},
        "stream": {"type": "boolean"},
    },
    "required": ["file"],
}


async def openapi(request: Request) -> Response:
    """The document."""
    return JSONResponse(document())


def document() -> dict[str, Any]:
    """What the server takes, as OpenAPI 3.1."""
    models = [(model, "validation") for model in _BODIES.values()]
    _, schema = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    paths: dict[str, Any] = {path: {"get": _operation()} for path in _GETS}
    for path, model in _BODIES.items():
        ref = {"$ref": f"#/components/schemas/{model.__name__}"}
        paths[path] = {"post": _operation({"application/json": {"schema": ref}})}
    for path in _FORMS:
        paths[path] = {"post": _operation({"multipart/form-data": {"schema": _FORM}})}
    return {
        "openapi": "3.1.0",
        "info": {"title": "phi4mm", "version": __version__},
        "paths": paths,
        "components": {"schemas": {**schema["$defs"], "Error": _ERROR}},
    }


def _operation(content: dict[str, Any] | None = None) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses = {
        "200": {"description": "done"},
        "4XX": {"description": "refused", "content": error},
        "5XX": {"description": "not available", "content": error},
    }
    if content is None:
        return {"responses": responses}
    return {"requestBody": {"required": True, "content": content}, "responses": responses}
