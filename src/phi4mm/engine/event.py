"""The one event type that every front end reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request so far.

    Attributes:
        n_text: prompt tokens of text and special tokens.
        n_image: soft tokens of pictures.
        n_audio: soft tokens of clips.
        n_cached: prompt tokens kept from an earlier request, not computed again.
        n_generated: tokens generated, the stop token included.
        n_refilled: tokens computed a second time because the sequence outgrew the original
            context and its RoPE factors changed; 0 if that did not happen.
    """

    n_text: int
    n_image: int
    n_audio: int
    n_cached: int = 0
    n_generated: int = 0
    n_refilled: int = 0

    @property
    def n_prompt(self) -> int:
        """All tokens of the prompt."""
        return self.n_text + self.n_image + self.n_audio


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds spent on a request so far, by phase.

    Attributes:
        encode_s: encoding pictures and clips (0 for cached ones).
        prefill_s: prefill of the prompt, and again at the RoPE crossing.
        decode_s: decoding of generated tokens.
        first_token_s: from the request to its first token; None before that.
    """

    encode_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    first_token_s: float | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a generated token was, before temperature, penalties and cuts.

    Attributes:
        token_id: the token taken.
        logprob: natural logarithm of its probability.
        top: the likeliest tokens with theirs, best first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Event:
    """A step of an answer.

    Attributes:
        text: characters completed by this step; may be empty.
        token_ids: ids generated in this step.
        usage: counts so far.
        timings: seconds so far.
        finish_reason: None until the last event; then "stop" (a stop token or string) or "length"
            (``max_tokens`` reached, the context full, or the schema too complex to go on).
        logprobs: one for each id, if they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    usage: Usage
    timings: Timings
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
