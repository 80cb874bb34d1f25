"""Endpoints that tell how the server is, and what the model makes of text."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from phi4mm import __version__
from phi4mm.modality import MODES
from phi4mm.prompt.chunk import TextChunk
from phi4mm.prompt.segment import Medium, Segment, Special, render_chat
from phi4mm.server import wire
from phi4mm.server.error import ApiError
from phi4mm.server.service import Service, read_body
from phi4mm.server.translate import messages_of


async def health(request: Request) -> Response:
    """Whether requests are answered."""
    service: Service = request.app.state.service
    if service.engine.state == "ok":
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": service.engine.state}, 503)


async def models(request: Request) -> Response:
    """The model, and the names it answers to."""
    service: Service = request.app.state.service
    return JSONResponse({"object": "list", "data": [_model(service)]})


async def model(request: Request) -> Response:
    """One model by name."""
    service: Service = request.app.state.service
    service.require_model(request.path_params["name"])
    return JSONResponse(_model(service))


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.settings.served_name,
        "object": "model",
        "created": 0,
        "owned_by": "phi4mm",
        "input_modalities": _modalities(service),
        "output_modalities": ["text"],
        "context_length": service.plan.n_ctx,
        "aliases": list(service.model_names[1:]),
    }


def _modalities(service: Service) -> list[str]:
    names = {(False, False): "text", (True, False): "image", (False, True): "audio"}
    return [name for media, name in names.items() if service.bundle.supports(MODES[media])]


async def props(request: Request) -> Response:
    """Settings that clients may want to know."""
    service: Service = request.app.state.service
    settings = service.settings
    return JSONResponse(
        {
            "version": __version__,
            "model": settings.served_name,
            "modalities": _modalities(service),
            "n_ctx": service.plan.n_ctx,
            "n_ctx_short": service.plan.n_short,
            "n_slots": settings.engine.n_slots,
            "n_long_slots": settings.engine.n_long_slots if service.plan.n_long else 0,
            "n_vocab": service.tokenizer.n_vocab,
            "limits": {
                name: getattr(settings.limits, name)
                for name in settings.limits.__dataclass_fields__
            },
        }
    )


async def slots(request: Request) -> Response:
    """How the slots stand."""
    service: Service = request.app.state.service
    return JSONResponse(
        [
            {
                "id": i,
                "n_ctx": slot.n_ctx,
                "n_computed": slot.n_computed,
                "is_processing": slot.is_busy,
            }
            for i, slot in enumerate(service.engine.slots)
        ]
    )


async def metrics(request: Request) -> Response:
    """Counters for Prometheus."""
    service: Service = request.app.state.service
    return Response(
        service.metrics.text(service.engine), media_type="text/plain; version=0.0.4; charset=utf-8"
    )


async def tokenize(request: Request) -> Response:
    """The ids of a text."""
    service: Service = request.app.state.service
    body = await read_body(request, wire.TokenizeRequest)
    return JSONResponse({"tokens": await service.plan_with(partial(_ids, service, body))})


def _ids(service: Service, body: wire.TokenizeRequest) -> list[int]:
    with service.at_work:
        if not body.parse_special or not body.content:
            service.prompts.require_room(len(body.content))
            return service.tokenizer.encode(body.content)
        chunks = service.prompts.raw(body.content).chunks
    return [id_ for chunk in chunks if isinstance(chunk, TextChunk) for id_ in chunk.ids]


async def detokenize(request: Request) -> Response:
    """The text of ids."""
    service: Service = request.app.state.service
    body = await read_body(request, wire.DetokenizeRequest)
    for id_ in body.tokens:
        if not 0 <= id_ < service.tokenizer.n_vocab:
            last = service.tokenizer.n_vocab - 1
            raise ApiError(400, f"tokens holds {id_}: use 0 to {last}", param="tokens")
    return JSONResponse({"content": service.tokenizer.decode(body.tokens)})


async def apply_template(request: Request) -> Response:
    """A conversation as the raw prompt that the model reads; media are marked by number."""
    service: Service = request.app.state.service
    body = await read_body(request, wire.TemplateRequest)

    def render() -> str:
        messages = messages_of(body, service.load_media, service.settings.limits)
        return "".join(map(_written, render_chat(messages)))

    return JSONResponse({"prompt": await service.plan_with(render)})


def _written(segment: Segment) -> str:
    if isinstance(segment, Medium):
        return f"<|{segment.kind}_{segment.index + 1}|>"
    return segment.token if isinstance(segment, Special) else segment.text
