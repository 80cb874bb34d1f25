"""``/v1/completions``: raw text goes on."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from phi4mm.engine.event import Event, TokenLogprob
from phi4mm.errors import InputError
from phi4mm.prompt.chunk import Prompt, TextChunk
from phi4mm.prompt.tokenizer import Tokenizer
from phi4mm.server import wire
from phi4mm.server.choice import Json, usage_json
from phi4mm.server.engine_client import Job
from phi4mm.server.event_stream import EventStream
from phi4mm.server.service import Service, cancelled_on_disconnect, read_body
from phi4mm.server.translate import sampling_of


async def completions(request: Request) -> Response:
    """Continue raw text: special tokens are parsed, media cannot be given."""
    service: Service = request.app.state.service
    body = await read_body(request, wire.CompletionRequest)
    service.require_model(body.model)
    sampling = sampling_of(body)
    prompts = _prompts(body.prompt)
    makers = [partial(_make_prompt, service, prompt) for prompt in prompts]
    job = await service.submit(makers, sampling, body.n_choices)
    writer = CompletionWriter(service, body, len(prompts))
    if body.stream:
        return EventStream(service, job, writer.chunks(job))
    with service.limited(job):
        async with cancelled_on_disconnect(request.receive, job):
            return JSONResponse(await writer.completion(job))


def _prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """One or several prompts, each text or ids."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    if ids:
        return [ids]
    prompts = [item for item in prompt if not isinstance(item, int)]
    if not prompts:
        raise InputError("prompt is empty")
    return prompts


def _make_prompt(service: Service, prompt: str | list[int]) -> Prompt:
    if isinstance(prompt, str):
        with service.at_work:
            return service.prompts.raw(prompt)
    n_vocab = service.tokenizer.n_vocab
    for id_ in prompt:
        if not 0 <= id_ < n_vocab:
            raise InputError(f"prompt holds the token id {id_}: use 0 to {n_vocab - 1}")
    if not prompt:
        raise InputError("prompt is empty")
    return Prompt((TextChunk(tuple(prompt)),))


@dataclass
class _Logprobs:
    """Log probabilities in the form of the older API."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[str, float]] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(self, entries: tuple[TokenLogprob, ...], offset: int, tokenizer: Tokenizer) -> None:
        for entry in entries:
            self.tokens.append(tokenizer.decode([entry.token_id]))
            self.token_logprobs.append(entry.logprob)
            self.top_logprobs.append({tokenizer.decode([id_]): lp for id_, lp in entry.top})
            self.text_offset.append(offset)

    def json(self) -> Json:
        return {
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        }


class CompletionWriter:
    """Puts the events of answers into the completion API's words.

    Args:
        service: counts events.
        body: what was asked.
        n_prompts: how many prompts it holds; the answers to one follow those to the one before.
    """

    def __init__(self, service: Service, body: wire.CompletionRequest, n_prompts: int) -> None:
        self._service = service
        self._body = body
        self._texts = [""] * (n_prompts * body.n_choices)
        self._last: dict[int, Event] = {}
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.settings.served_name,
        }

    async def completion(self, job: Job) -> Json:
        """The whole answer at once."""
        logprobs = [_Logprobs() for _ in self._texts]
        async for index, event in self._service.events(job):
            self._take(index, event, logprobs[index])
        choices = [
            self._choice(index, text, logprobs[index], self._last[index].finish_reason)
            for index, text in enumerate(self._texts)
        ]
        return {**self._head, "choices": choices, "usage": self._usage()}

    async def chunks(self, job: Job) -> AsyncIterator[Json]:
        """The answer piece by piece."""
        async for index, event in self._service.events(job):
            logprobs = _Logprobs()
            self._take(index, event, logprobs)
            if event.text or event.logprobs or event.finish_reason:
                choice = self._choice(index, event.text, logprobs, event.finish_reason)
                yield {**self._head, "choices": [choice]}
        if self._body.stream_options is not None and self._body.stream_options.include_usage:
            yield {**self._head, "choices": [], "usage": self._usage()}

    def _take(self, index: int, event: Event, logprobs: _Logprobs) -> None:
        logprobs.add(event.logprobs, len(self._texts[index]), self._service.tokenizer)
        self._texts[index] += event.text
        self._last[index] = event

    def _choice(self, index: int, text: str, logprobs: _Logprobs, finish: str | None) -> Json:
        return {
            "index": index,
            "text": text,
            "logprobs": None if self._body.logprobs is None else logprobs.json(),
            "finish_reason": finish,
        }

    def _usage(self) -> Json:
        return usage_json([self._last[i] for i in range(len(self._texts))], self._body.n_choices)
