"""From the engine's events to the pieces of one answer, as the chat API words them."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Sequence
from typing import Any

from phi4mm.engine.event import Event, TokenLogprob
from phi4mm.prompt.tokenizer import Tokenizer
from phi4mm.prompt.tool_call import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Delta,
    TextDelta,
    ToolCallParser,
)

Json = dict[str, Any]


class AnswerSplit:
    """The text of one answer, split into words and tool calls.

    Args:
        parser: reads tool calls out of the text; None where there are no tools.
        is_single: whether the answer is over when its first call is.

    Attributes:
        content: the words so far.
        tool_calls: the calls so far.
        finish_reason: None until the end.
    """

    def __init__(self, parser: ToolCallParser | None = None, *, is_single: bool = False) -> None:
        self._parser = parser
        self._is_single = is_single
        self.content = ""
        self.tool_calls: list[Json] = []
        self.finish_reason: str | None = None

    def take(self, text: str, finish_reason: str | None) -> list[Json]:
        """Take text in; the deltas it makes.

        Args:
            text: what comes next.
            finish_reason: with the last text, why it is the last.
        """
        deltas: list[Json] = []
        for delta in self._split(text, is_end=finish_reason is not None):
            if isinstance(delta, CallEnd):
                if self._is_single:
                    self.finish_reason = "tool_calls"
                    return deltas
            else:
                deltas.append(self._delta(delta))
        if finish_reason is not None:
            is_cut_off = self._parser is not None and self._parser.is_cut_off
            is_call = self.tool_calls and not is_cut_off
            self.finish_reason = "tool_calls" if is_call else finish_reason
        return deltas

    def _split(self, text: str, *, is_end: bool) -> list[Delta]:
        if self._parser is None:
            return [TextDelta(text)] if text else []
        deltas = self._parser.push(text)
        return deltas + self._parser.finish() if is_end else deltas

    def _delta(self, delta: TextDelta | CallStart | ArgumentsDelta) -> Json:
        if isinstance(delta, TextDelta):
            self.content += delta.text
            return {"content": delta.text}
        if isinstance(delta, CallStart):
            call = {
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {"name": delta.name, "arguments": ""},
            }
            self.tool_calls.append(copy.deepcopy(call))
        else:
            call = {"function": {"arguments": delta.text}}
            self.tool_calls[-1]["function"]["arguments"] += delta.text
        return {"tool_calls": [{"index": len(self.tool_calls) - 1, **call}]}


class Choice(AnswerSplit):
    """One answer of the engine.

    Args:
        tokenizer: for log probabilities.
        parser: reads tool calls out of the text; None where there are no tools.
        is_single: whether the answer is over when its first call is.

    Attributes:
        logprobs: of the tokens so far, in the chat API's form.
    """

    def __init__(
        self, tokenizer: Tokenizer, parser: ToolCallParser | None = None, *, is_single: bool = False
    ) -> None:
        super().__init__(parser, is_single=is_single)
        self._tokenizer = tokenizer
        self.logprobs: list[Json] = []

    def push(self, event: Event) -> list[Json]:
        """Take an event in; the deltas it makes."""
        self.logprobs += [chat_logprob(entry, self._tokenizer) for entry in event.logprobs]
        return self.take(event.text, event.finish_reason)


def chat_logprob(entry: TokenLogprob, tokenizer: Tokenizer) -> Json:
    """A token's log probability in the chat API's form."""
    return {
        **_token(entry.token_id, entry.logprob, tokenizer),
        "top_logprobs": [_token(id_, logprob, tokenizer) for id_, logprob in entry.top],
    }


def _token(token_id: int, logprob: float, tokenizer: Tokenizer) -> Json:
    data = tokenizer.token_bytes(token_id)
    return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}


def usage_json(last: Sequence[Event], n_choices: int) -> Json:
    """Token counts of a request.

    Args:
        last: the last event of each answer, prompt by prompt.
        n_choices: answers to each prompt.
    """
    prompts = [event.usage for event in last[::n_choices]]
    n_prompt = sum(usage.n_prompt for usage in prompts)
    n_generated = sum(event.usage.n_generated for event in last)
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.n_cached for usage in prompts),
            "text_tokens": sum(usage.n_text for usage in prompts),
            "image_tokens": sum(usage.n_image for usage in prompts),
            "audio_tokens": sum(usage.n_audio for usage in prompts),
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
