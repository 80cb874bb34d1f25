"""From the engine's events to the pieces of one answer, as the chat API words them."""

from __future__ import annotations

import uuid
from typing import Any

from phi4mm.engine.event import Event, TokenLogprob
from phi4mm.prompt.tokenizer import Tokenizer
from phi4mm.prompt.tool_call import Delta, TextDelta, ToolCallParser

Json = dict[str, Any]


class Choice:
    """One answer: splits it into text and tool calls.

    Args:
        parser: reads tool calls out of the text; None where there are no tools.

    Attributes:
        content: the text so far.
        tool_calls: the calls so far.
        logprobs: of the tokens so far, in the chat API's form.
        finish_reason: None until the last event.
    """

    def __init__(self, tokenizer: Tokenizer, parser: ToolCallParser | None = None) -> None:
        self._tokenizer = tokenizer
        self._parser = parser
        self.content = ""
        self.tool_calls: list[Json] = []
        self.logprobs: list[Json] = []
        self.finish_reason: str | None = None

    def push(self, event: Event) -> list[Json]:
        """Take an event in; the deltas it makes."""
        self.logprobs += [chat_logprob(entry, self._tokenizer) for entry in event.logprobs]
        deltas = [self._delta(delta) for delta in self._split(event)]
        if event.finish_reason is not None:
            self.finish_reason = "tool_calls" if self.tool_calls else event.finish_reason
        return deltas

    def _split(self, event: Event) -> list[Delta]:
        if self._parser is None:
            return [TextDelta(event.text)] if event.text else []
        deltas = self._parser.push(event.text)
        return deltas if event.finish_reason is None else deltas + self._parser.finish()

    def _delta(self, delta: Delta) -> Json:
        if isinstance(delta, TextDelta):
            self.content += delta.text
            return {"content": delta.text}
        call = {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": delta.name, "arguments": delta.arguments},
        }
        self.tool_calls.append(call)
        return {"tool_calls": [{"index": len(self.tool_calls) - 1, **call}]}


def chat_logprob(entry: TokenLogprob, tokenizer: Tokenizer) -> Json:
    """A token's log probability in the chat API's form."""
    return {
        **_token(entry.token_id, entry.logprob, tokenizer),
        "top_logprobs": [_token(id_, logprob, tokenizer) for id_, logprob in entry.top],
    }


def _token(token_id: int, logprob: float, tokenizer: Tokenizer) -> Json:
    data = tokenizer.token_bytes(token_id)
    return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}


def usage_json(last: list[Event]) -> Json:
    """Token counts of the answers to one prompt, from the last event of each."""
    usage = last[0].usage
    n_generated = sum(event.usage.n_generated for event in last)
    return {
        "prompt_tokens": usage.n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": usage.n_prompt + n_generated,
        "prompt_tokens_details": {
            "cached_tokens": usage.n_cached,
            "text_tokens": usage.n_text,
            "image_tokens": usage.n_image,
            "audio_tokens": usage.n_audio,
        },
    }


def timings_json(last: Event) -> Json:
    """Seconds by phase of an answer."""
    timings = last.timings
    return {
        "encode_s": timings.encode_s,
        "prefill_s": timings.prefill_s,
        "decode_s": timings.decode_s,
        "first_token_s": timings.first_token_s,
        "n_refilled": last.usage.n_refilled,
    }
