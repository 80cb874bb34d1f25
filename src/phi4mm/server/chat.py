"""``/v1/chat/completions``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from phi4mm.engine.event import Event
from phi4mm.prompt.chunk import Prompt
from phi4mm.prompt.tool_call import ToolCallParser
from phi4mm.server import wire
from phi4mm.server.answer_schema import answer_schema
from phi4mm.server.choice import Choice, Json, chat_logprob, timings_json, usage_json
from phi4mm.server.engine_client import Job
from phi4mm.server.event_stream import EventStream
from phi4mm.server.service import Service, cancelled_on_disconnect, read_body
from phi4mm.server.translate import messages_of, must_call, offered_tools, sampling_of


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    body = await read_body(request, wire.ChatRequest)
    service.require_model(body.model)
    sampling = replace(sampling_of(body), json_schema=answer_schema(body))
    tools = offered_tools(body)

    def make_prompt() -> Prompt:
        messages = messages_of(body, service.load_media, service.settings.limits)
        with service.at_work:
            return service.prompts.chat(messages)

    def choice() -> Choice:
        parser = ToolCallParser(accept_bare=must_call(body)) if tools else None
        return Choice(service.tokenizer, parser, is_single=body.parallel_tool_calls is False)

    job = await service.submit([make_prompt], sampling, body.n_choices)
    writer = ChatWriter(service, body, [choice() for _ in range(body.n_choices)])
    if body.stream:
        return EventStream(service, job, writer.chunks(job))
    with service.limited(job):
        async with cancelled_on_disconnect(request.receive, job):
            return JSONResponse(await writer.completion(job))


class ChatWriter:
    """Puts an answer's events into the chat API's words.

    Args:
        service: counts events.
        body: what was asked.
        choices: one for each answer.
    """

    def __init__(self, service: Service, body: wire.ChatRequest, choices: list[Choice]) -> None:
        self._service = service
        self._body = body
        self._choices = choices
        self._last: dict[int, Event] = {}
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": service.settings.served_name,
        }

    async def completion(self, job: Job) -> Json:
        """The whole answer at once."""
        async for index, event in self._service.events(job):
            self._take(job, index, event)
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(i, choice) for i, choice in enumerate(self._choices)],
            **self._ending(),
        }

    def _choice(self, index: int, choice: Choice) -> Json:
        message: Json = {"role": "assistant", "content": choice.content, "refusal": None}
        if choice.tool_calls:
            message["tool_calls"] = choice.tool_calls
            message["content"] = choice.content or None
        return {
            "index": index,
            "message": message,
            "logprobs": {"content": choice.logprobs} if self._body.logprobs else None,
            "finish_reason": choice.finish_reason,
        }

    async def chunks(self, job: Job) -> AsyncIterator[Json]:
        """The answer piece by piece."""
        for index in range(len(self._choices)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for index, event in self._service.events(job):
            choice = self._choices[index]
            deltas = self._take(job, index, event)
            logprobs = [chat_logprob(e, self._service.tokenizer) for e in event.logprobs]
            for delta in deltas or ([{"content": ""}] if logprobs else []):
                yield self._chunk(index, delta, logprobs=logprobs)
                logprobs = []
            if choice.finish_reason is not None:
                is_last = all(c.finish_reason is not None for c in self._choices)
                timings = {"timings": timings_json(event)} if is_last else {}
                yield {**self._chunk(index, {}, choice.finish_reason), **timings}
        if self._body.stream_options is not None and self._body.stream_options.include_usage:
            yield {**self._head, "object": _CHUNK, "choices": [], **self._ending()}

    def _take(self, job: Job, index: int, event: Event) -> list[Json]:
        """The deltas of an event.  An answer that is over before the model ended it is dropped."""
        choice = self._choices[index]
        deltas = choice.push(event)
        self._last[index] = event
        if choice.finish_reason is not None and event.finish_reason is None:
            job.drop(index)
            self._service.metrics.count_answer(event)
        return deltas

    def _chunk(
        self,
        index: int,
        delta: Json,
        finish_reason: str | None = None,
        logprobs: list[Json] | None = None,
    ) -> Json:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": {"content": logprobs} if logprobs else None,
            "finish_reason": finish_reason,
        }
        return {**self._head, "object": _CHUNK, "choices": [choice]}

    def _ending(self) -> Json:
        last = [self._last[i] for i in range(len(self._choices))]
        return {"usage": usage_json(last, len(last)), "timings": timings_json(last[0])}


_CHUNK = "chat.completion.chunk"
