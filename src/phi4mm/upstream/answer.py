"""From the endpoint's answers to those of this API: tool calls are read out of the text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phi4mm.prompt.tool_call import ToolCallParser
from phi4mm.server import wire
from phi4mm.server.choice import AnswerSplit
from phi4mm.server.translate import must_call, offered_tools

Json = dict[str, Any]


class AnswerTranslator:
    """Translates the answers to one request, whole or in pieces.

    Args:
        request: what was asked.
        served_name: what the model is called.
    """

    def __init__(self, request: wire.ChatRequest, served_name: str) -> None:
        self._request = request
        self._served_name = served_name
        self._has_tools = bool(offered_tools(request))
        self._splits: dict[int, AnswerSplit] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing of what may still come is passed on."""
        n_ended = sum(split.finish_reason is not None for split in self._splits.values())
        return self._request.parallel_tool_calls is False and n_ended == self._request.n_choices

    def completion(self, answer: Json) -> Json:
        """A whole answer."""
        choices = [self._choice(choice) for choice in answer["choices"]]
        return {**answer, "model": self._served_name, "choices": choices}

    def _choice(self, choice: Json) -> Json:
        message = choice["message"]
        split = self._split(choice["index"])
        split.take(message.get("content") or "", choice["finish_reason"] or "stop")
        message = {**message, "content": split.content}
        message.pop("tool_calls", None)
        if split.tool_calls:
            message |= {"content": split.content or None, "tool_calls": split.tool_calls}
        return {**choice, "message": message, "finish_reason": split.finish_reason}

    def chunk(self, chunk: Json) -> Iterator[Json]:
        """What becomes of one piece of a stream."""
        chunk = {**chunk, "model": self._served_name}
        if not chunk["choices"]:  # token counts
            yield chunk
        for choice in chunk["choices"]:
            for piece in self._pieces(choice):
                yield {**chunk, "choices": [piece]}

    def _pieces(self, choice: Json) -> Iterator[Json]:
        split = self._split(choice["index"])
        if split.finish_reason is not None:
            return
        delta, logprobs = choice["delta"], choice.get("logprobs")
        deltas = split.take(delta.get("content") or "", choice.get("finish_reason"))
        if "role" in delta:
            deltas = [{"role": delta["role"], "content": ""}, *deltas]
        elif logprobs and not deltas:
            deltas = [{"content": ""}]
        for made in deltas:
            yield {**choice, "delta": made, "logprobs": logprobs, "finish_reason": None}
            logprobs = None
        if split.finish_reason is not None:
            end = {"delta": {}, "logprobs": None, "finish_reason": split.finish_reason}
            yield {**choice, **end}

    def _split(self, index: int) -> AnswerSplit:
        if index not in self._splits:
            parser = None
            if self._has_tools:
                parser = ToolCallParser(accept_bare=must_call(self._request))
            is_single = self._request.parallel_tool_calls is False
            self._splits[index] = AnswerSplit(parser, is_single=is_single)
        return self._splits[index]
